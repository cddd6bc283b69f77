# SPDX-License-Identifier: Apache-2.0
#
# spillway_version: one object file with the version and the commit of the build. Only the shared library
# and the command link it, so that a commit does not relink every test.
#
# If SPILLWAY_COMMIT_FILE is set, this file is the script that each build runs. It writes that header, but
# only if the commit has changed.

if(SPILLWAY_COMMIT_FILE)
  execute_process(COMMAND git -C ${SPILLWAY_SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    set(commit "unknown")
  endif()
  set(text "#define SPILLWAY_COMMIT \"${commit}\"\n")
  set(old "")
  if(EXISTS ${SPILLWAY_COMMIT_FILE})
    file(READ ${SPILLWAY_COMMIT_FILE} old)
  endif()
  if(NOT text STREQUAL old)
    file(WRITE ${SPILLWAY_COMMIT_FILE} "${text}")
  endif()
  return()
endif()

set(SPILLWAY_COMMIT_HEADER ${PROJECT_BINARY_DIR}/generated/spillway_commit.h)
add_custom_target(spillway_commit
  COMMAND ${CMAKE_COMMAND} -DSPILLWAY_COMMIT_FILE=${SPILLWAY_COMMIT_HEADER}
          -DSPILLWAY_SOURCE_DIR=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${SPILLWAY_COMMIT_HEADER}
  COMMENT "Asking git for the commit"
  VERBATIM)
add_library(spillway_version OBJECT src/base/version.cc)
add_dependencies(spillway_version spillway_commit)
target_include_directories(spillway_version PRIVATE ${PROJECT_BINARY_DIR}/generated)
target_compile_definitions(spillway_version PRIVATE SPILLWAY_VERSION="${PROJECT_VERSION}")
