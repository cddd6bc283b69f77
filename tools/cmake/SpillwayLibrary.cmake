# SPDX-License-Identifier: Apache-2.0
#
# Makes the shared library `spillway` from the folders' targets, and says what `cmake --install`
# installs: headers, library, CMake package, pkg-config file.

set(folders "")
foreach(folder IN ITEMS spillway_base spillway_io spillway_store spillway_tiers spillway_engine spillway_optim
                        spillway_capi)
  if(TARGET ${folder})
    list(APPEND folders ${folder})
  endif()
endforeach()
add_library(spillway SHARED)
add_library(spillway::spillway ALIAS spillway)
foreach(folder IN LISTS folders)
  target_sources(spillway PRIVATE $<TARGET_OBJECTS:${folder}>)
endforeach()
target_sources(spillway PRIVATE $<TARGET_OBJECTS:spillway_version>)
set(exports ${PROJECT_SOURCE_DIR}/tools/cmake/exports.map)
set_target_properties(spillway PROPERTIES
  LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
  LINK_DEPENDS ${exports})
target_link_options(spillway PRIVATE -Wl,--version-script=${exports})
# The folders' targets bring their own dependencies. Their archives add nothing to the objects above.
target_link_libraries(spillway PUBLIC absl::status absl::statusor PRIVATE ${folders})
target_include_directories(spillway PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(spillway PUBLIC cxx_std_20)

if(SKBUILD)
  return()  # a wheel has the library under one name only, and no headers (SpillwayWheel.cmake)
endif()

set_target_properties(spillway PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
install(TARGETS spillway EXPORT spillway_targets)
install(EXPORT spillway_targets NAMESPACE spillway:: FILE spillway-targets.cmake DESTINATION ${package_dir})
install(DIRECTORY include/spillway DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
configure_package_config_file(tools/cmake/spillway-config.cmake.in spillway-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(spillway-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/spillway-config.cmake ${PROJECT_BINARY_DIR}/spillway-config-version.cmake
        DESTINATION ${package_dir})
# Relative, so that an installed tree may be moved. The folders may be absolute paths.
set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH SPILLWAY_PC_PREFIX ${pc_dir} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH SPILLWAY_PC_LIBDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH SPILLWAY_PC_INCLUDEDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(tools/cmake/spillway.pc.in spillway.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/spillway.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
