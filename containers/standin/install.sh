#!/bin/sh
# Turns a plain Debian root into the stand-in for one of NVIDIA's images. Runs in a container, from /standin:
#   wheels/  the framework and what it needs     rootfs/  files laid over the root     host/  CA bundle and pip
#   settings of the machine that builds this test base (never of an image that users get)
# install.sh PRODUCT PINNED REQUIREMENT...      PINNED: packages|of|the|constraint|file
set -eu
product=$1
pinned=$2
shift 2
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
cp -r /standin/rootfs/. /
sed -i "s/PRODUCT/${product}/g" /opt/nvidia/entrypoint.d/10-banner.txt
[ ! -s /standin/host/ca-certificates.crt ] || cp /standin/host/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
[ ! -s /standin/host/pip.conf ] || cp /standin/host/pip.conf /etc/pip.conf
if [ $# -gt 0 ]; then
    python3 -m pip install --no-index --no-cache-dir --quiet --root-user-action=ignore --find-links /standin/wheels "$@"
fi
mkdir -p /workspace /etc/pip
# NVIDIA's images pin what they ship, so that a later pip install cannot replace it.
python3 -m pip list --format=freeze | sed 's/_/-/g' | grep -E "^(${pinned})==" > /etc/pip/constraint.txt
# First line: Debian's own bashrc returns at once in a shell that is not interactive.
sed -i '1i . /etc/shinit_v2' /etc/bash.bashrc
rm -rf /standin /root/.cache /tmp/* /usr/lib/python3/dist-packages/__pycache__
