#!/bin/sh
# Installs this checkout for the users of a machine or cluster, in PREFIX/VERSION, with a modulefile for Lmod and
# Environment Modules. Started by `make install` with these variables: PREFIX, an absolute directory; MODULEFILE, one of
# MODULEPATH (else PREFIX/modulefiles); PYTHON, the interpreter (else the first in PATH that will do); FROM, a wheel to
# install instead of the checkout.
set -eu
unset PYTHONPATH PYTHONHOME
umask 022
. runner/setup/python.sh

refuse() {
    printf 'error: %s\n  fix:   %s\n' "$1" "$2" >&2
    exit 3
}

prefix=${PREFIX:-} modules=${MODULEFILE:-${PREFIX:-}/modulefiles}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
for directory in "$prefix" "$modules"; do
    case $directory in
    *[!A-Za-z0-9/._+@-]*) refuse "a path for modules has letters, digits and / . _ + @ - only: $directory" "another directory" ;;
    /*) ;;
    *) refuse "PREFIX and MODULEFILE are absolute directories, not '$directory'" "make install PREFIX=/opt/gpu-runner" ;;
    esac
done
target=$prefix/$version modulefile=$modules/gpu-runner/$version
[ ! -e "$target" ] || refuse "$target is there already" "check out another version; or rm -r $target, once no user needs it"

other="PYTHON=FILE, one of 3.10 or newer that all users can read, as \`uv python install --install-dir\` makes"
if [ "${PYTHON:-}" ]; then python=$PYTHON; else find_python; fi
seen=${python:-python3}
usable "$seen" || refuse "$seen is no Python 3.10 or newer ($("$seen" --version 2>/dev/null || echo "it does not start"))" "$other"
has_venv "$python" || refuse "$python cannot make a virtual environment" "apt-get install python3-venv, or $other"

mkdir -p "$prefix" "$modules/gpu-runner"
whose=$(
    "$python" - "$prefix" "$modules/gpu-runner" <<'END'
import sys
from pathlib import Path
from runner.core.ownership import exchangeable_by

print(*(f"{each} is {whose}" for each in sys.argv[1:] if (whose := exchangeable_by(Path(each)))), sep="; ")
END
)
[ -z "$whose" ] || refuse "another user could exchange it: $whose" "a directory of your own, or RUNNER_TRUST=NAME,... of who makes it"
mkdir "$target" # from here on it is ours
trap 'rm -rf "$target"' EXIT
mkdir "$target/bin"
own_tmp "$target"
packages=$TMPDIR
"$python" -m venv "$target/python"
pip() { "$target/python/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
# All of the lock by its hashes; of these packages alone, what builds the package and what it needs to run.
pip download --only-binary :all: --require-hashes -r requirements.lock --dest "$packages" ||
    refuse "its packages could not be fetched" "PIP_INDEX_URL=URL, or PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR: docs/security.md"
# From here on no setting has a say: one may name a place with other packages, which have no hash here.
for name in $(env | sed -n 's/^\(PIP_[A-Za-z0-9_]*\)=.*/\1/p'); do unset "$name"; done
export PIP_CONFIG_FILE=/dev/null PIP_NO_CACHE_DIR=1
pip install --no-index --find-links "$packages" --upgrade pip "${FROM:-$PWD}"
pip uninstall --yes setuptools 2>/dev/null # the interpreter's own copy, which need not be new
# It imports nothing from where it is called, which an empty part of PYTHONPATH names (a long path's has /bin/sh here).
sed -i '1s/^#!.*python[0-9.]*$/& -I/' "$target/python/bin/gpu-runner"
ln -s ../python/bin/gpu-runner "$target/bin/gpu-runner"

completion() {
    mkdir -p "$target/share/${2%/*}"
    "$target/bin/gpu-runner" --completion "$1" >"$target/share/$2"
}
completion bash bash-completion/completions/gpu-runner
completion zsh zsh/site-functions/_gpu-runner
completion fish fish/vendor_completions.d/gpu-runner.fish

rm -f "$modulefile"
set -C # through no link
cat >"$modulefile" <<END
#%Module1.0
proc ModulesHelp {} {
    puts stderr "Run and measure training jobs on GPU clusters: gpu-runner --help"
}
module-whatis "gpu-runner $version: run and measure training jobs on GPU clusters"
conflict gpu-runner
prepend-path PATH $target/bin
# bash and fish complete from it. Without the variable they read these two.
if {![info exists env(XDG_DATA_DIRS)]} {
    append-path XDG_DATA_DIRS /usr/local/share
    append-path XDG_DATA_DIRS /usr/share
}
prepend-path XDG_DATA_DIRS $target/share
END

"$target/python/bin/python" - "$target" "$modulefile" <<'END'
import os, sys
from pathlib import Path

paths = (Path(path).resolve() for path in (*sys.argv[1:], sys.executable, os.__file__))
for each in sorted({each for path in paths for each in (path, *path.parents)}):
    if not each.stat().st_mode & (1 if each.is_dir() else 4):
        print(f"warning: other users cannot use it: {each} is closed to them", file=sys.stderr)
END
trap 'rm -rf "$packages"' EXIT
echo "installed: $target/bin/gpu-runner; not needed any more: this checkout"
echo "next:      module use $modules && module load gpu-runner/$version"
echo "remove:    rm -r $target $modulefile"
