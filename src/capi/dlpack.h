// SPDX-License-Identifier: Apache-2.0
//
// The structs of DLPack, with which tensor libraries share bytes without a copy. The layout is that
// of version 0.8, as given in https://dmlc.github.io/dlpack/latest/c_api.html.

#ifndef SPILLWAY_CAPI_DLPACK_H_
#define SPILLWAY_CAPI_DLPACK_H_

#include <stdint.h>

// NOLINTBEGIN(readability-identifier-naming): these are the standard's names
extern "C" {

enum { kDLCPU = 1, kDLCUDA = 2 };
enum { kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4 };

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: row-major without gaps
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

}  // extern "C"
// NOLINTEND(readability-identifier-naming)

#endif  // SPILLWAY_CAPI_DLPACK_H_
