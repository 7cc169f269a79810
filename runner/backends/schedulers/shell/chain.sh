# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of an attempt of a chain (submit --until-done), on its first node, outside any container. Of the chain:
#   launches/N/RUN/   the run directory of attempt N; in it `job.id` once it is queued, `began` once it has begun
#   checkpoints/      of all attempts; `done` in it: the program says that its work is done
#   stop.json, ended  it was cancelled; why no attempt follows
runner_chain=${runner_run%/launches/*}

# The run directory of attempt $1.
runner_attempt() {
  set -- "$runner_chain/launches/$1"/*/
  printf %s "${1%/}"
}

# Begins attempt $1 of at most $2, unless there is a reason not to, and queues the next, so that whatever ends this one
# starts that one. $3: its time limit, seconds; $4: how long all attempts together may run, seconds, 0 for any time.
runner_begin_attempt() {
  local runner_why runner_next runner_id
  runner_why=$(runner_why_not "$@")
  if [ -n "$runner_why" ]; then
    echo "attempt $1 did not begin: $runner_why"
    runner_end_chain "$runner_why"
    rm -f job.id
    exit 0
  fi
  [ -e began ] || : >began   # of one that was requeued it stays
  [ "$1" -eq 1 ] || printf '%s\n' "$SLURM_JOB_ID" >job.id
  runner_next=$(runner_attempt $(( $1 + 1 )))
  if [ "$1" -ge "$2" ] || [ -e "$runner_next/job.id" ]; then return; fi
  if runner_id=$(runner_queue "$runner_next" 2>&1); then
    printf '%s\n' "${runner_id%%;*}" >"$runner_next/job.id"
    # On a network file system a change of the directory shows what another machine has written there.
    mkdir -p "$runner_chain/queued" && rmdir "$runner_chain/queued"
    [ ! -e "$runner_chain/stop.json" ] || runner_take_back "$runner_next"
  else
    echo "attempt $(( $1 + 1 )) could not be queued: $runner_id" >&2
    runner_end_chain "attempt $(( $1 + 1 )) could not be queued: ${runner_id##*$'\n'}"
  fi
}

# Why attempt $1 must not begin, arguments as above; nothing where it may.
runner_why_not() {
  local runner_last runner_i runner_end runner_used=0
  runner_last=$(runner_attempt $(( $1 - 1 )))
  if [ -e "$runner_chain/stop.json" ]; then
    echo 'it was cancelled'
  elif [ -s "$runner_chain/ended" ]; then
    cat "$runner_chain/ended"
  elif [ -e "$runner_chain/checkpoints/done" ]; then
    echo 'the program is done'
  elif [ "$1" -gt 1 ] && [ -e "$runner_last/cancelled.json" ]; then
    echo "attempt $(( $1 - 1 )) was cancelled"
  elif [ "$1" -gt 2 ] && [ -z "$(find "$runner_chain/checkpoints/" -type f -newer \
    "$(runner_attempt $(( $1 - 2 )))/began" -print -quit)" ]; then
    echo "attempts $(( $1 - 2 )) and $(( $1 - 1 )) left no newer checkpoint"
  elif [ "$4" -gt 0 ]; then
    for (( runner_i = 1; runner_i < $1; runner_i++ )); do
      runner_last=$(runner_attempt "$runner_i")
      runner_end=$(stat -c %Y -- "$runner_last/exit.json" 2>/dev/null)   # it has none: it counts as if it ran to its limit
      runner_used=$(( runner_used + (runner_end ? runner_end - $(stat -c %Y -- "$runner_last/began") : $3) ))
    done
    [ "$(( runner_used + $3 ))" -le "$4" ] || echo "--gpu-hours leaves no time for attempt $1"
  fi
}

# Queues what lies in $1 for when this job has ended; prints its number. In the environment of a login shell, as `submit`.
runner_queue() (
  runner_job=$SLURM_JOB_ID
  runner_unset_shape
  unset -v SLURM_JOB_ID
  cd -- "$1" && timeout 60 sbatch --parsable --dependency="afterany:$runner_job" job.sh </dev/null
)

runner_end_chain() { printf '%s\n' "$1" >"$runner_chain/ended"; }

runner_take_back() {
  [ ! -s "$1/job.id" ] || timeout 20 scancel "$(cat "$1/job.id")"
  rm -f "$1/job.id"
}

# At the end of attempt $1: the next one leaves the queue if the work is done, or the program has failed by itself.
# While Slurm ends a job, for whatever reason, its state is not RUNNING; what it preempts it may let run for a while.
runner_end_attempt() {
  local runner_why=
  if [ -e "$runner_chain/checkpoints/done" ]; then
    runner_why='the program is done'
  elif [ -n "${runner_exit-}" ] && [ ! -s notices ] && ! grep -qs '^srun: error: Node failure on ' logs/batch.err; then
    case $(timeout 20 scontrol show job "$SLURM_JOB_ID") in
    *PreemptTime=[0-9]*) ;;
    *JobState=RUNNING*)
      runner_why="the program ended with exit code $runner_exit"
      [ "$runner_exit" -ne 0 ] || runner_why='the program is done'
      ;;
    esac
  fi
  [ -n "$runner_why" ] || return 0
  runner_end_chain "$runner_why"
  runner_take_back "$(runner_attempt $(( $1 + 1 )))"
}
