# SPDX-License-Identifier: Apache-2.0
#
# What makes a build from scratch fast. Tests have precompiled headers in every build. Library and command have them
# where SPILLWAY_FAST_BUILD says so, as in the sanitizers' builds, and eight of their sources are compiled as one there,
# which takes a third of the time; libraries that are not optimized there do without the headers. The release build has
# neither for them: each source includes what it needs, and that its own header stands alone is proved by being its first
# include.

# Of sources that only read flags and files and write messages: fast to compile rather than to run. RelWithDebInfo is what
# the sanitizers take, whose checks in optimized code take three times as long to compile.
set(SPILLWAY_UNOPTIMIZED $<$<CONFIG:Release>:-O1> $<$<CONFIG:RelWithDebInfo>:-O0>)

option(SPILLWAY_FAST_BUILD "Precompile headers that sources share, and compile several sources as one" OFF)

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

if(SPILLWAY_FAST_BUILD)
  spillway_add_precompiled_headers(spillway_library_headers LIBRARY
    <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>
    <absl/time/time.h> <algorithm> <deque> <functional> <map> <memory> <optional> <string> <thread> <vector>)
  target_link_libraries(spillway_library_headers PRIVATE absl::flat_hash_map absl::statusor absl::strings absl::time)
endif()

# A source with kernels includes itself once for each instruction set (Highway's foreach_target.h), so it stays by itself.
function(spillway_join_sources target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
    file(STRINGS ${source} kernels REGEX "HWY_TARGET_INCLUDE" LIMIT_COUNT 1)
    if(kernels)
      set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

# A target that shares no headers with the library: those that are named. Its sources are compiled one by one.
function(spillway_build_fast_with target)
  if(SPILLWAY_FAST_BUILD)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    target_compile_options(${target} PRIVATE ${SPILLWAY_NO_PCH_TIMESTAMP})
  endif()
endfunction()

# Targets that are optimized in the release build alone. The library's shared headers are of optimized sources, so they
# do without, and are compiled in half the time all the same.
function(spillway_build_unoptimized)
  if(SPILLWAY_FAST_BUILD)
    foreach(target IN LISTS ARGN)
      target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
      spillway_join_sources(${target})
    endforeach()
  endif()
endfunction()

# Targets that take the library's shared headers.
function(spillway_build_fast)
  if(SPILLWAY_FAST_BUILD)
    foreach(target IN LISTS ARGN)
      target_precompile_headers(${target} REUSE_FROM spillway_library_headers)
      target_compile_options(${target} PRIVATE ${SPILLWAY_NO_PCH_TIMESTAMP})
      spillway_join_sources(${target})
    endforeach()
  endif()
endfunction()
