#!/bin/bash
# As NVIDIA's images do it: run every script and print every text of entrypoint.d, then the command.
shopt -s nullglob
for part in /opt/nvidia/entrypoint.d/*; do
    case "${part}" in
        *.txt) cat "${part}" ;;
        *.sh) . "${part}" ;;
    esac
done
if [ $# -eq 0 ]; then
    exec /bin/bash
fi
exec "$@"
