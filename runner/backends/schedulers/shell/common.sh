# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of every job.sh. Our names begin with runner_; nothing in this file starts a step.

# Slurm may start a job without a PATH, where it has no login environment for it. Bash has one of its own, with the
# current directory in it, and Python without one takes its library from there.
printenv PATH >/dev/null || export PATH=/usr/local/bin:/usr/bin:/bin

# Takes out of the environment all variables but the usual few and those that match a pattern, and all functions but
# ours: what runs is then the same from a clean shell and from a dirty one. Arguments: patterns.
runner_keep_only() {
  local runner_i runner_pattern
  while IFS= read -r runner_i; do
    case $runner_i in runner_*) ;; *) unset -f "$runner_i" ;; esac
  done < <(compgen -A function)
  while IFS= read -r runner_i; do
    for runner_pattern in HOME USER LOGNAME SHELL PATH LANG TMPDIR CUDA_VISIBLE_DEVICES RUNNER_TRUST "$@"; do
      # shellcheck disable=SC2053  # it is a pattern
      [[ $runner_i != $runner_pattern ]] || continue 2
    done
    unset -v "$runner_i" 2>/dev/null
  done < <(compgen -e)
}

# Takes out what a login shell leaves, and would change what a rank runs; a scheduler may still load the user's login
# environment. Runtimes take options out of the last ones. HOSTNAME is this node's alone. Argument: `but-libraries`
# where modules have set LD_LIBRARY_PATH: a module system without it takes them for loaded, and does not load them again.
runner_unset_login() {
  [ "${1-}" = but-libraries ] || unset -v LD_LIBRARY_PATH
  unset -v HOSTNAME PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONPYCACHEPREFIX PYTHONUSERBASE VIRTUAL_ENV LD_PRELOAD \
    BASH_ENV "${!CONDA_@}" "${!OMPI_MCA_@}" "${!PMIX_MCA_@}" "${!HOROVOD_@}" "${!PYXIS_@}" "${!APPTAINER@}" "${!SINGULARITY@}" "${!SHIFTER@}"
  runner_unset_proxies
}

# Takes empty and relative parts out of where programs look for what they run and load: each is the directory that the
# job was submitted from, whosever that is.
runner_whole_paths() {
  local runner_i runner_part runner_left runner_kept
  for runner_i in PATH PYTHONPATH LD_LIBRARY_PATH; do
    [ -n "${!runner_i-}" ] || continue
    runner_kept='' runner_left=${!runner_i}:
    [ "$runner_i" != LD_LIBRARY_PATH ] || runner_left=${runner_left//;/:}   # ld.so(8) parts it at both
    while [ -n "$runner_left" ]; do
      runner_part=${runner_left%%:*} runner_left=${runner_left#*:}
      case $runner_part in /*) runner_kept+=:$runner_part ;; esac
    done
    export "$runner_i=${runner_kept#:}"
  done
}

runner_unset_proxies() {
  unset -v {http,https,ftp,all,no}_proxy {HTTP,HTTPS,FTP,ALL,NO}_PROXY
}

# RDMA registers memory, which must be locked for it. Argument: `quiet` where no RDMA is planned.
runner_unlock_memory() {
  ulimit -l unlimited 2>/dev/null || [ "${1-}" = quiet ] ||
    echo "memlock is $(ulimit -l) kB: RDMA registration may fail" >&2
}

# runner_hosts: the job's nodes, a line each of the input. Ends with 73 unless they are as many as planned ($1); leaves
# their names in `nodes`, by which the verdict names the node of a rank that never started.
runner_find_nodes() {
  mapfile -t runner_hosts
  [ "${#runner_hosts[@]}" -eq "$1" ] || {
    echo "planned $1 nodes, allocated ${#runner_hosts[@]}" >&2
    exit 73
  }
  printf '%s\n' "${runner_hosts[@]}" >nodes
}

# Where ranks meet: a host, and a port that differs for neighbouring jobs; below Linux's ephemeral range (32768), above
# the well-known services. The launcher makes the same port of a job's number. The key is made anew by each run of a
# script, is in no file, and ends with the processes. Arguments: the host; the job's number.
runner_meet() {
  export RUNNER_RDV_HOST=$1 RUNNER_RDV_PORT=$(( 12000 + ${2%%[!0-9]*} % 16000 ))
  RUNNER_RDV_KEY=$(head -c 16 /dev/urandom | base64)   # only this job's ranks know it
  export RUNNER_RDV_KEY
}

# Leaves `versions`: for each name and command the first line that has a version, no warning before it. In the
# background and within a bounded time: the job neither waits for it nor fails by it.
runner_record_versions() {
  {
    while [ $# -gt 1 ]; do
      # shellcheck disable=SC2086  # the words of a command
      runner_i=$(timeout 10 $2 2>&1 | grep '[0-9][.][0-9]') && printf '%s\t%s\n' "$1" "${runner_i%%$'\n'*}"
      shift 2
    done
    runner_node_versions
  } >versions 2>/dev/null </dev/null &
}

runner_node_versions() { :; }   # of each node, with its name behind them; slurm.sh knows them

# Leaves its input as the file $1, whole; through no link: what a container is given to write to, it may have put there.
runner_leave() {
  local runner_part="$1.$RANDOM$RANDOM"
  { (set -C; cat >"$runner_part") && mv -fT "$runner_part" "$1"; } || rm -f "$runner_part"
}

# Near the time limit: checkpoint and leave. The launchers read `notices`: a signal of srun's would also end what serves
# a container's file system. At a cancel: the step ends, and then the script.
runner_pass_signals() {
  runner_step=
  rm -f notices
  exec {runner_notices}>notices
  trap 'echo USR1 >&"$runner_notices"' USR1
  trap 'kill -TERM "$runner_step" 2>/dev/null' TERM
}

runner_watch_step() { :; }   # beside the step, for as long as it runs; slurm.sh knows more

# Waits for the step, which runs in the background as process $1; runner_exit is its exit status.
runner_wait() {
  runner_step=$1
  runner_watch_step </dev/null >/dev/null 2>&1 &
  while kill -0 "$runner_step" 2>/dev/null; do wait "$runner_step"; done
  wait "$runner_step"
  runner_exit=$?
}

# Waits for the step, and leaves its exit status as a record and as the script's own.
runner_finish() {
  runner_wait "$1"
  printf '{"job":"%s","exit":%d,"end_s":%d}\n' "$runner_job" "$runner_exit" "$(date +%s)" | runner_leave exit.json
  exit "$runner_exit"
}

export USER="${USER:-$(id -un)}"
