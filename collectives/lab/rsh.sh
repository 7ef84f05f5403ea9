#!/bin/sh
# In the switch: what mpiexec calls in place of ssh. Like ssh it hands the words to a shell.
#
#   rsh.sh NAME COMMAND ...
name=$1
shift
exec "$(dirname "$0")/enter.sh" "$name" sh -c "$*"
