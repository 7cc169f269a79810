#!/bin/sh
# First half of a box's start: in fresh namespaces, still on the host's root, it builds the box's root and moves there.
# Arguments: the box's state directory, the pristine root, the mode (root or user).
set -eu
umask 022
state=$1 root=$2 mode=$3

# /proc is still the host's, so these are the numbers by which the host knows this process: PID 1 of the box.
read -r line </proc/self/stat
pid=${line%% *}
# shellcheck disable=SC2086  # the fields after the command's name; the start time is field 22 of proc(5)
set -- ${line##*) }
printf '%s %s %s\n' "$pid" "${20}" "$mode" >"$state/pid.new"
mv "$state/pid.new" "$state/pid"

# The pristine root below, memory above: what runs in the box never changes the cached root, and nothing stays behind.
mount -t tmpfs -o mode=755 box "$state/mnt"
cd "$state/mnt"
mkdir lower upper work merged
mount --rbind "$root" lower
# Relative names, because an overlay option may hold neither a comma nor a colon.
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work box merged
# Or a host directory that holds this mount point would bring it along when it is bound in. (Not earlier: an overlay
# clones its layers' mounts, and an unbindable one cannot be cloned.)
mount --make-runbindable "$state/mnt"
cp -R "$state/files/." merged/

tab=$(printf '\t')
while IFS=$tab read -r source target; do
    if [ -d "$source" ]; then
        mkdir -p "merged$target"
    else
        mkdir -p "merged${target%/*}"
        : >>"merged$target"
    fi
    mount --rbind "$source" "merged$target"
done <"$state/binds"

mount -t proc proc merged/proc
mount --rbind /sys merged/sys
mount -t tmpfs -o mode=755 dev merged/dev
for device in null zero full random urandom tty fuse; do
    [ -e "/dev/$device" ] || continue
    # Any user's job mounts its image by it. Without udev (50-udev-default.rules) the host's own may be for root alone.
    if [ "$device" = fuse ] && [ "$mode" = root ] && mknod -m 666 merged/dev/fuse c 10 229 2>/dev/null; then continue; fi
    : >"merged/dev/$device"
    mount --bind "/dev/$device" "merged/dev/$device"
done
mkdir merged/dev/pts merged/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts merged/dev/pts
mount -t tmpfs -o mode=1777 shm merged/dev/shm
ln -s pts/ptmx merged/dev/ptmx
ln -s /proc/self/fd merged/dev/fd
ln -s fd/0 merged/dev/stdin
ln -s fd/1 merged/dev/stdout
ln -s fd/2 merged/dev/stderr

cd merged
mkdir .host
pivot_root . .host
exec /bin/sh /etc/box/init.sh
