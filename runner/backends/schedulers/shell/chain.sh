# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of an attempt of a chain (submit --until-done), on its first node, outside any container. Of the chain:
#   launches/N/RUN/   the run directory of attempt N; in it `job.id` once it is queued, `began` once it has begun
#   checkpoints/      of all attempts; `done` in it: the program says that its work is done
#   ended             why no attempt follows
runner_chain=${runner_run%/launches/*}

# The run directory of attempt $1.
runner_attempt() {
  set -- "$runner_chain/launches/$1"/*/
  printf %s "${1%/}"
}

# Begins attempt $1 of at most $2, unless there is a reason not to, and queues the next: whatever ends this one starts
# that one. A job that was requeued goes on as the same attempt.
runner_begin_attempt() {
  local runner_why
  if [ ! -e began ]; then
    runner_why=$(runner_why_not "$1")
    if [ -n "$runner_why" ]; then
      echo "attempt $1 did not begin: $runner_why"
      runner_end_chain "$runner_why"
      rm -f job.id
      exit 0
    fi
    mkdir -p checkpoints   # where a container sees those of the chain
    printf '%s\n' "$SLURM_JOB_ID" >job.id
    : >began
  fi
  if [ "$1" -lt "$2" ]; then runner_queue "$(( $1 + 1 ))"; else runner_end_chain 'its attempts are used up'; fi
}

# Why attempt $1 must not begin; nothing where it may.
runner_why_not() {
  if [ -s "$runner_chain/ended" ]; then
    cat "$runner_chain/ended"
  elif [ -e "$runner_chain/checkpoints/done" ]; then
    echo 'the program is done'
  elif [ "$1" -gt 1 ] && [ -e "$(runner_attempt $(( $1 - 1 )))/cancelled.json" ]; then
    echo "attempt $(( $1 - 1 )) was cancelled"
  elif [ "$1" -gt 2 ] && [ -z "$(find "$runner_chain/checkpoints/" -type f -newer \
    "$(runner_attempt $(( $1 - 2 )))/began" -print -quit)" ]; then
    echo "attempts $(( $1 - 2 )) and $(( $1 - 1 )) left no newer checkpoint"
  fi
}

# Queues attempt $1 for when this job has ended, once, in the environment of a login shell, as `submit` does.
runner_queue() {
  local runner_next runner_id
  runner_next=$(runner_attempt "$1")
  [ ! -e "$runner_next/job.id" ] || return 0
  if ! runner_id=$(
    runner_unset_shape
    cd -- "$runner_next" &&
      timeout 60 env -u SLURM_JOB_ID sbatch --parsable --dependency="afterany:$SLURM_JOB_ID" job.sh </dev/null
  ); then
    echo "attempt $1 could not be queued" >&2
    runner_end_chain "attempt $1 could not be queued: see logs/batch.err of attempt $(( $1 - 1 ))"
    return 0
  fi
  printf '%s\n' "${runner_id%%;*}" >"$runner_next/job.id"
  # It may have been cancelled meanwhile. On a network file system a change of the directory shows what is new there.
  mkdir -p "$runner_chain/queued" && rmdir "$runner_chain/queued"
  [ ! -s "$runner_chain/ended" ] || runner_take_back "$1"
}

runner_end_chain() { printf '%s\n' "$1" >"$runner_chain/ended"; }

runner_take_back() {
  local runner_next
  runner_next=$(runner_attempt "$1")
  [ ! -s "$runner_next/job.id" ] || timeout 20 scancel "$(cat "$runner_next/job.id")"
  rm -f "$runner_next/job.id"
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
  runner_take_back "$(( $1 + 1 ))"
}
