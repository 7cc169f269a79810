#!/bin/bash
#PBS -N horovod-pytorch
#PBS -q debug-scaling
#PBS -A m1234
#PBS -l select=4:system=polaris
#PBS -l place=scatter
#PBS -l walltime=00:20:00
#PBS -l filesystems=home:eagle
#PBS -S /bin/bash
#PBS -r n
#PBS -o logs/batch.out
#PBS -e logs/batch.err
set -uo pipefail; umask 077
runner_enter() {
  local PATH=/usr/bin:/bin${PATH:+:$PATH} at='' rest=$1/ open=0 uid mode kind name first known
  first=$(awk '$1 == "UID_MIN" && $2 ~ /^[0-9]+$/ { print $2; exit }' /etc/login.defs 2>/dev/null)
  known=,$(id -u),65534,4294967294,${2-},${RUNNER_TRUST-},
  cd -P -- "$1" || exit 72
  while [ -n "$rest" ]; do
    case ${rest%%/*} in '' | .) open=0 ;; ..) at=${at%/*} open=0 ;; *) at=$at/${rest%%/*} ;; esac
    rest=${rest#*/}
    read -r uid mode kind name < <(stat -c '%u %a %A %U' -- "${at:-/}") || uid=4294967295 kind=l name=-
    case $known in *,"$uid",* | *,"$name",*) uid=0 ;; esac
    case $open$kind$rest in 0[!l]*/*) uid=0 ;; esac
    [ "$uid" -lt "${first:-1000}" ] || { open=2; break; }
    case $kind in
    l*) rest=$(readlink -- "$at")/$rest; case $rest in /*) at='' open=0 ;; *) at=${at%/*} ;; esac ;;
    *) open=$(( 0$mode & 2 )) ;;
    esac
  done
  [ "$open" -ne 0 ] || ! [ . -ef "${at:-/}" ] || return 0
  echo "$1: $at is another user's by now, or open to all; submit again, from (--runs: in) a directory of yours" >&2
  exit 82
}
runner_job=$PBS_JOBID runner_run=$PBS_O_WORKDIR
runner_enter "$runner_run"
sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/profile.sh
SHA-256  lib/output.sh
SHA-256  lib/apptainer.sh
SHA-256  lib/leftovers.sh
SHA-256  lib/rank.sh
SHA-256  lib/launch.py
END
. lib/common.sh || exit 74

runner_unset_login
[ -z "${LOADEDMODULES-}" ] || { . lib/profile.sh; runner_unset_login but-libraries; }
runner_unlock_memory

runner_find_nodes 4 < <(awk '!seen[$0]++' "$PBS_NODEFILE")
runner_meet "${runner_hosts[0]}" "$PBS_JOBID"

set +u
type module &>/dev/null || . /etc/profile
module use /soft/modulefiles || exit 74
module load spack-pe-base apptainer || exit 74
set -u
runner_whole_paths || exit 74
unset -v PYTHONPATH PYTHONHOME LD_PRELOAD
export RUNNER_ENV_FI_CXI_DEFAULT_CQ_SIZE='131072'
export RUNNER_ENV_FI_CXI_DEFAULT_TX_SIZE='2048'
export RUNNER_ENV_FI_CXI_DISABLE_HOST_REGISTER='1'
export RUNNER_ENV_FI_CXI_RDZV_EAGER_SIZE='0'
export RUNNER_ENV_FI_CXI_RDZV_GET_MIN='0'
export RUNNER_ENV_FI_CXI_RDZV_PROTO='alt_read'
export RUNNER_ENV_FI_CXI_RDZV_THRESHOLD='0'
export RUNNER_ENV_FI_CXI_RX_MATCH_MODE='hybrid'
export RUNNER_ENV_FI_MR_CACHE_MONITOR='userfaultfd'
export RUNNER_ENV_HOROVOD_GLOO_IFACE='hsn0'
export RUNNER_ENV_HTTPS_PROXY='http://proxy.alcf.anl.gov:3128'
export RUNNER_ENV_HTTP_PROXY='http://proxy.alcf.anl.gov:3128'
export RUNNER_ENV_NCCL_CROSS_NIC='1'
export RUNNER_ENV_NCCL_DEBUG='INFO'
export RUNNER_ENV_NCCL_DEBUG_FILE='/results/nccl/%h.%p.log'
export RUNNER_ENV_NCCL_DEBUG_SUBSYS='INIT,NET'
export RUNNER_ENV_NCCL_NET='AWS Libfabric'
export RUNNER_ENV_NCCL_NET_GDR_LEVEL='PHB'
export RUNNER_ENV_NCCL_PROTO='Simple'
export RUNNER_ENV_NCCL_SOCKET_IFNAME='hsn'
export RUNNER_ENV_OMP_NUM_THREADS='8'
export RUNNER_ENV_PYTHONNOUSERSITE='1'
export RUNNER_ENV_PYTHONUNBUFFERED='1'
export RUNNER_ENV_ftp_proxy='http://proxy.alcf.anl.gov:3128'
export RUNNER_ENV_http_proxy='http://proxy.alcf.anl.gov:3128'
export RUNNER_ENV_https_proxy='http://proxy.alcf.anl.gov:3128'
export RUNNER_ENV_no_proxy='localhost,127.0.0.1,.alcf.anl.gov'
export RUNNER_ENV_RUNNER_LIBRARY_PATH='/soft/libraries/aws-ofi-nccl/v1.6.0-libfabric-1.22.0/lib:/opt/cray/libfabric/2.3.1/lib64:/host/lib64'
runner_record_versions pbs 'qstat --version' apptainer 'apptainer --version'

runner_pass_signals
mpiexec --hostfile "$PBS_NODEFILE" -n 16 --ppn 4 --depth=8 --cpu-bind none /bin/bash "$runner_run"/lib/output.sh rank \
  /bin/bash "$runner_run"/lib/apptainer.sh apptainer exec --nv --fakeroot --no-home --pwd /results/recipe --bind \
    "$runner_run":/results --bind /opt/cray:/opt/cray --bind /soft:/soft --bind \
    /usr/lib64/libcxi.so.1:/host/lib64/libcxi.so.1 /lustre/u/images/horovod.sif \
  /bin/bash /results/lib/rank.sh python3 -s -u -X pycache_prefix= /results/lib/launch.py --run /results --umask 022 \
    --caches node --world 16 --local-sizes 4,4,4,4 -- \
  python3 -u main.py --model resnet50 --batch-size 256 --image-size 224 --precision amp-bf16 --channels-last &
runner_finish $!
