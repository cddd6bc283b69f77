# SPDX-License-Identifier: Apache-2.0
#
# Settings of every target: language, warnings and dependencies; and the functions that folders use.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
include(GNUInstallDirs)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
find_program(SPILLWAY_CCACHE ccache)
if(SPILLWAY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SPILLWAY_CCACHE})
endif()

# There is no -march, because kernels dispatch at run time. Contraction is off, because results must not
# depend on which operations a compiler fuses. The options apply to this project's targets only and are
# not exported.
set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
             -Wno-missing-field-initializers -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND warnings -Wno-restrict)  # g++ 12 warns of overlaps in std::string's operator+ (GCC bug 105329)
else()
  # base::Mutex has the annotations for -Wthread-safety. libstdc++ 12's stable_sort uses a function that
  # libstdc++ itself deprecates.
  list(APPEND warnings -Wthread-safety -Wno-deprecated-declarations)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Werror>")
# The code that nvcc generates does not pass -Wpedantic, so the host compiler has fewer warnings for it.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror>")
include_directories(${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
if(SPILLWAY_TOOLS)
  find_package(CLI11 REQUIRED)
  pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
endif()
if(SPILLWAY_TESTS)
  find_package(GTest REQUIRED)
endif()
if(SPILLWAY_BENCH)
  find_package(benchmark REQUIRED)
endif()

# Adds a folder to the build if it has a CMakeLists.txt.
function(spillway_add_folder folder)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt)
    add_subdirectory(${folder})
  endif()
endfunction()

if(NOT SPILLWAY_CUDA STREQUAL "OFF")
  # nvcc is searched for separately from CMake's check below. That check also fails if the toolkit does not fit the
  # compiler, and tests for a GPU must not be skipped in that case.
  find_program(SPILLWAY_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(SPILLWAY_NVCC)
    set(SPILLWAY_EXPECTS_CUDA ON)
    if(NOT CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)  # of a configuration before nvcc was there
      if(NOT DEFINED ENV{CUDACXX})
        set(ENV{CUDACXX} ${SPILLWAY_NVCC})
      endif()
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES all-major)  # and PTX of the newest, for later GPUs
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
  else()
    find_package(CUDAToolkit QUIET)  # for its version: an old toolkit fails the check if it does not fit the compiler
  endif()
  set(minimum_cuda 12.0)
  if(CUDAToolkit_VERSION AND CUDAToolkit_VERSION VERSION_LESS minimum_cuda)
    if(SPILLWAY_CUDA STREQUAL "ON")
      message(FATAL_ERROR "SPILLWAY_CUDA=ON, but ${CUDAToolkit_NVCC_EXECUTABLE} is of CUDA ${CUDAToolkit_VERSION}, and "
                          "Spillway needs ${minimum_cuda} or newer: configure with SPILLWAY_CUDA=OFF, or with --fresh "
                          "and the nvcc of a newer toolkit in CUDACXX")
    endif()
    message(STATUS "CUDA: none, because ${CUDAToolkit_NVCC_EXECUTABLE} is of CUDA ${CUDAToolkit_VERSION}, and Spillway "
                   "needs ${minimum_cuda} or newer")
    set(SPILLWAY_EXPECTS_CUDA OFF)
  elseif(CMAKE_CUDA_COMPILER)
    set(SPILLWAY_HAS_CUDA ON)
    set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 supports no later standard for nvcc
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER}, ${CUDAToolkit_VERSION}")
  elseif(SPILLWAY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPILLWAY_CUDA=ON, but no nvcc was found: install the CUDA Toolkit, put nvcc on "
                        "the path or set CUDACXX, or configure with SPILLWAY_CUDA=AUTO or OFF")
  endif()
endif()

# Compiles a target's CUDA sources as kernels of src/simt: for the GPUs that training takes, from compute capability 8.0 on.
# Contraction is off as on the host, and a spilled register is an error.
function(spillway_build_kernels target)
  set(architectures 80-real 90)
  if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
    set(architectures 80-real 90-real 100-real 120)
  endif()
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_VISIBILITY_PRESET hidden)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xptxas=--warn-on-spills,--warning-as-error>")
endfunction()
