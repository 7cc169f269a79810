# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of a study's one allocation in Slurm; launches.sh comes before. Nothing in this file starts a step.

# `nodes`: a line for each, NODE and leaf switch ("-": unknown; of topology/tree alone), those of the fullest switch
# first, so that a small launch crosses no switch that it need not. What an earlier allocation of the study had in
# another order stays in that order. runner_nodes: the nodes, in this order.
runner_order_nodes() {
  local -A runner_leaf=() runner_count=()
  local runner_i runner_switch runner_names runner_n=0
  while read -r runner_switch runner_names; do
    while read -r runner_i; do runner_leaf[$runner_i]=$runner_switch; done < <(scontrol show hostnames "$runner_names")
  done < <(timeout 60 scontrol show topology 2>/dev/null |
    sed -nE 's/^SwitchName=(\S+) Level=0 .*Nodes=(\S+).*/\1 \2/p')
  for runner_i in "${runner_hosts[@]}"; do
    runner_switch=${runner_leaf[$runner_i]:--}
    runner_count[$runner_switch]=$(( ${runner_count[$runner_switch]:-0} + 1 ))
  done
  for runner_i in "${runner_hosts[@]}"; do
    runner_switch=${runner_leaf[$runner_i]:--}
    printf '%d\t%s\t%d\t%s\n' "${runner_count[$runner_switch]}" "$runner_switch" "$(( runner_n++ ))" "$runner_i"
  done | LC_ALL=C sort -t $'\t' -k1,1nr -k2,2 -k3,3n | awk -F '\t' '{ print $4 "\t" $2 }' >nodes
  if [ -r ../nodes ] && [ "$(LC_ALL=C sort ../nodes)" = "$(LC_ALL=C sort nodes)" ]; then
    cp ../nodes nodes
  elif [ ! -e ../nodes ]; then
    cp nodes ../nodes
  fi
  mapfile -t runner_nodes < <(cut -f 1 nodes)
}

# A step whose srun has ended may still hold its GPUs and its container's files. Slurm lists it until it does not. After
# $most seconds such steps are ended, after twice that the study's job.
runner_free() {
  local most=300 runner_steps
  local runner_until=$(( SECONDS + most ))
  while :; do
    if runner_steps=$(timeout 20 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i 2>/dev/null); then
      runner_steps=$(grep -E '\.[0-9]+$' <<<"$runner_steps") || return 0
    else
      runner_steps=
    fi
    if [ "$SECONDS" -ge "$(( runner_until + most ))" ]; then
      echo "after its launch's end a step still holds its nodes: $runner_steps" >&2
      runner_stop=BUSY
      return 0
    fi
    # shellcheck disable=SC2086
    [ "$SECONDS" -lt "$runner_until" ] || timeout 20 scancel $runner_steps
    sleep 0.5
  done
}
