# SPDX-License-Identifier: Apache-2.0
#
# Headers that are parsed once for many sources. Tests have them in every build. The library has them where
# SPILLWAY_PRECOMPILE says so, as in the sanitizers' builds, and never in the release build: there each source includes
# what it needs, and that its own header stands alone is proved by being its first include.

option(SPILLWAY_PRECOMPILE "Precompile the headers that the library's sources share" OFF)

# spillway_add_precompiled_headers(NAME PROGRAM|LIBRARY HEADER...): a target that others of its kind reuse the headers
# from. They must have the same options.
function(spillway_add_precompiled_headers name kind)
  set(source ${PROJECT_BINARY_DIR}/generated/${name}.cc)
  if(kind STREQUAL "PROGRAM")
    file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
    add_executable(${name} ${source})
  else()
    file(CONFIGURE OUTPUT ${source} CONTENT "\n")
    add_library(${name} OBJECT ${source})
  endif()
  target_precompile_headers(${name} PRIVATE ${ARGN})
  target_compile_options(${name} PRIVATE ${SPILLWAY_NO_PCH_TIMESTAMP})
endfunction()

# When headers were written must not keep ccache from finding an object.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(SPILLWAY_NO_PCH_TIMESTAMP "SHELL:-Xclang -fno-pch-timestamp")
endif()

if(SPILLWAY_PRECOMPILE)
  spillway_add_precompiled_headers(spillway_library_headers LIBRARY
    <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>
    <absl/time/time.h> <algorithm> <deque> <functional> <map> <memory> <optional> <string> <thread> <vector>)
  target_link_libraries(spillway_library_headers PRIVATE absl::flat_hash_map absl::statusor absl::strings absl::time)
endif()

# A target with headers of its own, where the library has precompiled ones.
function(spillway_precompile_own target)
  if(SPILLWAY_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    target_compile_options(${target} PRIVATE ${SPILLWAY_NO_PCH_TIMESTAMP})
  endif()
endfunction()

# The library's targets take the shared headers, if there are some.
function(spillway_precompile)
  if(TARGET spillway_library_headers)
    foreach(target IN LISTS ARGN)
      target_precompile_headers(${target} REUSE_FROM spillway_library_headers)
      target_compile_options(${target} PRIVATE ${SPILLWAY_NO_PCH_TIMESTAMP})
    endforeach()
  endif()
endfunction()
