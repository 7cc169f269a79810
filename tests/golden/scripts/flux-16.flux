#!/bin/bash
#flux: --job-name=horovod-pytorch
#flux: --nodes=4
#flux: --nslots=16
#flux: --cores-per-slot=16
#flux: --gpus-per-slot=1
#flux: --exclusive
#flux: --time-limit=1200s
#flux: --output=logs/batch.out
#flux: --error=logs/batch.err
set -uo pipefail
umask 077
unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV LD_PRELOAD LD_LIBRARY_PATH BASH_ENV "${!CONDA_@}" "${!OMPI_MCA_@}" "${!PMIX_MCA_@}" \
  "${!HOROVOD_@}" {http,https,ftp,all,no}_proxy {HTTP,HTTPS,FTP,ALL,NO}_PROXY \
  "${!PYXIS_@}" "${!APPTAINER@}" "${!SINGULARITY@}" "${!SHIFTER@}"
export USER="${USER:-$(id -un)}"
ulimit -l unlimited 2>/dev/null || echo "memlock is $(ulimit -l) kB: RDMA registration may fail" >&2

runner_job=$(flux job id --to=dec "$(flux getattr jobid)")
runner_run="$PWD"
cd -- "$runner_run" || exit 72

mapfile -t runner_hosts < <(flux hostlist --expand instance | tr " " "\n")
[ "${#runner_hosts[@]}" -eq 4 ] || {
  echo "planned 4 nodes, allocated ${#runner_hosts[@]}" >&2; exit 73; }
export RUNNER_RDV_HOST="${runner_hosts[0]}"
export RUNNER_RDV_PORT=$(( 12000 + ${runner_job%%[!0-9]*} % 16000 ))   # below ip_local_port_range
export RUNNER_ENV_PYTHONNOUSERSITE='1'

runner_step=
trap 'kill -USR1 "$runner_step" 2>/dev/null' USR1   # near the time limit: checkpoint and leave
trap 'kill -TERM "$runner_step" 2>/dev/null' TERM

flux run -N4 -n16 --cores-per-task=16 --gpus-per-task=1 --setopt=cpu-affinity=off \
  --setopt=gpu-affinity=off /bin/bash -c \
  'export RANK=$FLUX_TASK_RANK LOCAL_RANK=$FLUX_TASK_LOCAL_ID WORLD_SIZE=$FLUX_JOB_SIZE LOCAL_WORLD_SIZE=$2; runner_logs=$1/rank-$RANK; shift 2; exec "$@" >"$runner_logs.out" 2>"$runner_logs.err"' \
  bash "${runner_run}"/logs 4 apptainer exec --nv --no-home --pwd /results/recipe --bind \
  "${runner_run}":/results /lustre/u/images/horovod.sif /bin/bash -c \
  'for runner_i in "${!RUNNER_ENV_@}"; do export "${runner_i#RUNNER_ENV_}=${!runner_i}"; unset -v "$runner_i"; done; exec "$@"' \
  bash python3 -u /results/lib/launch.py --run /results --world 16 --local-sizes 4,4,4,4 -- python3 \
  -u main.py --model resnet50 --batch-size 256 --image-size 224 --precision amp-bf16 --channels-last &
runner_step=$!
while kill -0 "$runner_step" 2>/dev/null; do wait "$runner_step"; done
wait "$runner_step"; runner_exit=$?
printf '{"job":"%s","exit":%d,"end_s":%d}\n' "$runner_job" "$runner_exit" "$(date +%s)" \
  >exit.json.part && mv -f exit.json.part exit.json
exit "$runner_exit"
