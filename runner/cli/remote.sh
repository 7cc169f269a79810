#!/bin/sh
# Runs on a site's login node, by `sh -c` of runner/cli/remote.py: what a command line needs there, and the call of it.
set -eu
umask 077
unset PYTHONPATH PYTHONHOME
own=$(id -u)
base=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-runner/remote
mkdir -p "$base"
base=$(cd -P "$base" && pwd) # another user's link may lead elsewhere by then
for each in "$base" "$base/.." "$base/../.."; do
    [ "$(find "$each/." -prune -user "$own" ! -perm -o=w)" ] || {
        echo "error: $each is another user's, or everybody's to write to; set XDG_CACHE_HOME to a directory of yours" >&2
        exit 4
    }
done
# Above it as runner/core/ownership.py has it, which is not here yet.
first=$(awk '$1 == "UID_MIN" && $2 ~ /^[0-9]+$/ { print $2; exit }' /etc/login.defs 2>/dev/null || true)
first=${first:-1000}
groups=
users=
old=$IFS IFS=,
set -f
for each in ${RUNNER_TRUST:-}; do
    case $each in # a number needs no name
    '') continue ;;
    @*[!0-9]*) each=@$(getent group "${each#@}" 2>/dev/null | cut -d: -f3) ;;
    @*) ;;
    *[!0-9]*) each=$(id -u "$each" 2>/dev/null) || continue ;;
    esac
    case $each in @) ;; @*) groups="$groups -o -group ${each#@}" ;; *) users="$users -o -user $each" ;; esac
done
set +f
IFS=$old
open='-perm -o=w' all=
if login=$(id -g "$(id -un 2>/dev/null)" 2>/dev/null); then # `id -g` may be of newgrp(1)
    [ "$(id -gn "$(id -un)" 2>/dev/null || true)" = "$(id -un)" ] || all="-o -group $login"
    everybody=$(getent group users 2>/dev/null | cut -d: -f3)
    all="$all${everybody:+ -o -group $everybody}"
    for each in $(id -G); do
        [ "$each" = "$login" ] || [ "$each" -lt "$first" ] || groups="$groups -o -group $each"
    done
    lent="-o -user $own -gid +$((first - 1)) ! -group $login"
    open="$open -o -perm -g=w ( -name / $all $lent ) ! ( -name / $groups )"
fi
# One of another group may have moved it there.
given="-perm -g=w -gid +$((first - 1)) ! -user $own ! ( -name / $groups )"
# A FUSE file system says what who mounted it likes of owners, and may have left since then. A look had DEVICE of PLACE;
# one that is no mount's, as of btrfs, still has that place.
is_believed() {
    whose=$(awk -v device="$1" -v root="$(stat -c %d /)" -v own="$own" -v first="$first" '
        BEGIN { if (device == root || int(device / 256) % 4096) print "known" }
        $3 ~ /^0:/ {
            minor = substr($3, 3)
            if (minor % 256 + int(minor / 256) * 1048576 != device) next
            user = / - fuse/ && match($NF, /user_id=[0-9]+/) ? substr($NF, RSTART + 8, RLENGTH - 8) + 0 : own
            print (user < first || user == own) ? "known" : "strange"
        }' /proc/self/mountinfo 2>/dev/null) || return 0
    case $whose in known*) return 0 ;; strange*) return 1 ;; esac
    case $(stat -f -c %T "$2" 2>/dev/null) in '' | fuse* | UNKNOWN*) return 1 ;; esac
    [ "$(find "$2" -prune -printf %D)" = "$1" ]
}
each=$base
while [ "$each" ]; do
    above=${each%/*}
    of=$groups
    # shellcheck disable=SC2086  # words of find
    [ -z "$(find "${above:-/}" -prune '(' $open -o $given ')')" ] || of=
    # shellcheck disable=SC2086
    [ -z "$(find "${above:-/}" -prune -perm -g=w '(' -name . $of ')')" ] || of='-o -prune'
    # shellcheck disable=SC2086
    device=$(find "$each" -prune '(' ! '(' $open ')' -o -perm -1000 ')' \
        '(' -user "$own" $users -o -uid "-$first" -o ! -perm -o=w '(' -name "" $of ')' ')' -printf %D)
    [ "$device" ] || {
        echo "error: others could exchange what is in $each; set XDG_CACHE_HOME to another directory of yours, or" \
            "export RUNNER_TRUST=NAME or RUNNER_TRUST=@GROUP in a start-up file of your shell there" >&2
        exit 4
    }
    is_believed "$device" "$each" || {
        echo "error: $each is in another user's file system; set XDG_CACHE_HOME to a directory of yours" >&2
        exit 4
    }
    case $(ls -ld "$each") in
    d????w???[!t]+*) # an ACL: without getfacl, of any of the user's groups
        if acl=$(getfacl -cnp "$each" 2>/dev/null); then
            acl=$(printf '%s\n' "$acl" | sed -n 's/^group:\([0-9]*\):.w.*/\1/p')
        else
            acl="$login $(id -G)"
        fi
        for group in $acl; do
            case " $groups " in *" $group "*) continue ;; esac
            case " $all " in *" $group "*) ;; *)
                # On a directory of the user, one that he is not in; root chooses groups.
                [ "$own" != 0 ] && [ "$(find "$each" -prune -user "$own")" ] || continue
                [ "$group" -ge "$first" ] && [ "$group" != "${login:-$group}" ] || continue
                ;;
            esac
            echo "error: others may write to $each, by its ACL; set XDG_CACHE_HOME to another directory of yours" >&2
            exit 4
        done
        ;;
    esac
    each=$above
done

# Goes to DIRECTORY of the user, through no link of another user, which may come until it is there.
enter() {
    through_no_link "$1"
    cd "$HOME"
    mkdir -p "$1"
    cd "$1"
    (through_no_link "$1") || exit
    [ "$(find . -prune -user "$own")" ] || {
        echo "error: $PWD is another user's" >&2
        exit 3
    }
}

through_no_link() {
    cd "$HOME"
    each=$1
    while [ "$each" ]; do
        [ -z "$(find "$each" -prune -type l ! -user 0 ! -user "$own" 2>/dev/null)" ] || {
            echo "error: $each is another user's" >&2
            exit 3
        }
        case $each in */*) each=${each%/*} ;; *) each= ;; esac
    done
}

# $1: a new directory, whole or not there; standard input: its files as a tar, the last of them `complete`.
received() {
    mkdir "$1"
    tar -xf - -C "$1" && [ -f "$1/complete" ] || return 1
}

# Programs but the two last used go, and what was left half-made and is a day old.
forget_old() {
    kept=0
    # Made by us: of letters, digits and dashes.
    # shellcheck disable=SC2012
    ls -td "$base"/code-* | while read -r each; do
        case ${each##*/} in *.*) continue ;; esac
        [ -L "$each" ] || continue # above a directory is $base itself
        kept=$((kept + 1))
        [ "$kept" -le 2 ] || rm -rf "$each" "$(readlink -f "$each/..")"
    done
    for each in "$base"/code-*.*; do
        linked=
        for link in "$base"/code-*; do
            case $(readlink "$link" || true) in "$each"/*) linked=yes ;; esac
        done
        [ "$linked" ] || find "$each" -maxdepth 0 -mtime +0 -exec rm -rf {} +
    done
}

action=$1
shift
case $action in
ready) # CODE CONFIG: takes the configuration; status 3: the program is not there
    if [ ! -d "$base/config-$2" ]; then
        part=$(mktemp -d "$base/config.XXXXXX")
        trap 'rm -rf "$part"' EXIT
        received "$part/new"
        mv -T "$part/new" "$base/config-$2" 2>/dev/null || [ -d "$base/config-$2" ] # another one was faster
    fi
    [ -x "$base/code-$1/bin/gpu-runner" ] || exit 3
    touch -h "$base/code-$1"
    ;;
install) # CODE: installs the program as `make install` does; it is there once its link is
    part=$(mktemp -d "$base/code-$1.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    trap 'exit 143' HUP INT TERM PIPE
    received "$part/source" || exit 4
    cd "$part/source"
    PREFIX=$part sh runner/setup/install.sh >"$part/log" 2>&1 || {
        cat "$part/log" >&2
        exit 5
    }
    cd "$base"
    rm -rf "$part/source"
    ln -s "$part"/[0-9]* "$part/link"
    mv -T "$part/link" "$base/code-$1"
    trap - EXIT
    forget_old
    ;;
mirror) # CODE DIRECTORY: see runner/jobs/mirror.py
    cd "$HOME"
    exec "$base/code-$1/python/bin/python" -I -c 'from runner.jobs.mirror import main; main()' "$2" "$base/trees"
    ;;
variables) # KEY: takes lines of a shell, which the call that names it runs
    mkdir -p "$base/calls"
    cat >"$base/calls/$1"
    ;;
call) # CALL CODE CONFIG SITE LOGIN PROGRAM BUDGET VARIABLES DIRECTORY WORD...: the command line
    mkdir -p "$base/calls"
    find "$base/calls" -mtime +30 -exec rm -f {} +
    echo $$ >"$base/calls/$1" # of the command, too: it takes this process's place
    shift
    program=$base/code-$1/bin/gpu-runner
    export RUNNER_CONFIG="$base/config-$2/config.yaml" RUNNER_SITE="$3" RUNNER_REMOTE_LOGIN="$4" RUNNER_REMOTE_PROGRAM="$5"
    [ -z "$6" ] || export RUNNER_BUDGET="$6"
    lines=
    if [ "$7" ]; then
        lines=$(cat "$base/calls/$7")
        rm "$base/calls/$7"
    fi
    enter "$8"
    shift 8
    set -- "$program" "$@"
    eval "$lines"
    exec "$@"
    ;;
interrupt) # CALL: what Ctrl-C does in a terminal
    kill -INT "$(cat "$base/calls/$1")"
    ;;
send) # DIRECTORY NAME...: files that a command line has written, as a tar
    enter "$1"
    shift
    exec tar -cf - -- "$@"
    ;;
esac
