#!/bin/bash
# Once a node: copies the image to the node's own disk. What is summed is what was read, in one pass. The node stands in
# the directory: where nodes share the disk, a job is refused, and nothing of another node's is removed. Of a run without
# a scheduler (PID.START.BOOT, of the machine that submits) its session here stands there, too, and of which boot and
# space its number is: a session without a process is that of a run that was killed outright, with its ranks.
# The directory is gpu-runner-stage-JOB~NUMBER, with a number that is not known before the job starts: another user who
# may write there has not taken the name.
# Arguments: the job's directory; the second and third of is_left; the image, its bytes, its SHA-256 (or nothing); what
# else is to be done once a node.
set -uo pipefail
# shellcheck source=../../leftovers.sh
. "${BASH_SOURCE%/*}/leftovers.sh" || exit
boot=$(cat /proc/sys/kernel/random/boot_id) space=$(readlink /proc/self/ns/pid)
# shellcheck disable=SC2086  # the fields of a line
session() { local stat; read -r stat <"$1" && set -- ${stat##*) } && echo "$4"; } 2>/dev/null
job_of() { local name=${1##*/gpu-runner-stage-}; echo "${name%~*}"; }
is_dead() {
  [[ $(job_of "$1") =~ ^[0-9]+[.][0-9]+[.][0-9a-f]{8}$ ]] || return
  local own booted numbers process
  read -r own booted numbers <"$1/session" || return
  [ "$booted" = "$boot" ] || return 0
  [ "$numbers" = "$space" ] || return
  for process in /proc/[0-9]*/stat; do [ "$(session "$process")" != "$own" ] || return; done
} 2>/dev/null
say() { echo "$(hostname): cannot stage the image: $*" >&2; rm -rf -- "$stage"; exit 1; }
stage=$1 live=$2 alone=$3 image=$4 bytes=$5 sum=$6; shift 6
ours() { [ ! -L "$1" ] && [ -O "$1" ] && [ "$(cat -- "$1/node")" = "$(uname -n)" ]; } 2>/dev/null
if [ -n "$(find "${stage%/*}/" -maxdepth 0 -perm /022 ! -perm -1000)" ] || ! is_own "${stage%/*}"; then
  echo "$(hostname): cannot stage the image: others may exchange what lies in ${stage%/*} (chmod +t; chown)" >&2
  exit 1
fi
own=$(job_of "$stage")
for old in "${stage%/*}/gpu-runner-stage-"*; do
  ours "$old" || continue
  job=$(job_of "$old")   # ours: of an earlier start of this job
  if [ "$job" = "$own" ] || is_dead "$old" || is_left "$job" "$live" "$alone" "$own"; then rm -rf -- "$old"; fi
done
# shellcheck disable=SC2015  # either failing is the fault
mkdir -m 700 -- "$stage" && uname -n >"$stage/node" || {
  echo "$(hostname): cannot stage the image: $stage cannot be made, or is no disk of this node alone" >&2
  exit 1
}
echo "$(session /proc/self/stat) $boot $space" >"$stage/session"
room=$(df --output=avail -B1 -- "$stage" | tail -n 1)
[ "$room" -ge "$bytes" ] || say "no room: $bytes bytes needed, $room free in ${stage%/*}"
found=$(tee -- "$stage/image.sqsh" <"$image" | sha256sum) || say "the copy of $image failed"
[ "$(stat -c %s -- "$stage/image.sqsh")" = "$bytes" ] || say "the copy has another size than $image had"
[ -z "$sum" ] || [ "${found%% *}" = "$sum" ] || say "$image is not what was converted: its SHA-256 differs"
[ $# -eq 0 ] || exec "$@"
