# SPDX-License-Identifier: Apache-2.0
#
# Makes a build from scratch fast. Tests use precompiled headers in every build. With SPILLWAY_FAST_BUILD, as in the release
# build and the sanitizers', the library and the command use them too, and up to eight of their sources are compiled as one.
# That takes half of the time in the release build, and a third under a sanitizer. The builds `dev` and `clang` do neither: a
# change compiles one source, and each source includes what it needs, its own header first, which proves that the header
# compiles alone.

# Options for sources that only read flags and files and write messages. They favour compile time over run time. The
# sanitizers' builds are RelWithDebInfo; a sanitizer's checks in optimized code take three times as long to compile.
set(SPILLWAY_UNOPTIMIZED $<$<CONFIG:Release>:-O1> $<$<CONFIG:RelWithDebInfo>:-O0>)

option(SPILLWAY_FAST_BUILD "Precompile headers that sources share, and compile several sources as one" OFF)

# spillway_add_precompiled_headers(NAME PROGRAM|LIBRARY HEADER...) adds a target whose precompiled headers other targets
# of its kind reuse. They must have the same options.
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

# Leaves the headers' times out of the precompiled header, because they would keep ccache from finding an object.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(SPILLWAY_NO_PCH_TIMESTAMP "SHELL:-Xclang -fno-pch-timestamp")
endif()

if(SPILLWAY_FAST_BUILD)
  spillway_add_precompiled_headers(spillway_library_headers LIBRARY
    <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>
    <absl/time/time.h> <algorithm> <deque> <functional> <map> <memory> <optional> <string> <thread> <vector>)
  target_link_libraries(spillway_library_headers PRIVATE absl::flat_hash_map absl::statusor absl::strings absl::time)
endif()

# Compiles eight sources of the target as one. A source with kernels is compiled alone, because it includes itself once for
# each instruction set (Highway's foreach_target.h).
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

# For a target that does not reuse the library's precompiled headers. It precompiles the headers that are named, and its
# sources are compiled one by one.
function(spillway_build_fast_with target)
  if(SPILLWAY_FAST_BUILD)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    target_compile_options(${target} PRIVATE ${SPILLWAY_NO_PCH_TIMESTAMP})
  endif()
endfunction()

# For targets that reuse the library's precompiled headers.
function(spillway_build_fast)
  if(SPILLWAY_FAST_BUILD)
    foreach(target IN LISTS ARGN)
      target_precompile_headers(${target} REUSE_FROM spillway_library_headers)
      target_compile_options(${target} PRIVATE ${SPILLWAY_NO_PCH_TIMESTAMP})
      spillway_join_sources(${target})
    endforeach()
  endif()
endfunction()

# For targets that are optimized in the release build only. In the sanitizers' builds they cannot reuse the library's
# precompiled headers, which are compiled with optimization. They still compile in half the time.
function(spillway_build_unoptimized)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    spillway_build_fast(${ARGN})
  elseif(SPILLWAY_FAST_BUILD)
    foreach(target IN LISTS ARGN)
      target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
      spillway_join_sources(${target})
    endforeach()
  endif()
endfunction()
