// SPDX-License-Identifier: Apache-2.0
//
// C ABI: the snapshots of a store, without an engine.

#include "spillway/store_reader.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/capi/calls.h"
#include "src/capi/handles.h"

using namespace spillway;        // NOLINT(google-build-using-namespace): for the calls below
using namespace spillway::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

spw_status* spw_store_reader_open(const char* const* store, size_t num_store,
                                  spw_store_reader** reader) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(reader, "reader"));
    if (num_store > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(store, "store"));
    std::vector<std::string> folders;
    for (size_t i = 0; i < num_store; ++i) {
      SPILLWAY_RETURN_IF_ERROR(CheckNotNull(store[i], "a folder of store"));
      folders.emplace_back(store[i]);
    }
    SPILLWAY_ASSIGN_OR_RETURN(auto opened, StoreReader::Open(folders));
    *reader = new spw_store_reader{std::move(opened)};
    return absl::OkStatus();
  });
}

void spw_store_reader_release(spw_store_reader* reader) { delete reader; }

spw_status* spw_store_reader_id(spw_store_reader* reader, char** id) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(reader, "reader"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(id, "id"));
    *id = CopyText(reader->reader->StoreId());
    return absl::OkStatus();
  });
}

spw_status* spw_store_reader_user_state(spw_store_reader* reader, const char* label,
                                        void** user_state, size_t* bytes) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(reader, "reader"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(label, "label"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(user_state, "user_state"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(bytes, "bytes"));
    SPILLWAY_ASSIGN_OR_RETURN(const std::string state, reader->reader->UserState(label));
    *user_state = CopyText(state);
    *bytes = state.size();
    return absl::OkStatus();
  });
}

spw_status* spw_store_reader_read(spw_store_reader* reader, const char* label,
                                  const spw_tensor_spec* spec, void* out, uint64_t bytes) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(reader, "reader"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(label, "label"));
    SPILLWAY_RETURN_IF_ERROR(CheckStruct(spec, "spw_tensor_spec"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    SPILLWAY_ASSIGN_OR_RETURN(const TensorSpec wanted,
                              ToSpec(Grown(spec, spec->size, DefaultSpec())));
    return reader->reader->Read(label, wanted, {static_cast<std::byte*>(out), bytes});
  });
}

}  // extern "C"
