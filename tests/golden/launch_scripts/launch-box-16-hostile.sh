#!/bin/bash
# A launch of a study. The script of the study's allocation runs it: job.sh CPUS-OF-A-NODE NODE...
set -uo pipefail
umask 077
unset -v HOSTNAME PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV LD_PRELOAD LD_LIBRARY_PATH BASH_ENV "${!CONDA_@}" "${!OMPI_MCA_@}" "${!PMIX_MCA_@}" \
  "${!HOROVOD_@}" {http,https,ftp,all,no}_proxy {HTTP,HTTPS,FTP,ALL,NO}_PROXY \
  "${!PYXIS_@}" "${!APPTAINER@}" "${!SINGULARITY@}" "${!SHIFTER@}"

for runner_i in "${!SLURM_@}" "${!SRUN_@}" "${!SBATCH_@}" "${!SQUEUE_@}"; do
  case $runner_i in SLURM_JOB_ID | SLURM_CONF | SLURM_CLUSTER_NAME) ;; *) unset -v "$runner_i" ;; esac
done
export USER="${USER:-$(id -un)}"
ulimit -l unlimited 2>/dev/null
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

runner_hosts=("${@:2}") runner_nodelist=$(IFS=,; printf %s "${*:2}")
[ "${#runner_hosts[@]}" -eq 2 ] || {
  echo "planned 2 nodes, got ${#runner_hosts[@]}" >&2; exit 73; }
runner_cpus=$(( ${1:-0} / 8 ))   # all CPUs of its nodes, at every size: each rank binds itself to its GPU's share
[ "$runner_cpus" -lt 2 ] || runner_cpus=$(( runner_cpus / 2 * 2 ))   # whole cores
printf '%s\n' "${runner_hosts[@]}" >nodes
export RUNNER_RDV_HOST="${runner_hosts[0]}"
export RUNNER_RDV_PORT=$(( 12000 + SLURM_JOB_ID % 16000 ))   # below ip_local_port_range
RUNNER_RDV_KEY=$(head -c 16 /dev/urandom | base64)   # only this job's ranks know it
export RUNNER_RDV_KEY
export RUNNER_ENV_LINES_='one
two	*'
export RUNNER_ENV_MKL_NUM_THREADS='1'
export RUNNER_ENV_NOTE='it'\''s "quoted" $HOME `id` \ # % é'
export RUNNER_ENV_OMP_NUM_THREADS='1'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_RUNNER_RDV_HOST="${RUNNER_RDV_HOST}"
export RUNNER_ENV_RUNNER_RDV_PORT="${RUNNER_RDV_PORT}"
export RUNNER_ENV_RUNNER_RDV_KEY="${RUNNER_RDV_KEY}"

# For the record, on the side: nothing waits for it.
runner_version() {
  runner_i=$(timeout 10 "${@:2}" 2>&1 | grep '[0-9][.][0-9]') || return 0   # not a warning before it
  printf '%s\t%s\n' "$1" "${runner_i%%$'\n'*}"
}
{
  runner_version slurm srun --version
  runner_version charliecloud ch-run --version
} >versions 2>/dev/null </dev/null &

# Once a node, not once a rank.
srun --mpi=none --exact --nodelist="${runner_nodelist}" --nodes=2 --ntasks=2 --ntasks-per-node=1 \
  --kill-on-bad-exit=1 --output=logs/node-%N.log /bin/bash -c \
  'for place in "$1" "$1/mnt"; do
  [ -e "$place" ] || mkdir -m 700 -- "$place"
  [ "$(LC_ALL=C stat -c '\''%u %F'\'' -- "$place")" = "$(id -u) directory" ] && chmod 700 -- "$place" || {
    stat -c "$(hostname): cannot mount the image at %n: it is a %F of %U, not $(id -un)'\''s; fix: have it removed" \
      -- "$place" >&2; exit 1; }
done
' \
  bash /var/tmp/"${USER}".ch || exit 71

runner_step=
trap 'runner_why=CANCELLED; kill -TERM "$runner_step" 2>/dev/null' TERM

srun --mpi=none --nodes=2 --ntasks=16 --exact --nodelist="${runner_nodelist}" --ntasks-per-node=8 \
  --gpus-per-node=8 --mem=0 --time=00:20:00 --cpus-per-task="${runner_cpus}" --cpu-bind=none \
  --kill-on-bad-exit=1 --wait=0 --output=logs/rank-%t.out --error=logs/rank-%t.err /bin/bash -c \
  'trap "" HUP INT TERM USR1 USR2; exec "$@"' bash ch-run --join-ct=8 --join-tag="${runner_job}" \
  --set-env --cd /results/recipe --bind "${runner_run}":/results --bind \
  '/data/My Sets/$HOME:/data set' /lustre/u/images/sha256-1f0ce1d2a3b4.sqsh -- /bin/bash -c \
  'for runner_i in "${!RUNNER_ENV_@}"; do export "${runner_i#RUNNER_ENV_}=${!runner_i}"; unset -v "$runner_i"; done; exec "$@"' \
  bash python3 -u /results/lib/launch.py --run /results --umask 022 --caches node --world 16 \
  --local-sizes 8,8 --bind gpu-share --leave-together 60 -- python3 -u main.py --model tiny \
  --batch-size 2 --image-size 32 --precision fp32 --warmup-steps 5 --steps 'a b'\''c' \
  --demonstration --device cpu --seed=-1 --note '$(touch /tmp/x); '\''q'\'' "d"' '' -n '*' &
runner_step=$!
while kill -0 "$runner_step" 2>/dev/null; do wait "$runner_step"; done
wait "$runner_step"; runner_exit=$?
exit "$runner_exit"
