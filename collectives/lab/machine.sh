#!/bin/sh
# The first process of a machine, in namespaces of its own below the switch's. Its standard input is a
# pipe from the lab's maker: the machine is off when the pipe ends.
#
#   machine.sh NAME ADDRESS RATE BURST DELAY LOSS ...    as cable.sh
set -e
name=$1 address=$2 rate=$3 burst=$4 loss=$6
hostname "$name"
mount -t tmpfs -o size=64m disk /run/disk
mount -t tmpfs -o size=64m shm /dev/shm
cp /run/lab/hosts "/run/lab/hosts-$name"
mount --bind "/run/lab/hosts-$name" /etc/hosts
# Without addresses of IPv6 no interface speaks before it is asked to.
[ ! -d /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
# In the switch's network this process, which is pid 1 here, takes its end of the cable.
nsenter --net=/run/lab/net ip link set "$name-eth0" netns 1 name eth0
ip -batch - << END
link set lo up
addr add $address/24 dev eth0
link set eth0 up
END
[ -z "$rate" ] || tc qdisc add dev eth0 root tbf rate "$rate" burst "$burst" latency 100ms
if [ -n "$loss" ]; then
    # A loss takes single packets: by default the kernel hands over up to 64 KB at once.
    ip link set eth0 gso_max_segs 1
    nft add table inet loss
    nft add chain inet loss input '{ type filter hook input priority 0; }'
    nft add rule inet loss input iif eth0 numgen random mod 100000 '<' "$loss" drop
fi
echo ready
# subtle: orphans of a PID namespace become children of its first process. The kernel reaps them
# where SIGCHLD is ignored.
exec env --ignore-signal=CHLD cat > /dev/null
