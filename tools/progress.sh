# SPDX-License-Identifier: Apache-2.0
#
# Lines of progress beside a command that is silent for long; for bash scripts to source:
#
#   with_progress 'installing Debian packages' apt-get install ...
#
# writes `== still installing Debian packages (15 s)` to stderr every 15 seconds. Instead of words it takes the name of
# a function that prints them. The command keeps its standard streams, and its exit status is returned.

with_progress() {
  local words=$1 status=0 alive
  shift
  # The ticker ends when its standard input does. Only this shell holds the other end, so that no ticker outlives it.
  exec {alive}> >(tick_until_end_of_input "$words")
  local ticker=$!
  "$@" {alive}>&- || status=$?
  exec {alive}>&-
  wait "$ticker" || true
  return "$status"
}

tick_until_end_of_input() {
  local words=$1 began=$SECONDS status
  while true; do
    status=0
    read -r -t 15 || status=$?
    ((status > 128)) || return 0 # not a timeout
    ! declare -F "$1" >/dev/null || words=$("$1") || true
    # On a terminal, in place of a line that the command has not ended.
    [[ ! -t 2 ]] || printf '\r\033[K' >&2
    printf '== still %s (%d s)\n' "$words" $((SECONDS - began)) >&2
  done
}
