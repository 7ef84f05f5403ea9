#!/bin/sh
# The first process of the switch, in namespaces of its own: the switch between the machines, and the
# host `login`. Its standard input is a pipe from the lab's maker. When the pipe ends, so does all.
#
#   switch.sh ADDRESS    of login; then the table of hosts on standard input, up to an empty line
set -e
hostname login
mount -t tmpfs -o mode=755 run /run # also hides the sockets of the real machine's services
mount -t tmpfs shm /dev/shm
mkdir /run/lab /run/shared /run/disk
touch /run/lab/net && mount --bind /proc/self/ns/net /run/lab/net
while read -r line && [ -n "$line" ]; do echo "$line"; done > /run/lab/hosts
echo 'hosts: files' > /run/lab/nsswitch.conf
for file in hosts nsswitch.conf; do
    [ ! -e "/etc/$file" ] || mount --bind "/run/lab/$file" "/etc/$file"
done
# Without addresses of IPv6 no interface speaks before it is asked to.
[ ! -d /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
# subtle: a bridge without an address of its own takes that of a port, and another one when that
# machine goes. Then nobody would find login until the others ask for its address again.
ip -batch - << END
link set lo up
link add switch address 02:00:00:00:00:01 type bridge
addr add $1/24 dev switch
link set switch up
END
echo ready
# subtle: orphans of a PID namespace become children of its first process. The kernel reaps them
# where SIGCHLD is ignored.
exec env --ignore-signal=CHLD cat > /dev/null
