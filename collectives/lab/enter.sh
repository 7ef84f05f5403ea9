#!/bin/sh
# In the switch: run a command on a machine.
#
#   enter.sh NAME COMMAND ...
[ -e "/run/lab/$1" ] || { echo "$1 is off" >&2; exit 255; }
read -r pid < "/run/lab/$1"
shift
exec nsenter -t "$pid" -m -u -i -n --pid="/proc/$pid/ns/pid_for_children" --wdns="$PWD" \
    setpriv --pdeathsig KILL "$@"
