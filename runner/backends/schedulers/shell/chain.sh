# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of an attempt of a chain (submit --until-done), on its first node, outside any container. Of the chain:
#   launches/N/RUN/   the run directory of attempt N; in it `job.id` once it is queued, `began` once it has begun, and
#                     `resumes`, when the newest checkpoint was written that there was then
#   checkpoints/      of all attempts; `done` in it: the program says that its work is done
#   sick              nodes that later attempts leave out: NODE, ATTEMPT and what was wrong, with tabs between
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
    [ "$1" -le 1 ] || [ -e "$(runner_attempt $(( $1 - 1 )))/exit.json" ] || runner_note_sick $(( $1 - 1 ))
    runner_why=$(runner_why_not "$1")
    if [ -n "$runner_why" ]; then
      echo "attempt $1 did not begin: $runner_why"
      runner_end_chain "$runner_why"
      rm -f job.id
      exit 0
    fi
    mkdir -p checkpoints   # where a container sees those of the chain
    printf '%s\n' "$SLURM_JOB_ID" >job.id
    find "$runner_chain/checkpoints/" -type f -printf '%T@\n' | sort -n | tail -n 1 >resumes
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
  elif [ "$1" -gt 1 ] && runner_was_cancelled $(( $1 - 1 )); then
    echo "attempt $(( $1 - 1 )) was cancelled"
  elif [ "$1" -gt 2 ] && [ -z "$(find "$runner_chain/checkpoints/" -type f -newer \
    "$(runner_attempt $(( $1 - 2 )))/began" -print -quit)" ]; then
    echo "attempts $(( $1 - 2 )) and $(( $1 - 1 )) left no newer checkpoint"
  fi
}

# Whether a user cancelled attempt $1, by `cancel` or scancel: of any other end slurmstepd says what it is due to.
runner_was_cancelled() {
  [ -e "$(runner_attempt "$1")/cancelled.json" ] ||
    grep -qsE '^slurmstepd.*: \*\*\* JOB [0-9]+ ON \S+ CANCELLED AT \S+ \*\*\*' "$(runner_attempt "$1")/logs/batch.err"
}

# Notes the nodes by whose fault, or that of a GPU of theirs, attempt $1 ended. The errors are those of
# runner.diagnosis.catalogue.
runner_note_sick() (
  cd -- "$(runner_attempt "$1")" 2>/dev/null || exit 0
  runner_faults 2>/dev/null | sort -ut $'\t' -k1,1 | while IFS=$'\t' read -r runner_node runner_fault; do
    [ -z "$runner_node" ] || printf '%s\t%s\t%s\n' "$runner_node" "$1" "$runner_fault" >>"$runner_chain/sick"
  done
)

# Of the attempt here: NODE, a tab and what was wrong. Of a lost first node only Slurm tells.
runner_faults() {
  local runner_rank runner_fault
  sed -n 's/^srun: error: Node failure on \([^ :]*\).*/\1\tit failed/p' logs/batch.err
  [ -e exit.json ] || ! timeout 20 scontrol show job "$(cat job.id)" | grep -q 'JobState=NODE_FAIL' ||
    sed 's/$/\tit failed/; q' nodes
  runner_ranks_with '^ "(error|signal|exit_code)": ("|[1-9])' exit | head -n 64 | while read -r runner_rank; do
    runner_fault=$(
      sed -nE 's/^ "error": "(cuda-driver-(missing|unusable)|gpus-missing)",?$/\1/p' "ranks/$runner_rank.exit.json"
      tail -qc 100000 "logs/rank-$runner_rank".{out,err} |
        grep -oE 'uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|fallen off the bus'
    )
    [ -z "$runner_fault" ] || printf '%s\t%s\n' "$(runner_node_of "$runner_rank")" "${runner_fault%%$'\n'*}"
  done
  runner_ranks_with '^ "xids": \[$' node | while read -r runner_rank; do
    runner_fault=$(sed -nE '/^ "xids": \[/,/\]/s/^  (48|62|64|74|79|94|95|119|120|136|140),?$/\1/p' \
      "ranks/$runner_rank.node.json")
    [ -z "$runner_fault" ] || printf '%s\tXID %s\n' "$(runner_node_of "$runner_rank")" "${runner_fault%%$'\n'*}"
  done
}

# The ranks in whose records of kind $2 a line matches $1.
runner_ranks_with() { grep -lE "$1" ranks/*."$2".json | tr -dc '0-9\n'; }

# The node of rank $1, by the name that Slurm has for it.
runner_node_of() {
  sed -nE 's/^ "(node_name|host)": "(.*)",?$/\1 \2/p' "ranks/$1.start.json" | sort -r | sed 's/.* //; q'
}

# Whether attempt $1 ended by a fault of its nodes, or before its ranks had started and met: not by its program.
runner_is_blameless() {
  grep -qs $'\t'"$1"$'\t' "$runner_chain/sick" || ! compgen -G 'ranks/*.start.json' >/dev/null ||
    grep -qsE '^srun: error: (Node failure on |.* launch failed: )' logs/batch.err ||
    grep -qs '^ "error": "rendezvous-' ranks/*.exit.json
}

# sbatch for attempt $1, in the environment of a login shell, as `submit` has it; `runner_enter` is in job.sh.
runner_sbatch() (
  runner_unset_shape
  runner_enter "$(runner_attempt "$1")"
  exec </dev/null || exit
  shift
  exec timeout 60 env -u SLURM_JOB_ID sbatch "$@" job.sh
)

# The nodes that attempt $1 leaves out: the sick ones, too, if Slurm has enough others that are not down.
runner_without() {
  local runner_own runner_all
  runner_own=$(sed -n 's/^#SBATCH --exclude=//p' "$(runner_attempt "$1")/job.sh")
  runner_all=$(printf %s "${runner_own:+$runner_own,}"; cut -f1 "$runner_chain/sick" | paste -sd , -)
  ! runner_sbatch "$1" --test-only "--exclude=$runner_all" >/dev/null 2>&1 || runner_own=$runner_all
  printf %s "$runner_own"
}

# Queues attempt $1 for when this job has ended, once.
runner_queue() {
  local runner_next runner_id runner_nodes=''
  runner_next=$(runner_attempt "$1")
  [ ! -e "$runner_next/job.id" ] || return 0
  [ ! -s "$runner_chain/sick" ] || runner_nodes=$(runner_without "$1")
  set -- "$1" --parsable --dependency="afterany:$SLURM_JOB_ID"
  if ! runner_id=$(
    { [ -n "$runner_nodes" ] && runner_sbatch "$@" --exclude="$runner_nodes"; } || runner_sbatch "$@"
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

# At the end of attempt $1: the next one leaves the queue if the work is done, the program has failed by itself, or this
# one was cancelled. While Slurm ends a job, for whatever reason, its state is not RUNNING; what it preempts it may let
# run for a while.
runner_end_attempt() {
  local runner_why='' runner_next=$(( $1 + 1 )) runner_nodes runner_id
  trap '' TERM   # with which Slurm ends all processes of a job: these have until KillWait
  runner_note_sick "$1"
  if [ -e "$runner_chain/checkpoints/done" ]; then
    runner_why='the program is done'
  elif runner_was_cancelled "$1"; then
    grep -qs cancelled "$runner_chain/ended" || runner_why="attempt $1 was cancelled"
  elif [ -n "${runner_exit-}" ] && [ ! -s notices ] && ! runner_is_blameless "$1"; then
    case $(timeout 20 scontrol show job "$SLURM_JOB_ID") in
    *PreemptTime=[0-9]*) ;;
    *JobState=RUNNING*)
      runner_why="the program ended with exit code $runner_exit"
      [ "$runner_exit" -ne 0 ] || runner_why='the program is done'
      ;;
    esac
  fi
  if [ -n "$runner_why" ]; then
    runner_end_chain "$runner_why"
    runner_take_back "$runner_next"
  elif grep -qs $'\t'"$1"$'\t' "$runner_chain/sick" && [ -s "$(runner_attempt "$runner_next")/job.id" ]; then
    # Of a job that has begun meanwhile, as after a lost node, Slurm changes nothing.
    runner_id=$(cat "$(runner_attempt "$runner_next")/job.id") runner_nodes=$(runner_without "$runner_next")
    timeout 20 scontrol update "JobId=$runner_id" "ExcNodeList=$runner_nodes" >/dev/null 2>&1 || :
  fi
}
