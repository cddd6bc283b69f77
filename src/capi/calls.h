// SPDX-License-Identifier: Apache-2.0
//
// Helpers that translate a call of the C ABI to C++: statuses, strings, and structs whose later
// versions have more members.

#ifndef SPILLWAY_CAPI_CALLS_H_
#define SPILLWAY_CAPI_CALLS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "spillway/spillway.h"

namespace spillway::capi {

// Returns null if the status is OK.
spw_status* ToStatus(const absl::Status& status);
// Neither needs memory: without it, both return the same SPW_RESOURCE_EXHAUSTED.
spw_status* ToStatus(absl::StatusCode code, std::string_view message) noexcept;
spw_status* NoMemory() noexcept;

// Runs `call`, which returns an absl::Status. Turns an exception that it throws into a status. An
// absl::Status made here could throw in turn, which would end the process.
template <class Call>
spw_status* Run(const Call& call) noexcept {
  try {
    return ToStatus(call());
  } catch (const std::bad_alloc&) {
    return NoMemory();
  } catch (const std::exception& error) {
    return ToStatus(absl::StatusCode::kInternal, error.what());
  }
}

// Returns a zero-terminated copy, to be freed with spw_free. Throws std::bad_alloc.
char* CopyText(std::string_view text);

// Returns InvalidArgument, which names `what`, if the pointer is null.
template <class T>
absl::Status CheckNotNull(const T* pointer, std::string_view what) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " is NULL"));
}

// Converts a caller's struct to this library's version of it. The caller's header gives the struct
// `size` bytes; members that it lacks get their defaults.
template <class Struct>
Struct Grown(const Struct* given, size_t size, const Struct& defaults) {
  Struct grown = defaults;
  std::memcpy(&grown, given, std::min(size, sizeof grown));
  grown.size = sizeof grown;
  return grown;
}
// Writes the defaults to a caller's struct of `size` bytes. Members that this library lacks become
// zero.
template <class Struct>
void Init(Struct* out, size_t size, Struct defaults) {
  defaults.size = size;
  std::memset(out, 0, size);
  std::memcpy(out, &defaults, std::min(size, sizeof defaults));
}

// Returns InvalidArgument if the struct is null or its `size` is not set.
template <class Struct>
absl::Status CheckStruct(const Struct* given, std::string_view what) {
  if (given != nullptr && given->size >= sizeof(size_t)) return absl::OkStatus();
  const std::string name(what);
  return absl::InvalidArgumentError(
      given == nullptr
          ? absl::StrCat(name, " is NULL")
          : absl::StrCat(name, ".size is ", given->size, ": call ", name, "_init first"));
}

// Converts a number to an enumeration that has values from 0 to `last`. InvalidArgument if the
// number is not among them.
template <class Enum>
absl::Status ToEnum(int value, Enum last, std::string_view what, Enum* out) {
  if (value < 0 || value > static_cast<int>(last)) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(what), " is ", value, ": it must be from 0 to ", static_cast<int>(last)));
  }
  *out = static_cast<Enum>(value);
  return absl::OkStatus();
}

}  // namespace spillway::capi

#endif  // SPILLWAY_CAPI_CALLS_H_
