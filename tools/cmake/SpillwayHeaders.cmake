# SPDX-License-Identifier: Apache-2.0
#
# spillway_headers: compiles each header that is not the first include of its own source as a separate translation unit,
# so that no header depends on another file's earlier includes. It is not part of `all`; continuous integration builds it.

# The globs only make CMake run again when a file is added or removed.
file(GLOB_RECURSE asked_again CONFIGURE_DEPENDS
     include/*.h src/*.h io/*.h tiers/*.h bench/*.h tests/*.h tools/*.h
     src/*.cc io/*.cc tiers/*.cc bench/*.cc tools/*.cc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/checks/includes.py)
execute_process(COMMAND /usr/bin/python3 ${PROJECT_SOURCE_DIR}/tools/checks/includes.py --alone
                OUTPUT_VARIABLE headers OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" headers "${headers}")
set(sources "")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER ${header} name)
  set(source ${PROJECT_BINARY_DIR}/generated/headers/${name}.cc)
  # Included twice, because a second include must also compile.
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
  list(APPEND sources ${source})
endforeach()
add_library(spillway_headers OBJECT EXCLUDE_FROM_ALL ${sources})
set_target_properties(spillway_headers PROPERTIES EXPORT_COMPILE_COMMANDS OFF)
# -fsyntax-only would save 4 % of the time, but ccache caches objects only.
target_compile_options(spillway_headers PRIVATE -O0 -Wno-unused-function)
target_compile_definitions(spillway_headers PRIVATE SPILLWAY_EXPECTS_CUDA=0)
target_link_libraries(spillway_headers PRIVATE
  spillway_store spillway_engine spillway_optim spillway_capi nlohmann_json::nlohmann_json PkgConfig::liburing PkgConfig::xxhash PkgConfig::hwy
  SQLite::SQLite3 GTest::gtest GTest::gmock)
if(SPILLWAY_TOOLS)
  target_link_libraries(spillway_headers PRIVATE
    PkgConfig::openblas)
endif()
