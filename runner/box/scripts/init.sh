#!/bin/sh
# PID 1 of a box, second half: on the box's own root. Starts the daemons and reaps every process that is left to it.
set -eu
cd /
umount -l /.host
rmdir /.host
mount --make-private /

hostname -F /etc/hostname
# Every machine of the box has an address of its own. With 127.0.0.1 alone a resolver that is asked for the
# addresses "that this host can use" (AI_ADDRCONFIG), as Slurm's is, would answer that there are none.
ip link set lo up
while read -r address _name; do
    [ "$address" = 127.0.0.1 ] || ip address add "$address/32" dev lo
done </etc/hosts
# The nodes share one network stack, and so one supply of ports towards a server: closed connections may give theirs
# back at once, as the kernel lets loopback addresses do. Thousands of short ones crawl otherwise.
echo 1 2>/dev/null >/proc/sys/net/ipv4/tcp_tw_reuse || echo "ports are not used again at once" >&2

mkdir -p /var/box/munge /var/box/gpu
# Jobs' scripts and environments lie in these two. A script in the second is run by its job's own user.
mkdir -m 700 /var/box/state
mkdir -m 711 /var/box/spool
(umask 077 && dd if=/dev/urandom of=/var/box/munge/key bs=1024 count=1 2>/dev/null)
# Slurm needs device files; in a user namespace they cannot be created, but they can be bind-mounted.
while read -r gpu; do
    : >"$gpu"
    mount --bind /dev/null "$gpu"
done </etc/box/gpus

sh /etc/box/as.sh munged --foreground --force --key-file=/var/box/munge/key --socket=/var/box/munge/socket \
    --pid-file=/var/box/munge/pid --log-file=/var/log/slurm/munged.log --seed-file=/var/box/munge/seed &
tries=0
while ! [ -S /var/box/munge/socket ]; do
    tries=$((tries + 1))
    [ "$tries" -le 200 ] || { echo "munged did not open its socket within 10 s" >&2; exit 1; }
    sleep 0.05
done

sh /etc/box/as.sh slurmctld -D -c &
while read -r node; do
    unshare --mount --uts --propagation private sh /etc/box/node.sh "$node" &
done </etc/box/nodes

# Waits for all of them, and for the orphans of all of them: a box lives as long as one of its daemons.
wait
