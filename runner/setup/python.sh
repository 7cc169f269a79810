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
# From here on TMPDIR is in this directory: pip and venv run what they put there, and others may exchange it elsewhere. So
# they may pip's cache, and its settings, which may name programs: these are then left out.
own_tmp() {
    TMPDIR=$(mktemp -d "$(cd "$1" && pwd)/tmp.XXXXXX")
    export TMPDIR
    for found in $("${python:-.venv/bin/python}" -c "$_of_others"); do
        case $found in
        cache) export PIP_CACHE_DIR="$TMPDIR/cache" ;;
        settings) export PIP_CONFIG_FILE=/dev/null ;;
        esac
    done
}
_of_others='
import os
from pathlib import Path
from runner.core.ownership import exchangeable_by, may_be_strangers

def is_others(*paths):
    return any(exchangeable_by(each, new=True, used=True) or may_be_strangers(each) for each in map(Path, paths))

def named(name, otherwise):
    return os.environ.get(name) or os.path.expanduser(otherwise)

config = [named("XDG_CONFIG_HOME", "~/.config"), *filter(None, os.environ.get("XDG_CONFIG_DIRS", "").split(":"))]
config = [os.path.join(each, "pip/pip.conf") for each in config]
if is_others(named("PIP_CACHE_DIR", os.path.join(named("XDG_CACHE_HOME", "~/.cache"), "pip"))):
    print("cache")
if is_others(*config, os.path.expanduser("~/.pip/pip.conf"), named("PIP_CONFIG_FILE", "/etc/pip.conf")):
    print("settings")
'
