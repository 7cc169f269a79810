#!/bin/bash
# On a node of a job: the user's sshd, which serves one connection, its standard input, and opens no port.
# Argument: the directory of its configuration and keys. What it starts must not be taken for the job's own processes.
PATH=$PATH:/usr/sbin:/sbin
sshd=$(command -v sshd) || { echo "gpu-runner: $(uname -n) has no sshd, which is in openssh-server" >&2; exit 1; }
env -i PATH="$PATH" "$sshd" -i -e -f "$1/sshd_config" || [ $? -eq 255 ]   # which is also the end of a connection
