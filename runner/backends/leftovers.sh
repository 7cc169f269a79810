# shellcheck shell=bash
# What jobs of this user have left on a node because it died under them, or they were killed outright. Each thing carries
# its job in its name: PREFIX JOB, where a job in Slurm begins with Slurm's number.

# Where Enroot keeps containers; empty where it does not say. No option shows it: its message about one that is missing
# does.
enroot_data() {
  enroot remove gpu-runner-none 2>&1 </dev/null | sed -n "s|^.*No such file or directory: \(/.*\)/gpu-runner-none$|\1|p"
}

# Whether a look may be believed, which had this device (find's %D) of this place: it is in no FUSE file system of another
# user, which says what it likes of owners, nor in one that has left since then. One that is no mount's, as of btrfs and
# overlayfs, still has that place.
is_believed() {
  local mounters mounter name first
  [ -r /proc/self/mountinfo ] || return 0
  first=$(awk '$1 == "UID_MIN" && $2 ~ /^[0-9]+$/ { print $2; exit }' /etc/login.defs)
  mounters=$(awk -v device="$1" -v root="$(stat -c %d /)" -v own="$(id -u)" -v first="${first:-1000}" '
    BEGIN { if (device == root || int(device / 256) % 4096) print 0 }
    NR == FNR { if ($1 <= own && own < $1 + $3) outer = $2 + own - $1; next }
    $3 ~ /^0:/ {
      minor = substr($3, 3)
      if (minor % 256 + int(minor / 256) * 1048576 != device) next
      user = / - fuse/ && match($NF, /user_id=[0-9]+/) ? substr($NF, RSTART + 8, RLENGTH - 8) + 0 : 0
      print (user < first || user == own || user == outer) ? 0 : user
    }' /proc/self/uid_map /proc/self/mountinfo)
  for mounter in $mounters; do
    [ "$mounter" != 0 ] || return 0
    for name in ${RUNNER_TRUST//,/ }; do
      case $mounter in "$name" | "$(id -u -- "$name")") return 0 ;; esac
    done
    return 1
  done
  case $(stat -f -c %T -- "$2") in '' | fuse* | UNKNOWN*) return 1 ;; esac
  [ "$(find "$2" -maxdepth 0 -printf %D)" = "$1" ]
} 2>/dev/null

# Whether no other user can exchange what is in a directory, or lead it elsewhere: it is root's or this user's; so are
# those above it and the links on the way, or they are the system's (login.defs), of a user whom RUNNER_TRUST names, or of
# a project (others may write neither there nor above it, and it has a group of the user's that is none of the system's,
# or the place above gives it one). All may write, too, where the login's group may, unless it is the user's alone, or
# that of Debian's `users`, or an ACL has such a one; to the user's own, where a group may that he is not in. RUNNER_TRUST
# makes one a project's (@GROUP). In a container of an ordinary user, root and strangers look the same.
is_own() {
  local at first count above device everybody login rest target unknown=0 system
  local users all=() project=() given trusted open=(-perm -0002) acl group
  read -r first _ count </proc/self/uid_map
  [ "$first$count" = 04294967295 ] || unknown=$(cat /proc/sys/kernel/overflowuid)
  case $(stat -L -c %u -- "$1") in 0 | "$unknown" | "$(id -u)") ;; *) return 1 ;; esac
  system=$(awk '$1 == "UID_MIN" && $2 ~ /^[0-9]+$/ { print $2; exit }' /etc/login.defs)
  : "${system:=1000}"
  users=(-user 0 -o -user "$unknown" -o -user "$(id -u)" -o -uid "-$system")
  IFS=, read -r -a trusted <<<"${RUNNER_TRUST:-}"
  for at in "${trusted[@]}"; do
    case $at in # a number needs no name
      '') continue ;;
      @*[!0-9]*) at=@$(getent group -- "${at#@}" | cut -d: -f3) ;;
      @*) ;;
      *[!0-9]*) id -- "$at" >/dev/null || continue ;;
    esac
    case $at in @) ;; @*) project+=(-o -group "${at#@}") ;; *) users+=(-o -user "$at") ;; esac
  done
  # Without a name here, as in many containers, the login's group is not known.
  if login=$(id -g -- "$(id -un)"); then
    [ "$(id -gn -- "$(id -un)")" = "$(id -un)" ] || all=(-o -group "$login")
    everybody=$(getent group users | cut -d: -f3)
    all+=(${everybody:+-o -group "$everybody"})
    for at in $(id -G); do
      [ "$at" = "$login" ] || [ "$at" -lt "$system" ] || project+=(-o -group "$at")
    done
    open+=(-o -perm -0020 '(' -name '' "${all[@]}" -o -user "$(id -u)" -gid "+$((system - 1))" ! -group "$login" ')'
      ! '(' -name '' "${project[@]}" ')')
  fi
  # One of another group may have moved it there from where all get the group.
  given=(-perm -0020 -gid "+$((system - 1))" ! -user "$(id -u)" ! '(' -name '' "${project[@]}" ')')
  at='' rest=$(realpath -s -- "$1")/
  for _ in {1..1000}; do # directories and links by which it is found: links may lead in circles
    [ -n "$rest" ] || return 0
    above=$at at=$at/${rest%%/*} rest=${rest#*/}
    case $at in */ | */.) at=$above && continue ;; */..) at=${above%/*} && continue ;; esac
    trusted=("${project[@]}")
    [ -z "$(find "${above:-/}" -maxdepth 0 '(' "${open[@]}" -o "${given[@]}" ')')" ] || trusted=()
    [ -z "$(find "${above:-/}" -maxdepth 0 -perm -0020 '(' -name '' "${trusted[@]}" ')')" ] || trusted+=(-o -true)
    device=$(find "$at" -maxdepth 0 '(' -type l -o ! '(' "${open[@]}" ')' -o -perm -1000 ')' '(' "${users[@]}" \
      -o -type d ! -perm -0002 '(' -name '' "${trusted[@]}" ')' ')' -printf %D)
    { [ -n "$device" ] && is_believed "$device" "$at"; } || return
    if [[ $(ls -ld -- "$at") == d????w???[!t]+* ]]; then # an ACL: without getfacl, of any of the user's groups
      if acl=$(getfacl -cnp -- "$at"); then
        acl=$(sed -n 's/^group:\([0-9]*\):.w.*/\1/p' <<<"$acl")
      else
        acl="$login $(id -G)"
      fi
      for group in $acl; do
        case " ${project[*]} " in *" $group "*) continue ;; esac
        case " ${all[*]} " in *" $group "*) return 1 ;; esac
        # Root chooses groups; and without the login's, or in a container of an ordinary user, none is known.
        [ "$unknown" = 0 ] && [ "$(id -u)" != 0 ] && [ -O "$at" ] && [ "$group" -ge "$system" ] \
          && [ "$group" != "${login:-$group}" ] && return 1
      done
    fi
    [ -L "$at" ] || continue
    target=$(readlink -- "$at") rest=$target/$rest at=$above
    case $target in /*) at='' ;; esac
  done
  return 1
} 2>/dev/null

# Takes out those of these variables that name a place where others may exchange what lies there: runtimes unpack images
# below it, and start from there.
unset_unsafe() {
  local variable
  for variable; do
    case ${!variable-} in '' | /tmp | /var/tmp) continue ;; esac
    is_own "${!variable}" && continue
    printf '%s\n' "gpu-runner: $variable=${!variable} is not used: others could exchange what lies there" >&2
    unset -v "$variable"
  done
}

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
