#!/bin/bash
# Runs a program beside a job's own, on a node of the job: in their container, if they have one, their working directory
# and with their environment. Nothing is started anew: the namespaces of one process are entered, which every user may
# whose container it is. No value of the environment is on a command line.
# Arguments: two variables, NAME=VALUE, that this job's processes have and no others; PROGRAM [ARGUMENT ...]
refuse() { echo "gpu-runner: $*" >&2; exit 1; }
enter=$(command -v nsenter) || refuse "$(uname -n) has no nsenter, which is in util-linux"
namespace() { readlink "/proc/$1/ns/$2"; }

# The oldest process of the job in a container, else of a step, else of the batch script, which has less of an
# environment. Not of this step: Slurm gives it the job's variables, too.
find_process() {
  local file number fields kind oldest='' best=-1
  while read -r file; do
    [ -O "$file" ] || continue
    grep -qzxFe "$2" "$file" || continue
    ! grep -qzxFe "SLURM_STEP_ID=${SLURM_STEP_ID-none}" "$file" || continue
    number=${file#/proc/} number=${number%/environ} kind=0
    read -r fields <"/proc/$number/stat" || continue
    read -ra fields <<<"${fields##*) }"
    [ "$(namespace "$number" mnt)" = "$(namespace self mnt)" ] || kind=2
    ! grep -qz '^SLURM_STEP_ID=' "$file" || (( kind += 1 ))
    if [ "$kind" -gt "$best" ] || { [ "$kind" -eq "$best" ] && [ "${fields[19]}" -lt "$oldest" ]; }; then
      process=$number oldest=${fields[19]} best=$kind
    fi
  done < <(grep -lzxFe "$1" /proc/[0-9]*/environ)
} 2>/dev/null

process=
for _ in {1..20}; do   # a launcher's record is there before its program is
  find_process "$1" "$2"
  [ -z "$process" ] || break
  sleep 0.5
done
[ -n "$process" ] || refuse "no process of this job that is yours is on $(uname -n)"
shift 2
taskset --all-tasks --cpu-list --pid 0-4095 $$ &>/dev/null   # all processors that the job has here: a step may be bound
options=()
for name in user mount:mnt pid ipc uts net cgroup; do
  [ "$(namespace self "${name#*:}")" = "$(namespace "$process" "${name#*:}")" ] || options+=("--${name%:*}")
done
case " ${options[*]} " in
*" --user "*) options+=(--preserve-credentials) ;;
*" --mount "*) [ "$EUID" -eq 0 ] || refuse "a program with root's rights made this container: only root may enter it" ;;
esac
start=/proc/$process/cwd root=/proc/$process/root/ images_own=
if ! [ "$root" -ef / ]; then
  options+=(--root)   # which an ordinary user may only in a container
  [ "$(stat -L -c %d "$start")" != "$(stat -c %d "$root")" ] || images_own=yes
fi
if [ -z "$images_own" ] && [ "$(find -L "$start" -prune -perm -o=w)" ]; then   # others may have put modules
  echo "note: the job's program is in $(readlink "$start"), where all may write; this one starts in /" >&2
  start=$root
fi
if [ "${#options[@]}" -gt 0 ]; then
  set -- "$enter" --target "$process" "${options[@]}" --wd="$start" -- "$@"
else   # nsenter of util-linux 2.41 would refuse to enter nothing
  cd -P -- "$start" || refuse "the job's directory is gone on $(uname -n)"
fi
# A variable of the job may have any name: of ours only WORD_OF_JOB is used from here on.
for name in $(compgen -e) options; do [ "$name" = TERM ] || unset -v "$name"; done
while IFS= read -r -d '' WORD_OF_JOB; do
  [[ ! $WORD_OF_JOB =~ ^[A-Za-z_][A-Za-z_0-9]*= || $WORD_OF_JOB = TERM=* ]] || command export "${WORD_OF_JOB?}"
done <"/proc/$process/environ" 2>/dev/null
exec "$@"
