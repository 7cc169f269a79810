#!/bin/sh
# One node of a box, in its own mount and UTS namespace: a name of its own and a /run of its own, then slurmd.
# Containers and PMIx keep per-node state in /run; with one /run for all, nodes would clash.
set -eu
hostname "$1"
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock "/var/box/spool/$1"
echo "$1" >/run/hostname
mount --bind /run/hostname /etc/hostname
# Charliecloud's default mount point; 0.31 fails where the tasks of a node race to make it first.
mkdir -p "/var/tmp/$(cat /etc/box/user).ch/mnt"
exec sh /etc/box/as.sh slurmd -N "$1" -D
