#!/bin/sh
# In the hub: run a command on a machine.
#
#   enter.sh NAME COMMAND ...
pid=$(cat "/run/lab/$1") || exit 255
shift
exec nsenter -t "$pid" -m -u -i -n --pid="/proc/$pid/ns/pid_for_children" --wdns="$PWD" \
    setpriv --pdeathsig KILL "$@"
