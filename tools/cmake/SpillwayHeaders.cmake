# SPDX-License-Identifier: Apache-2.0
#
# spillway_headers: compiles each header as a translation unit of its own, so that no header leans on
# what another file included before it. Not part of `all`; continuous integration builds it.

file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
     include/*.h src/*.h io/*.h tiers/*.h bench/*.h tests/*.h tools/*.h)
list(FILTER headers EXCLUDE REGEX "_cuda\\.h$")  # need CUDA's, which not every build has
set(sources "")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER ${header} name)
  set(source ${PROJECT_BINARY_DIR}/generated/headers/${name}.cc)
  # Twice: a header must also stand being included again.
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
  list(APPEND sources ${source})
endforeach()
add_library(spillway_headers OBJECT EXCLUDE_FROM_ALL ${sources})
set_target_properties(spillway_headers PROPERTIES EXPORT_COMPILE_COMMANDS OFF)
# What is instantiated in a header is compiled; optimizing it would only take time.
target_compile_options(spillway_headers PRIVATE -O0 -Wno-unused-function)
target_compile_definitions(spillway_headers PRIVATE SPILLWAY_EXPECTS_CUDA=0)
target_link_libraries(spillway_headers PRIVATE
  spillway_store spillway_engine spillway_optim PkgConfig::liburing PkgConfig::xxhash PkgConfig::hwy
  SQLite::SQLite3 GTest::gtest GTest::gmock)
if(SPILLWAY_TOOLS)
  target_link_libraries(spillway_headers PRIVATE
    nlohmann_json::nlohmann_json CLI11::CLI11 PkgConfig::openblas)
endif()
