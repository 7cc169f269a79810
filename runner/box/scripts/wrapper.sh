#!/bin/sh
# Runs the program of this file's name inside the box that this directory belongs to; in-box runs its arguments there.
case ${0##*/} in
in-box) ;;
*) set -- "/usr/bin/${0##*/}" "$@" ;;
esac
if [ -e /etc/box/nodes ]; then
    exec "$@"
fi
state=${0%/*}/..
alive() {
    read -r line 2>/dev/null <"/proc/$1/stat" || return 1
    start=$2
    # shellcheck disable=SC2086  # the fields after the command's name; the start time is field 22 of proc(5)
    set -- ${line##*) }
    [ "${20}" = "$start" ]
}
if ! { read -r pid start mode <"$state/pid"; } 2>/dev/null || ! alive "$pid" "$start"; then
    name=$(cd "$state" && basename "$PWD")
    echo "${0##*/}: box $name is not running; start it: gpu-runner box up --name $name" >&2
    exit 1
fi
user=
[ "$mode" = root ] || user="--user --preserve-credentials"
# Ctrl-C is for the client, which gets its default back inside; nsenter must stay to hand on the exit code.
trap '' INT QUIT
# shellcheck disable=SC2086  # two options, or none
exec nsenter --target "$pid" $user --mount --uts --ipc --net --pid -- /bin/sh /etc/box/client.sh "$PWD" "$@"
