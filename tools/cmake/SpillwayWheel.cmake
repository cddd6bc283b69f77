# SPDX-License-Identifier: Apache-2.0
#
# Installs the wheel's part of the build (pyproject.toml): the library in spillway/lib, and beside it the libraries that it
# needs, except those that every Linux with Python has. Its search path is DT_RPATH, not DT_RUNPATH, so that it also applies
# to the dependencies of these libraries.

set_target_properties(spillway PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(spillway PRIVATE -Wl,--disable-new-dtags)
install(TARGETS spillway LIBRARY DESTINATION spillway/lib COMPONENT python)
# Copies each library under the name by which it is loaded, because a wheel has no links.
install(CODE [[
  set(lib "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/spillway/lib")
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES "${lib}/libspillway.so" RESOLVED_DEPENDENCIES_VAR needs
    PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so")
  foreach(need IN LISTS needs)
    get_filename_component(name "${need}" NAME)
    if(NOT need STREQUAL "${lib}/${name}")
      file(COPY_FILE "${need}" "${lib}/${name}")
    endif()
  endforeach()
]] COMPONENT python)
