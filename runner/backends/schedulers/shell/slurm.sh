# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of jobs in Slurm. Nothing in this file starts a step.

unset SLURM_EXPORT_ENV   # sbatch's --export would reach srun, too

# The CPUs of the node that has the fewest: of `256(x2)`, `128,256`. Hardware threads, where they are on.
runner_fewest_cpus() {
  tr , '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sort -n | sed 's/[^0-9].*//; 1q'
}

# Whatever Slurm, salloc and a login shell have set must not shape a step of an allocation.
runner_unset_shape() {
  local runner_i
  for runner_i in "${!SLURM_@}" "${!SRUN_@}" "${!SBATCH_@}" "${!SQUEUE_@}"; do
    case $runner_i in SLURM_JOB_ID | SLURM_CONF | SLURM_CLUSTER_NAME) ;; *) unset -v "$runner_i" ;; esac
  done
}

# runner_live: the jobs of this user that Slurm knows, in hidden partitions, too; nothing where it did not answer with
# this one among them. A login shell's variables of squeue would leave some out.
runner_ask_for_live() {
  unset -v "${!SQUEUE_@}"
  runner_live=$(timeout 20 squeue --noheader --all --user="$(id -u)" --format=%A 2>/dev/null | tr '\n' ' ')
  case " $runner_live " in *" $SLURM_JOB_ID "*) ;; *) runner_live= ;; esac
}

# The node of every rank of an uneven split: without it Slurm fills nodes as it likes (14 and 2, measured). Arguments:
# ranks on each node.
runner_place_ranks() {
  local runner_i runner_n
  for runner_i in "${runner_hosts[@]}"; do
    for (( runner_n = 0; runner_n < $1; runner_n++ )); do printf '%s\n' "$runner_i"; done
    shift
  done >hosts
  export SLURM_HOSTFILE="$runner_run/hosts"
  unset SLURM_NTASKS_PER_NODE   # srun would warn that it cannot honour both
}

# A keeper is a step of one task a node, a coprocess of job.sh, beside the ranks for as long as the job: it makes nodes
# ready, and cleans up at the end of its input (keeper.sh). After a cancel or at the time limit Slurm refuses new steps
# ("job has expired"), and a step that runs already has until KillWait (30 s by default).
runner_keeper='' runner_keep='' runner_hear=''

# Waits until every node is ready, and ends with 71 where one is not, or its task is gone. A task that was killed says
# nothing, and srun goes on with the others: it reports that one in the script's log, in which nothing else has written
# of tasks yet (the pattern is that of runner.diagnosis.logs).
runner_until_ready() {
  runner_keeper=${RUNNER_KEEPER_PID-} runner_hear=${RUNNER_KEEPER[0]-} runner_keep=${RUNNER_KEEPER[1]-}
  local runner_said _
  for _ in "${runner_hosts[@]}"; do
    runner_said=   # and what a site's TaskProlog prints
    until [ "$runner_said" = ready ] || [ "$runner_said" = failed ]; do
      read -r -t 10 runner_said <&"${runner_hear:-99}" && continue
      if [ $? -le 128 ] || runner_is_lost; then break; fi   # more than 128: nothing yet
    done
    [ "$runner_said" = ready ] || exit 71
  done
}

runner_is_lost() { grep -qE '^srun: error: ([^ ]+: )?tasks? [0-9,-]+:? ' logs/batch.err; } 2>/dev/null

# Lets the keeper clean up, when the script ends; a file system that hangs keeps no nodes up to the job's time limit.
runner_at_end() {
  [ -n "$runner_keeper" ] || return 0
  exec {runner_keep}>&-   # the end of the keeper's input
  local runner_most=600
  local runner_until=$(( SECONDS + runner_most ))
  while kill -0 "$runner_keeper" 2>/dev/null; do
    if [ "$SECONDS" -ge "$runner_until" ]; then
      echo "not clean on every node after $runner_most s" >>logs/cleanup.log 2>&1
      kill -TERM "$runner_keeper"
      break
    fi
    sleep 0.2
  done
}

runner_node_versions() {
  local IFS=,
  timeout 20 sinfo --noheader --all --Node --nodes="${runner_hosts[*]}" --format=$'slurm\t%v\t%N'
}

# A task that could not be launched ends the step: srun waits for the others, and they wait for it.
runner_watch_step() {
  while sleep 3 && kill -0 "$runner_step"; do
    ! grep -q '^srun: error: .* launch failed: ' logs/batch.err || kill -TERM "$runner_step"
  done
}
