#!/bin/bash
# The first thing that runs in a rank's container. A bash, because NGC images set BASH_ENV to the file that enables CUDA's
# forward compatibility, and only bash reads it.
# Variables whose image's value would win, or that a runtime could not carry, travel under a prefix, and get their names
# back here: no value is on a command line, and every byte arrives.
# Arguments: [--cd DIRECTORY] PROGRAM [ARGUMENT ...]
for runner_i in "${!RUNNER_ENV_@}"; do
  export "${runner_i#RUNNER_ENV_}=${!runner_i}"
  unset -v "$runner_i"
done
if [ -n "${RUNNER_LIBRARY_PATH-}" ]; then   # of the site: put before the image's own
  export LD_LIBRARY_PATH="${RUNNER_LIBRARY_PATH%:}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  # A network of the site's plugin: without that, NCCL would end.
  if [[ ! ${NCCL_NET-} =~ ^(IB|Socket)?$ ]] && [ -z "$(IFS=:; for runner_i in $RUNNER_LIBRARY_PATH; do
    [ ! -e "$runner_i/libnccl-net.so" ] || echo y; done)" ]; then
    echo "rank.sh: NCCL_NET=$NCCL_NET is left out: no libnccl-net.so is in $RUNNER_LIBRARY_PATH" >&2
    unset -v NCCL_NET
  fi
fi
if [ "$1" = --cd ]; then
  cd -- "$2" || exit
  shift 2
fi
exec "$@"
