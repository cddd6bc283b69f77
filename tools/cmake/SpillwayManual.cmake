# SPDX-License-Identifier: Apache-2.0
#
# Installs the manual pages and the completions, which the command prints, where man, bash and zsh find them.
install(CODE [[
  set(command "$<TARGET_FILE:spillway_command>")
  execute_process(COMMAND "${command}" man --list OUTPUT_VARIABLE pages COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "\n$" "" pages "${pages}")
  string(REPLACE "\n" ";" pages "${pages}")
  function(install_output file)
    set(path "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${file}")
    message(STATUS "Installing: ${path}")
    execute_process(COMMAND "${command}" ${ARGN} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE "${path}" "${text}")
  endfunction()
  foreach(page IN LISTS pages)
    install_output("share/man/man1/${page}.1" man ${page})
  endforeach()
  install_output(share/bash-completion/completions/spillway completion bash)
  install_output(share/zsh/site-functions/_spillway completion zsh)
]])
