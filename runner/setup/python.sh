#!/bin/sh
# Sourced by what installs packages.
usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }
# Sets `python`: the first in PATH that is usable and makes virtual environments, else that is usable; else empty.
find_python() {
    python=
    for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if usable "$name" && { [ -z "$python" ] || ! has_venv "$python"; }; then python=$name; fi
    done
}
# From here on TMPDIR is in this directory, and pip's cache, if it is not in its own place: pip and venv run what they put
# there, and others may exchange it elsewhere.
own_tmp() {
    TMPDIR=$(mktemp -d "$(cd "$1" && pwd)/tmp.XXXXXX")
    export TMPDIR
    [ -z "${XDG_CACHE_HOME-}${PIP_CACHE_DIR-}" ] || export PIP_CACHE_DIR="$TMPDIR/cache"
    # pip's settings may name programs.
    [ "$(find "${XDG_CONFIG_HOME-}" -prune -user "$(id -u)" 2>/dev/null)" ] || unset XDG_CONFIG_HOME
}
