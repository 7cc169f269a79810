#!/bin/sh
# A program for someone outside the box: with their directory, and with the signals of a terminal.
# Arguments: the directory to work in, the program, its arguments.
cd -- "$1" 2>/dev/null || {
    echo "box: $1 is not visible inside the box; working in /" >&2
    cd /
}
shift
case ":$PATH:" in
*:/usr/bin:*) ;;
*) PATH=${PATH:+$PATH:}/usr/bin:/bin ;;
esac
: "${USER:=$(cat /etc/box/user)}"
export PATH USER
# The process outside ignores Ctrl-C so that it outlives its client; here the client gets it back. When the
# process outside is ended, so is the client.
exec sh /etc/box/as.sh setpriv --pdeathsig TERM env --default-signal=INT,QUIT "$@"
