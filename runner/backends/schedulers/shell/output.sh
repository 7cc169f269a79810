#!/bin/bash
# A task of mpiexec, which knows no file for each rank. Arguments: `rank` or `node`; the command.
case $1 in
rank)   # of PALS and of Hydra; of PALS alone; of Open MPI
  to=logs/rank-${PMI_RANK:-${PALS_RANKID:-${OMPI_COMM_WORLD_RANK:?no rank}}}
  exec "${@:2}" >"$to.out" 2>"$to.err"
  ;;
node) exec "${@:2}" >"logs/node-$(hostname).log" 2>&1 ;;
esac
