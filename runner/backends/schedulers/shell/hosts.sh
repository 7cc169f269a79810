# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Functions of jobs on hosts that the user's own ssh reaches; supervise.sh comes before. The controller, on the machine
# that submits, keeps one ssh for each node. Through its standard input it makes a bash of the node go to the run
# directory, which is the same there, and run job.sh with the node's number. The rest of that input are orders, one every
# few seconds; after its end, or after silence, the node takes the controller for gone and ends its ranks. Nothing of the
# user's is on ssh's command line.

# Where rank 0 serves: the first host as ssh's configuration names it; other programs don't know ssh's aliases.
runner_meet_at_first() {
  local runner_host
  runner_host=$("${runner_ssh[@]}" -G -- "${runner_hosts[0]}" | sed -n 's/^hostname //p')
  runner_meet "${runner_host:-"${runner_hosts[0]##*@}"}" $$
}

# The environment of this shell, as exports: there is no container to bring one. Not the submitting shell's user,
# terminal, road here, GPUs and scratch: the node has its own. RUNNER_CODE: exports for the places of programs, which
# another machine gets without those on this one's own disk.
runner_environment() {
  local runner_i
  while IFS= read -r runner_i; do
    case $runner_i in
    HOME | USER | LOGNAME | SHELL | PWD | OLDPWD | SHLVL | _ | HOSTNAME | TERM | TMPDIR | MAIL | DISPLAY) ;;
    XAUTHORITY | CUDA_VISIBLE_DEVICES | KRB5CCNAME | SSH_* | XDG_* | DBUS_* | BASHOPTS | SHELLOPTS) ;;
    SLURM* | PMI* | PALS_* | OMPI_COMM_WORLD_* | HOROVOD_GLOO_RENDEZVOUS_* | RUNNER_* | runner_*) ;;
    *) printf 'export %s=%q\n' "$runner_i" "${!runner_i-}" ;;
    esac
  done < <(compgen -e)
  printf '%s\n' "${RUNNER_CODE-}"
}

# What the bash of node $1 reads first. $2: `environment` where its program runs in that of this shell.
runner_first_input() {
  local runner_i
  declare -f runner_enter
  printf 'runner_enter %q %q\n' "$runner_run" "$(id -u),${RUNNER_TRUST-}"   # ids may differ between the machines
  [ "$2" != environment ] || runner_environment
  for runner_i in RUNNER_JOB_ID RUNNER_RDV_HOST RUNNER_RDV_PORT RUNNER_RDV_KEY; do
    printf 'export %s=%q\n' "$runner_i" "${!runner_i}"
  done
  printf 'exec bash ./job.sh %d\n' "$1"
}

# The controller. Arguments: as of runner_supervise; `environment` or nothing, as of runner_first_input.
runner_control() {
  local runner_i runner_fifo runner_way runner_ear runner_ways=() runner_beat=0
  runner_grace=38   # then ssh itself is ended; less than runner.backends.schedulers.local waits
  for runner_i in "${!runner_hosts[@]}"; do
    runner_fifo=$(TMPDIR=/tmp mktemp -u) && mkfifo -m 600 -- "$runner_fifo" || exit
    exec {runner_way}<>"$runner_fifo"
    exec {runner_ear}<"$runner_fifo"
    rm -f -- "$runner_fifo"
    runner_ways[runner_i]=$runner_way
    (
      # Only the controller keeps these pipes open: when it ends, all nodes notice.
      for runner_way in "${runner_ways[@]}"; do exec {runner_way}>&-; done
      exec "${runner_ssh[@]}" -- "${runner_hosts[runner_i]}" 'exec bash -s' \
        < <(runner_first_input "$runner_i" "${3-}"; exec cat <&"$runner_ear")
    ) &
    runner_children[runner_i]=$!
    exec {runner_ear}<&-
  done

  # Orders are single characters, so that a node never reads half of one: T: end, U: the time limit is near, H: I am here.
  runner_order() {
    local runner_n
    for runner_n in "${!runner_children[@]}"; do printf '%s' "$1" >&"${runner_ways[runner_n]}"; done
  }
  runner_ask_to_end() { runner_order T; }
  runner_warn() { runner_order U; }
  runner_kill() { kill -KILL "${runner_children[@]}" 2>/dev/null; }
  runner_is_over() {
    local runner_way=${runner_ways[$1]}
    exec {runner_way}>&-
    unset "runner_ways[$1]"
    if [ "$3" -eq 255 ] && [ -z "$runner_why" ]; then   # ssh's own
      runner_why=NODE_FAIL
      echo "hosts: error: Node failure on ${runner_hosts[$1]}: its ssh connection has ended" >&2
    fi
  }
  runner_turn() {
    if [ "$SECONDS" -ge "$runner_beat" ]; then
      runner_beat=$(( SECONDS + 5 ))
      runner_order H
    fi
    sleep 0.2
  }
  runner_supervise "$1" "$2"
  runner_exit_as_supervised
}

# This node's part begins: its number is $1.
runner_be_node() {
  runner_node=$1 runner_job=$RUNNER_JOB_ID
  trap 'runner_why=${runner_why:-ENDED}' TERM INT HUP
  trap : PIPE   # ssh may be gone
  export RUNNER_NODE="${runner_hosts[runner_node]}"   # in the ranks' records: two nodes may have one host name
}

# The number of this node's first rank in the world.
runner_first_rank() {
  local runner_i runner_first=0
  for (( runner_i = 0; runner_i < runner_node; runner_i++ )); do (( runner_first += runner_counts[runner_i] )); done
  echo "$runner_first"
}

# Waits for this node's ranks, and does what the controller orders. Argument: the second one of runner_supervise.
runner_follow_orders() {
  local runner_heard=$SECONDS
  runner_turn() {
    if [ "$runner_why" = GONE ]; then
      sleep 0.2
      return
    fi
    local runner_order='' runner_code
    read -r -n 1 -t 0.2 runner_order
    runner_code=$?   # more than 128: nothing yet
    case $runner_order in
    T) runner_why=${runner_why:-ENDED} ;;
    U) runner_tell USR1 '' ;;
    esac
    if [ -n "$runner_order" ]; then
      runner_heard=$SECONDS
    elif [ "$runner_code" -le 128 ] || [ "$(( SECONDS - runner_heard ))" -ge 60 ]; then
      runner_why=GONE runner_grace=10   # the controller's machine, or the road to it, has gone
    fi
  }
  runner_supervise 0 "$1"
  case $runner_why in
  FAILED) exit "$(( runner_exit == 0 || runner_exit == 255 ? 1 : runner_exit ))" ;;   # 255 would be ssh's
  ENDED | GONE) exit 143 ;;
  esac
  exit 0
}
