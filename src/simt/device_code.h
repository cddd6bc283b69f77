// SPDX-License-Identifier: Apache-2.0
//
// How code that also runs on a GPU is marked. Such code is C++17, which is the newest language that
// CMake 3.25 knows for nvcc.

#ifndef SPILLWAY_SIMT_DEVICE_CODE_H_
#define SPILLWAY_SIMT_DEVICE_CODE_H_

#ifdef __CUDACC__
#define SPILLWAY_SIMT __host__ __device__
#else
#define SPILLWAY_SIMT
#endif

#endif  // SPILLWAY_SIMT_DEVICE_CODE_H_
