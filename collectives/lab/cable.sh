#!/bin/sh
# In the switch: lay a cable from the switch, which becomes the machine's eth0, and start the machine.
#
#   cable.sh NAME ADDRESS RATE BURST DELAY LOSS PYTHON RELAY    "" stands for what is not wanted
set -e
name=$1 rate=$3 burst=$4 delay=$5 python=$7 relay=$8
ip link add "$name" type veth peer name "$name-eth0"
port=$name
if [ -n "$delay" ]; then
    port=$name-port
    ip link add "$port" type veth peer name "$name-far"
    ip -batch - << END
link set $name-far up
link set $name up
END
    "$python" -IS "$relay" "$name" "$name-far" "$delay" < /dev/null > "/run/lab/$name-relay" 2>&1 &
fi
ip -batch - << END
link set $port master switch
link set $port up
END
[ -z "$rate" ] || tc qdisc add dev "$name" root tbf rate "$rate" burst "$burst" latency 100ms
echo $$ > "/run/lab/$name"
exec unshare -nmuip --fork --mount-proc "$(dirname "$0")/machine.sh" "$@"
