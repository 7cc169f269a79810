#!/bin/sh
# Makes the virtual environment of a checkout from the lock, with any Python >= 3.10. Argument: its directory.
set -eu
venv=$1
unset PYTHONPATH PYTHONHOME

. runner/setup/python.sh

python=$venv/bin/python
if ! usable "$python"; then
    find_python
    if [ -z "$python" ]; then
        echo "error: no Python 3.10 or newer" >&2
        echo "  fix:   apt-get install python3 python3-venv" >&2
        exit 3
    fi
    if ! has_venv "$python"; then
        sudo=
        [ "$(id -u)" = 0 ] || sudo="sudo -n"
        echo "python3-venv is missing ($python has no ensurepip): installing it" >&2
        if ! { $sudo apt-get -o DPkg::Lock::Timeout=300 -qq update &&
            $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq \
                install --yes --no-install-recommends python3-venv; } >&2 || ! has_venv "$python"; then
            echo "error: $python cannot make a virtual environment" >&2
            echo "  fix:   sudo apt-get install python3-venv" >&2
            exit 3
        fi
    fi
    rm -rf "$venv"
fi
mkdir -p "$venv"
own_tmp "$venv"
trap 'rm -rf "$TMPDIR"' EXIT
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# The build back end and pip are in the lock, too: nothing is fetched without a hash.
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements.lock
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
"$venv/bin/python" runner/setup/quoted_scripts.py
# Where PYTHONDONTWRITEBYTECODE is set, or a checkout cannot be written to later, every call would compile anew.
"$venv/bin/python" -m compileall -q runner
touch "$venv/.ready"
