#!/bin/bash
# Once a node: where Pyxis was killed outright with its job, its container stays: pyxis_JOB.STEP, or pyxis_JOB_JOB.STEP
# where containers are a job's (pyxis_slurmstepd.c, 0.24). Removed are the user's own of jobs that are gone, on a disk of
# this node, and with a mount point of ours, since a user may name a container 25.10. One that was killed while it was
# unpacked may have none yet: it is newer than the record that its job left beside it.
# Arguments: the second to fourth of is_left. What goes wrong here fails no job.
exec >>logs/cleanup.log 2>&1
# shellcheck source=../../leftovers.sh
. "${BASH_SOURCE%/*}/leftovers.sh"
printf 'enroot\t%s\n' "$(enroot version 2>&1)" >"versions-$(uname -n)"   # of this node
data=$(enroot_data)
# ext2-4, XFS, Btrfs, ZFS, F2FS, tmpfs, overlayfs (types of stat(1)): another cluster may share what is on others.
case $data:$(stat -f -c %t -- "$data" 2>/dev/null) in
/*:ef53 | /*:58465342 | /*:9123683e | /*:2fc12fc1 | /*:f2f52010 | /*:1021994 | /*:794c7630) ;;
*) exit 0 ;;
esac
is_own "$data" || exit 0
record=$data/.gpu-runner-job-
rm -f -- "$record${3%%[!0-9]*}"
(set -C; : >"$record${3%%[!0-9]*}")   # through no link that another user has left
for old in "$data"/pyxis_*; do
  name=${old##*/}
  [[ $name =~ ^pyxis_([1-9][0-9]*_)?([1-9][0-9]*)[.](0|[1-9][0-9]*)$ ]] || continue
  of=${BASH_REMATCH[1]%_} job=${BASH_REMATCH[2]}
  [ "${of:-$job}" = "$job" ] && [ ! -L "$old" ] && [ -O "$old" ] || continue
  [ -d "$old/results" ] || { [ -e "$record$job" ] && [ "$old" -nt "$record$job" ]; } || continue
  if is_left "$job" "$1" "$2" "$3"; then
    echo "$(uname -n): removing $name, of a job that has ended"
    enroot remove --force "$name"
  fi
done
for old in "$record"*; do
  if is_left "${old#"$record"}" "$1" "$2" "$3"; then rm -f -- "$old"; fi
done
exit 0
