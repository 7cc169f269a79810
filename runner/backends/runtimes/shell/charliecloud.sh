#!/bin/bash
# Charliecloud.
#
#     directories DIRECTORY    once a node: makes the directory below which ch-run mounts images
#     run COMMAND ...          each rank
#
case $1 in
directories)
  # The path is ch-run's own, and anyone can make it first: whoever owns it can exchange the root below it for another.
  # Owner and kind are read by one call, which follows no link; where /var/tmp is sticky, what is ours stays there.
  [ -z "$(find "${2%/*}/" -maxdepth 0 -perm /022 ! -perm -1000)" ] || {
    echo "$(hostname): cannot mount the image at $2: others may rename what is in ${2%/*}; fix: chmod +t ${2%/*}" >&2
    exit 1
  }
  for place in "$2" "$2/mnt"; do
    [ -e "$place" ] || mkdir -m 700 -- "$place"
    # shellcheck disable=SC2015  # either failing is the fault
    [ "$(LC_ALL=C stat -c '%u %F' -- "$place")" = "$(id -u) directory" ] && chmod 700 -- "$place" || {
      stat -c "$(hostname): cannot mount the image at %n: it is a %F of %U, not $(id -un)'s; fix: have it removed" \
        -- "$place" >&2
      exit 1
    }
  done
  ;;
run)
  # Slurm signals every process of a step, and one ch-run of a node serves the image from a process of its own: ended by
  # a signal that is meant for the program, it would take the image from under all ranks. So ch-run is left out; the
  # launcher below it listens again.
  trap "" HUP INT TERM USR1 USR2
  # ch-run has it as /tmp in there, where root looks like any other user.
  [ "$(find "${TMPDIR-}" -prune -type d '(' -user 0 -o -user "$(id -u)" ')' 2>/dev/null)" ] || unset TMPDIR
  # Ranks find each other by files of the tag's name in /dev/shm, where anybody may put some before: so it is no job's
  # number, but what only these ranks know.
  if [[ $3 == --join-ct=* ]]; then
    tag=$(printf %s "$RUNNER_RDV_KEY" | sha256sum)
    set -- "${@:1:2}" "--join-tag=${tag%% *}" "${@:3}"
  fi
  exec "${@:2}"
  ;;
esac
