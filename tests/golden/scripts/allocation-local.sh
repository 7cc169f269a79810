#!/bin/bash
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
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 72
runner_run=$(pwd -P)

sha256sum --check --quiet >&2 <<'END' || exit 74
SHA-256  lib/common.sh
SHA-256  lib/supervise.sh
SHA-256  lib/launches.sh
END
. lib/common.sh && . lib/supervise.sh && . lib/launches.sh || exit 74

runner_be_job
runner_limit=86400
runner_expect_launches

runner_launch /lustre/u/runs/s-study/launches/g0016-full-r1/20261122-120000-hvd-16 200
runner_begin /lustre/u/runs/s-study/launches/g0001-solo-n000d2-r1/20261122-120010-hvd-1 140
runner_launch '/lustre/u/my '\''runs'\''/$HOME/launches/g0001-solo-n001d3-r1/`id`' 140
runner_end_launches
