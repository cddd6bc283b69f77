// SPDX-License-Identifier: Apache-2.0

#include "src/capi/calls.h"

#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "spillway/version.h"

struct spw_status {
  int code;
  std::string message;
};

namespace spillway::capi {

// Its message is short enough to be stored without an allocation.
spw_status* NoMemory() noexcept {
  static spw_status status{SPW_RESOURCE_EXHAUSTED, "no memory"};
  return &status;
}

spw_status* ToStatus(absl::StatusCode code, std::string_view message) noexcept {
  try {
    return new spw_status{static_cast<int>(code), std::string(message)};
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

spw_status* ToStatus(const absl::Status& status) {
  if (status.ok()) return nullptr;
  const absl::string_view message = status.message();
  return ToStatus(status.code(), {message.data(), message.size()});
}

char* CopyText(std::string_view text) {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

}  // namespace spillway::capi

extern "C" {

int spw_status_code(const spw_status* status) { return status == nullptr ? SPW_OK : status->code; }

const char* spw_status_message(const spw_status* status) {
  return status == nullptr ? "" : status->message.c_str();
}

void spw_status_free(spw_status* status) {
  if (status != spillway::capi::NoMemory()) delete status;
}

void spw_free(void* memory) { std::free(memory); }

const char* spw_version(void) { return spillway::Version().data(); }

}  // extern "C"
