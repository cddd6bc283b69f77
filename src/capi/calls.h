// SPDX-License-Identifier: Apache-2.0
//
// How a call of the C ABI becomes one of C++: statuses, strings and structs that grow.

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

// Null for success.
spw_status* ToStatus(const absl::Status& status);

// Runs `call`, which returns absl::Status; what it throws becomes a status.
template <class Call>
spw_status* Run(const Call& call) noexcept {
  try {
    return ToStatus(call());
  } catch (const std::bad_alloc&) {
    return ToStatus(absl::ResourceExhaustedError("there is no memory for this call"));
  } catch (const std::exception& error) {
    return ToStatus(absl::InternalError(error.what()));
  }
}

// A copy for spw_free, with a zero after it. Throws std::bad_alloc.
char* CopyText(std::string_view text);

// InvalidArgument that names what is null.
template <class T>
absl::Status CheckNotNull(const T* pointer, std::string_view what) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " is NULL"));
}

// A caller's struct, of which the caller knows `size` bytes, as this library knows it: members that
// the caller's header lacks have their defaults.
template <class Struct>
Struct Grown(const Struct* given, size_t size, const Struct& defaults) {
  Struct grown = defaults;
  std::memcpy(&grown, given, std::min(size, sizeof grown));
  grown.size = sizeof grown;
  return grown;
}
// And back, into memory of `size` bytes.
template <class Struct>
void Init(Struct* out, size_t size, Struct defaults) {
  defaults.size = size;
  std::memset(out, 0, size);
  std::memcpy(out, &defaults, std::min(size, sizeof defaults));
}

// InvalidArgument unless the struct is there and has a size.
template <class Struct>
absl::Status CheckStruct(const Struct* given, std::string_view what) {
  if (given != nullptr && given->size >= sizeof(size_t)) return absl::OkStatus();
  const std::string name(what);
  return absl::InvalidArgumentError(
      given == nullptr
          ? absl::StrCat(name, " is NULL")
          : absl::StrCat(name, ".size is ", given->size, ": call ", name, "_init first"));
}

// A number of an enumeration, which has values from 0 to `last`.
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
