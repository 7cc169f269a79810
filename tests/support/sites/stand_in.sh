#!/bin/bash
# Stands for a container's command on a node of the box (by the name that it is called by): makes the binds that it is
# asked for, in a mount namespace of its own, enters the working directory, and runs the program on the node itself.
# There is no image and no isolation: this is for the layout of ranks alone, and for the command line's own words.
set -eu
case "${0##*/} $*" in
enroot\ remove\ gpu-runner-none) echo "[ERROR] No such file or directory: /usr/gpu-runner-none" >&2; exit 1 ;;
enroot\ create\ * | enroot\ remove\ *) exit 0 ;;
esac
binds=() directory=/
while [ $# -gt 0 ] && [ "$1" != /bin/bash ]; do
    case $1 in
    --bind | --volume | --mount) binds+=("$2") && shift ;;
    --volume=*) binds+=("${1#*=}") ;;
    --pwd) directory=$2 && shift ;;
    --workdir=*) directory=${1#*=} ;;
    esac
    shift
done
as_user=()   # who is root in a namespace of their own only
[ "$(id -u)" = 0 ] || as_user=(--user --map-root-user)
# shellcheck disable=SC2016  # the inner shell expands it
exec unshare "${as_user[@]}" --mount --propagation private /bin/bash -euc '
for (( i = $2; i > 0; i-- )); do
    source=${3%%:*} target=${3#*:} && target=${target%%:*}
    mkdir -p "$target"
    mount --bind "$source" "$target"
    set -- "$1" "$2" "${@:4}"
done
cd "$1"
exec "${@:3}"' bash "$directory" "${#binds[@]}" "${binds[@]}" "$@"
