#!/bin/bash
# Charliecloud.
#
#     directories DIRECTORY    once a node: makes the directory below which ch-run mounts images
#     run COMMAND ...          each rank
#
# shellcheck source=../../leftovers.sh
. "${0%/*}/leftovers.sh"
# Whether it is a directory of this user's: one look, which follows no link.
is_ours() {
  local device
  device=$(find "$1" -maxdepth 0 -type d -user "$(id -u)" -printf %D 2>/dev/null)
  [ -n "$device" ] && is_believed "$device" "$1"
}
# Beside ch-run's own, which anyone can make first: `place`, which only the ranks of this job know.
find_place() {
  place=$(printf 'mount %s' "${RUNNER_RDV_KEY-}" | sha256sum)
  place=${1%/*}/gpu-runner-ch-$(id -u)-${place:0:16}
}
case $1 in
directories)
  # Whoever owns it can exchange the root below it for another; where /var/tmp is sticky, what is ours stays there.
  [ -z "$(find "${2%/*}/" -maxdepth 0 -perm /022 ! -perm -1000)" ] || {
    echo "$(hostname): cannot mount the image at $2: others may rename what is in ${2%/*}; fix: chmod +t ${2%/*}" >&2
    exit 1
  }
  mkdir -m 700 -- "$2" 2>/dev/null
  if is_ours "$2"; then mkdir -m 700 -- "$2/mnt" 2>/dev/null; fi
  if is_ours "$2" && is_ours "$2/mnt"; then
    chmod 700 -- "$2" "$2/mnt"
  else
    find_place "$2"
    mkdir -m 700 -- "$place" || is_ours "$place" || exit 1
  fi
  ;;
run)
  # Slurm signals every process of a step, and one ch-run of a node serves the image from a process of its own: ended by
  # a signal that is meant for the program, it would take the image from under all ranks. So ch-run is left out; the
  # launcher below it listens again.
  trap "" HUP INT TERM USR1 USR2
  unset_unsafe TMPDIR   # ch-run has it as /tmp in there, where root looks like any other user
  # Ranks find each other by files of the tag's name in /dev/shm, where anybody may put some before: so it is no job's
  # number, but what only these ranks know.
  if [[ $3 == --join-ct=* ]]; then
    tag=$(printf %s "$RUNNER_RDV_KEY" | sha256sum)
    set -- "${@:1:2}" "--join-tag=${tag%% *}" "${@:3}"
  fi
  find_place "/var/tmp/$USER.ch"
  if is_ours "$place"; then set -- "${@:1:2}" "--mount=$place" "${@:3}"; fi
  exec "${@:2}"
  ;;
esac
