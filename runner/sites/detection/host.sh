#!/bin/sh
# What one host has, as NAME=VALUE lines; a name may come several times. Arguments: programs to look for. For sh: nodes
# may have little more.
say() { printf '%s=%s\n' "$1" "$2"; }
say host "$(uname -n)"
say kernel "$(uname -r)"
say cpu "$(uname -m)"
say os "$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release 2>/dev/null | tr -d '"')"
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
for name in user/max_user_namespaces kernel/unprivileged_userns_clone kernel/apparmor_restrict_unprivileged_userns; do
    [ ! -r "/proc/sys/$name" ] || say "${name#*/}" "$(cat "/proc/sys/$name")"
done
for program; do
    [ -z "$(command -v "$program")" ] || say program "$program"
done
ask() { timeout 15 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }
# WSL2 and gVisor have no such file.
say driver "$(head -n 1 /proc/driver/nvidia/version 2>/dev/null || ask driver_version | head -n 1)"
ask name,compute_cap,mig.mode.current | while read -r line; do say gpu "$line"; done
for port in /sys/class/infiniband/*/ports/*/link_layer; do
    [ ! -r "$port" ] || say fabric "$(cat "$port")"
done
for interface in /sys/class/net/hsn[0-9]*; do
    [ ! -e "$interface" ] || say fabric Slingshot
done
say scratch "${PSCRATCH:-${SCRATCH:-}}"
say user "$(id -un)"
