# SPDX-License-Identifier: Apache-2.0
#
# Installs the wheel's part of the build (pyproject.toml): the library in spillway/lib, the command in spillway/bin, and
# beside the library the libraries that both need, except those that every Linux with Python has. The search path is
# DT_RPATH, not DT_RUNPATH, so that it also applies to the dependencies of these libraries.

set_target_properties(spillway PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(spillway_command PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
target_link_options(spillway PRIVATE -Wl,--disable-new-dtags)
target_link_options(spillway_command PRIVATE -Wl,--disable-new-dtags)
install(TARGETS spillway LIBRARY DESTINATION spillway/lib COMPONENT python)
install(TARGETS spillway_command RUNTIME DESTINATION spillway/bin COMPONENT python)
# Copies each library under the name by which it is loaded, because a wheel has no links.
install(CODE [[
  set(package "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/spillway")
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES "${package}/lib/libspillway.so" EXECUTABLES "${package}/bin/spillway"
    RESOLVED_DEPENDENCIES_VAR needs
    PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so")
  foreach(need IN LISTS needs)
    get_filename_component(name "${need}" NAME)
    if(NOT need STREQUAL "${package}/lib/${name}")
      file(COPY_FILE "${need}" "${package}/lib/${name}")
    endif()
  endforeach()
]] COMPONENT python)
