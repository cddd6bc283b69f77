# SPDX-License-Identifier: Apache-2.0
#
# What the wheel (pyproject.toml) has of the build: the library in spillway/lib, and beside it all that it needs but what
# every Linux with Python has. Its search path reaches what they need in turn: DT_RPATH, not DT_RUNPATH.

set_target_properties(spillway PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(spillway PRIVATE -Wl,--disable-new-dtags)
install(TARGETS spillway LIBRARY DESTINATION spillway/lib COMPONENT python)
# By the names that are looked for: a wheel has no links.
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
