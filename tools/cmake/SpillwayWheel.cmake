# SPDX-License-Identifier: Apache-2.0
#
# What the wheel (pyproject.toml) has of the build: the library in spillway/lib, and beside it all that it needs but what
# every Linux with Python has. Its search path reaches what they need in turn: DT_RPATH, not DT_RUNPATH.

set_target_properties(spillway PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(spillway PRIVATE -Wl,--disable-new-dtags)
install(TARGETS spillway RUNTIME_DEPENDENCY_SET spillway_needs LIBRARY DESTINATION spillway/lib COMPONENT python)
install(RUNTIME_DEPENDENCY_SET spillway_needs
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so"
  LIBRARY DESTINATION spillway/lib COMPONENT python)
