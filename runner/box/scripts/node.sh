#!/bin/sh
# One node of a box, in its own mount and UTS namespace: a name of its own and memory of its own, then slurmd.
# Containers and PMIx keep per-node state in /run, frameworks share memory of a node's ranks in /dev/shm, Charliecloud
# mounts below /var/tmp; with one of each for all, nodes would clash.
set -eu
hostname "$1"
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 shm /dev/shm
# Unless something of the host is seen below it: it would be hidden.
grep -q '^[^ ]* /var/tmp/' /proc/self/mounts || mount -t tmpfs -o mode=1777 tmp /var/tmp
mkdir -p /run/lock "/var/box/spool/$1"
echo "$1" >/run/hostname
mount --bind /run/hostname /etc/hostname
exec sh /etc/box/as.sh slurmd -N "$1" -D
