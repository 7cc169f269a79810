# shellcheck shell=bash
# What jobs of this user have left on a node because it died under them, or they were killed outright. Each thing carries
# its job in its name: PREFIX JOB, where a job in Slurm begins with Slurm's number.

# Where Enroot keeps containers; empty where it does not say. No option shows it: its message about one that is missing
# does.
enroot_data() {
  enroot remove gpu-runner-none 2>&1 </dev/null | sed -n "s|^.*No such file or directory: \(/.*\)/gpu-runner-none$|\1|p"
}

# Whether only root and this user can exchange what is in a directory.
is_own() { [ -O "$1" ] || [ "$(stat -c %u -- "$1")" = 0 ]; }

# Whether a job's thing is left over. Arguments: the JOB of its name; the numbers of the user's jobs that Slurm knows
# (empty: unknown); whether no other job of the user can be on this node (yes or no); the asking JOB.
# A job that began after Slurm was asked has a higher number. PID.START.BOOT is a run without a scheduler.
is_left() {
  case $1 in "$4") return 1 ;; [0-9]*) ;; *) return 1 ;; esac
  [ -n "${2// }" ] || { [ "$3" = yes ]; return; }
  case $1 in *.*.*.*) ;; *.*) return 1 ;; esac
  [ "${1%%[!0-9]*}" -lt "${4%%[!0-9]*}" ] || return 1
  case " $2 " in *" ${1%%[!0-9]*} "*) return 1 ;; esac
}
