# SPDX-License-Identifier: Apache-2.0
#
# How tests are built and named: one program per folder, one ctest entry per source file.
#
#   spillway_test_program(engine_tests LIBS spillway_engine)   # build/<preset>/tests/engine_tests
#   spillway_test(mover_lease_test LABELS unit threads)        # mover_lease_test.cc: engine_tests --file mover_lease_test
#
# Labels: `unit` (every machine), `uring` (io_uring must work), `gpu`, `reference`, `slow`. A test that uses threads, streams
# or a real I/O engine also has the label `threads`. The thread sanitizer's build has only tests with this label. A test
# without it fails if it starts a thread or sets up a ring (tests/main.cc).
#
# ctest reports an entry as skipped if every case of it was skipped (exit code 77, tests/main.cc).

set(SPILLWAY_IS_SANITIZED OFF)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  set(SPILLWAY_IS_SANITIZED ON)
endif()

# Tests are compiled with little optimization, and the headers that most of them include are precompiled. That halves the
# time of a build from scratch.
if(SPILLWAY_TESTS)
  spillway_add_precompiled_headers(spillway_test_headers PROGRAM <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <filesystem> <functional>)
  target_link_libraries(spillway_test_headers PRIVATE GTest::gtest GTest::gmock absl::statusor absl::strings)
  target_compile_options(spillway_test_headers PRIVATE ${SPILLWAY_UNOPTIMIZED})
  add_custom_target(spillway_tests)  # all test programs
endif()

# Names the program of the folder's tests. spillway_test creates it for the first test and adds the sources.
macro(spillway_test_program name)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  set(SPILLWAY_TEST_PROGRAM ${name})
  set(SPILLWAY_TEST_PROGRAM_LIBS ${ARG_LIBS})
endmacro()

function(spillway_make_test_program name)
  add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/main.cc)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest GTest::gmock ${CMAKE_DL_LIBS})
  target_compile_options(${name} PRIVATE ${SPILLWAY_UNOPTIMIZED} ${SPILLWAY_NO_PCH_TIMESTAMP})
  target_compile_definitions(${name} PRIVATE SPILLWAY_EXPECTS_CUDA=$<BOOL:${SPILLWAY_EXPECTS_CUDA}>)
  target_precompile_headers(${name} REUSE_FROM spillway_test_headers)
  add_dependencies(spillway_tests ${name})
endfunction()

# spillway_test(NAME LABELS label... [COMPUTES] [ALONE LIBS target...]) adds the test NAME.cc of the folder. COMPUTES is for
# a test that computes much itself; it is optimized. ALONE makes it a separate program, with its own libraries.
function(spillway_test name)
  cmake_parse_arguments(ARG "COMPUTES;ALONE" "" "LIBS;LABELS" ${ARGN})
  get_property(names GLOBAL PROPERTY SPILLWAY_TEST_NAMES)
  if(name IN_LIST names)
    message(FATAL_ERROR "another folder has a test ${name}, and ctest would know them by one name: rename one")
  endif()
  set_property(GLOBAL APPEND PROPERTY SPILLWAY_TEST_NAMES ${name})
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread" AND NOT "threads" IN_LIST ARG_LABELS)
    return()
  endif()
  set(program ${SPILLWAY_TEST_PROGRAM})
  set(libs ${SPILLWAY_TEST_PROGRAM_LIBS})
  if(ARG_ALONE)
    set(program ${name})
    set(libs ${ARG_LIBS})
  endif()
  if(NOT TARGET ${program})
    spillway_make_test_program(${program} ${libs})
  endif()
  target_sources(${program} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${name}.cc)
  if(ARG_COMPUTES)
    set_source_files_properties(${name}.cc PROPERTIES
      SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>;$<$<CONFIG:RelWithDebInfo>:-O2>")
  endif()
  set(command ${program} --file ${name})
  if(NOT "threads" IN_LIST ARG_LABELS)
    list(APPEND command --one-thread)
  endif()
  add_test(NAME ${name} COMMAND ${command})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 SKIP_RETURN_CODE 77)
endfunction()

# Adds the test NAME_gpu with the label gpu. It runs the instances */cuda of the test NAME, which are for a GPU. Without a
# GPU, ctest lists it as skipped.
function(spillway_gpu_test name)
  if(NOT TEST ${name})
    return()
  endif()
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=-*/cuda")
  add_test(NAME ${name}_gpu COMMAND ${SPILLWAY_TEST_PROGRAM} --file ${name} --gtest_filter=*/cuda)
  set_tests_properties(${name}_gpu PROPERTIES LABELS gpu TIMEOUT 600 RUN_SERIAL ON SKIP_RETURN_CODE 77)
endfunction()

# Adds the test NAME_all with the label slow: the test NAME with all cases instead of a sample (tests/exhaustive.h).
function(spillway_exhaustive_test name)
  if(NOT TEST ${name})
    return()
  endif()
  if(TARGET ${name})
    set(program ${name})
  else()
    set(program ${SPILLWAY_TEST_PROGRAM})
  endif()
  add_test(NAME ${name}_all COMMAND ${program} --file ${name})
  set_tests_properties(${name}_all PROPERTIES LABELS slow TIMEOUT 3600 ENVIRONMENT SPILLWAY_EXHAUSTIVE=1
                       SKIP_RETURN_CODE 77)
endfunction()
