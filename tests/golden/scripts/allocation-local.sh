#!/bin/bash
set -uo pipefail; umask 077
runner_enter() {
  cd -- "$1" || exit 72
  local PATH=/usr/bin:/bin${PATH:+:$PATH} uid name mode first
  read -r uid name mode < <(stat -c '%u %U %a' .) || uid=- name=- mode=2
  first=$(awk '$1 == "UID_MIN" { print $2 }' /etc/login.defs 2>/dev/null)
  case ,$(id -u),65534,4294967294,${2-},${RUNNER_TRUST-}, in *,"$uid",* | *,"$name",*) first=4294967296 ;; esac
  [ $(( 0$mode & 2 )) -ne 0 ] || [ "$uid" -ge "${first:-1000}" ] || return 0
  echo "${3-$1} is user $uid's by now, or open to all; submit again, from (--runs: in) one of your own" >&2
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
