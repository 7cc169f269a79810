#!/bin/sh
# Makes the pages as a site with search, build/pages/site, by a tool in an environment of its own. Argument: a Python.
set -eu
. runner/setup/python.sh
tools=build/pages/tools
source=build/pages/source
pinned='mkdocs==1.6.1 mkdocs-material==9.8.2'

if [ "$(cat "$tools/pinned" 2>/dev/null)" != "$pinned" ]; then
    rm -rf "$tools"
    mkdir -p "$tools"
    own_tmp "$tools"
    "$1" -m venv "$tools"
    # shellcheck disable=SC2086 # two names
    "$tools/bin/python" -m pip --disable-pip-version-check --quiet install $pinned
    echo "$pinned" >"$tools/pinned"
fi
rm -rf "$source"
mkdir -p "$source"
cp -R docs ./*.md "$source"
NO_MKDOCS_2_WARNING=1 "$tools/bin/mkdocs" build --strict --config-file runner/setup/pages/mkdocs.yml
echo "build/pages/site: python3 -m http.server --directory build/pages/site"
