#!/bin/sh
# Makes in dist/VERSION what a release publishes: wheel, sdist, the list of components (CycloneDX), checksums. It tags
# and uploads nothing. Argument: the Python of the checkout's environment.
set -eu
python=$1
umask 022

refuse() {
    printf 'error: %s\n  fix:   %s\n' "$1" "$2" >&2
    exit 3
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
out=dist/$version
for file in CITATION.cff:"version: $version" runner/__init__.py:"__version__ = \"$version\""; do
    grep -qxF "${file#*:}" "${file%%:*}" || refuse "${file%%:*} has not the version of pyproject.toml, $version" "write: ${file#*:}"
done
grep -qE "^## \[$(echo "$version" | sed 's/\./\\./g')\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
    refuse "CHANGELOG.md has no section of $version" "name the section of what changed: ## [$version] - $(date -u +%F)"
[ -z "$(git status --porcelain)" ] || refuse "there are changes that are not committed" "git status shows them"
[ -z "$(git tag --list "v$version")" ] || refuse "v$version is tagged already" "raise the version in pyproject.toml"

rm -rf "$out"
mkdir -p dist
. runner/setup/python.sh
own_tmp dist
work=$TMPDIR
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # so that two builds of a commit are equal
export SOURCE_DATE_EPOCH
"$python" -m hatchling build --directory "$PWD/$out" --target wheel --target sdist
# Installed as administrators do, with the hashes of the lock: it starts, and shows of what it is made.
PREFIX=$work/installed PYTHON=$python FROM=$PWD/$(echo "$out"/*.whl) sh runner/setup/install.sh >/dev/null
"$work/installed/$version/bin/gpu-runner" --version
"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip --disable-pip-version-check --quiet install cyclonedx-bom==7.5.0 pip-audit==2.10.1
"$work/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --validate \
    --output-file "$out/gpu-runner-$version.cdx.json" "$work/installed/$version/python/bin/python"
"$work/tools/bin/pip-audit" --disable-pip --require-hashes --requirement requirements.lock --format json >"$work/audit"
if skipped=$(grep -o skip_reason "$work/audit" | wc -l) && [ "$skipped" -gt 0 ]; then
    echo "warning: pip-audit knows nothing of $skipped packages: its database was not reached; run it where it is" >&2
fi
(cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
echo "next: git tag --sign v$version --message 'gpu-runner $version' && git push origin v$version; then publish $out/*"
