#!/bin/bash
set -uo pipefail
umask 077
while IFS= read -r runner_i; do unset -f "$runner_i"; done < <(compgen -A function)
while IFS= read -r runner_i; do
  case $runner_i in
  HOME | USER | LOGNAME | SHELL | PATH | LANG | TMPDIR | CUDA_VISIBLE_DEVICES | SLURM_JOB_ID | SLURM_CONF | SLURM_CLUSTER_NAME) ;;
  *) unset -v "$runner_i" 2>/dev/null ;;
  esac
done < <(compgen -e)

export USER="${USER:-$(id -un)}"
ulimit -l unlimited 2>/dev/null || echo "memlock is $(ulimit -l) kB: RDMA registration may fail" >&2
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

read -r runner_stat </proc/$$/stat
read -ra runner_fields <<<"${runner_stat##*) }"
read -r runner_boot </proc/sys/kernel/random/boot_id
runner_job="$$.${runner_fields[19]}.${runner_boot%%-*}"
export RUNNER_JOB_ID="$runner_job"   # in the ranks' records: the run is found by it again
printf '%s\n' "$runner_job" >job.id.part && mv -f job.id.part job.id

runner_why=
runner_mark() {
  local runner_code=$?
  printf '{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}\n' "$runner_job" "$runner_code" "$(date +%s)" \
    "$runner_why" >exit.json.part && mv -f exit.json.part exit.json
}
trap runner_mark EXIT

runner_hosts=(dgx01 dgx02)
printf '%s\n' "${runner_hosts[@]}" >nodes
export RUNNER_RDV_HOST="${runner_hosts[0]}"
export RUNNER_RDV_PORT=$(( 12000 + SLURM_JOB_ID % 16000 ))   # below ip_local_port_range
RUNNER_RDV_KEY=$(head -c 16 /dev/urandom | base64)   # only this job's ranks know it
export RUNNER_RDV_KEY
export MELLANOX_VISIBLE_DEVICES='all'
export NCCL_DEBUG='INFO'
export NCCL_DEBUG_FILE='/results/nccl/%h.%p.log'
export NCCL_DEBUG_SUBSYS='INIT,NET'
export OMP_NUM_THREADS='8'
export PYTHONNOUSERSITE='1'
export PYTHONUNBUFFERED='1'

# For the record, on the side: nothing waits for it.
runner_version() {
  runner_i=$(timeout 10 "${@:2}" 2>&1 | grep '[0-9][.][0-9]') || return 0   # not a warning before it
  printf '%s\t%s\n' "$1" "${runner_i%%$'\n'*}"
}
{
  runner_version slurm srun --version
  runner_version enroot enroot version
} >versions 2>/dev/null </dev/null &

unset -v "${!SQUEUE_@}"
runner_live=$(timeout 20 squeue --noheader --all --user="$(id -u)" --format=%A 2>/dev/null | tr '\n' ' ')
case " $runner_live " in *" $SLURM_JOB_ID "*) ;; *) runner_live= ;; esac

# Once a node, not once a rank.
srun --mpi=none --exact --overlap --nodelist=dgx01,dgx02 --nodes=2 --ntasks=2 --ntasks-per-node=1 \
  --kill-on-bad-exit=1 --output=logs/node-%N.log /bin/bash -c \
  'exec >>logs/cleanup.log 2>&1
is_left() {
  case $1 in "$4") return 1 ;; [0-9]*) ;; *) return 1 ;; esac
  [ -n "${2// }" ] || { [ "$3" = yes ]; return; }
  case $1 in *.*.*.*) ;; *.*) return 1 ;; esac
  [ "${1%%[!0-9]*}" -lt "${4%%[!0-9]*}" ] || return 1
  case " $2 " in *" ${1%%[!0-9]*} "*) return 1 ;; esac
}
data=$(enroot remove gpu-runner-none 2>&1 </dev/null |
  sed -n "s|^.*No such file or directory: \(/.*\)/gpu-runner-none$|\1|p")
case $data:$(stat -f -c %t -- "$data" 2>/dev/null) in
  /*:ef53 | /*:58465342 | /*:9123683e | /*:2fc12fc1 | /*:f2f52010 | /*:1021994 | /*:794c7630) ;; *) exit 0 ;;
esac
for old in "$data"/pyxis_*; do
  name=${old##*/}
  [[ $name =~ ^pyxis_([1-9][0-9]*_)?([1-9][0-9]*)[.](0|[1-9][0-9]*)$ ]] || continue
  of=${BASH_REMATCH[1]%_} job=${BASH_REMATCH[2]}
  [ "${of:-$job}" = "$job" ] && [ ! -L "$old" ] && [ -O "$old" ] && [ -d "$old/results" ] || continue
  if is_left "$job" "$1" "$2" "$3"; then echo "$(uname -n): removing $name, of a job that has ended"
    enroot remove --force "$name"; fi
done
exit 0
' \
  bash "${runner_live}" no "${SLURM_JOB_ID}"."${runner_job}" || exit 71

runner_counts=(2 1)
for runner_i in "${!runner_hosts[@]}"; do
  for (( runner_n = 0; runner_n < runner_counts[runner_i]; runner_n++ )); do
    printf '%s\n' "${runner_hosts[runner_i]}"
  done
done >hosts
export SLURM_HOSTFILE="$runner_run/hosts"
unset SLURM_NTASKS_PER_NODE   # srun would warn that it cannot honour both

runner_step=
trap 'runner_why=CANCELLED; kill -TERM "$runner_step" 2>/dev/null' TERM

srun --mpi=none --ntasks=3 --exact --overlap --distribution=arbitrary --gpus-per-node=2 \
  --time=00:20:00 --cpus-per-task=16 --kill-on-bad-exit=1 --wait=60 --output=logs/rank-%t.out \
  --error=logs/rank-%t.err --container-image=/lustre/u/images/sha256-1f0ce1d2a3b4.sqsh \
  --container-mounts="${runner_run}":/results --container-workdir=/results/recipe \
  --no-container-mount-home --no-container-entrypoint --no-container-remap-root \
  --container-env=RUNNER_RDV_HOST,RUNNER_RDV_PORT,RUNNER_RDV_KEY,PYXIS_VERSION,MELLANOX_VISIBLE_DEVICES,NCCL_DEBUG,NCCL_DEBUG_FILE,NCCL_DEBUG_SUBSYS,OMP_NUM_THREADS,PYTHONNOUSERSITE,PYTHONUNBUFFERED \
  /bin/bash -c 'exec "$@"' bash python3 -u /results/lib/launch.py --run /results --umask 022 \
  --caches node --world 3 --local-sizes 2,1 -- python3 -u main.py --model resnet50 --batch-size 256 \
  --image-size 224 --precision amp-bf16 --channels-last &
runner_step=$!
while kill -0 "$runner_step" 2>/dev/null; do wait "$runner_step"; done
wait "$runner_step"; runner_exit=$?
exit "$runner_exit"
