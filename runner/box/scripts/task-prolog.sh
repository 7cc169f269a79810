#!/bin/sh
# Slurm's daemons read a user's login environment only as root. Where they are the user, a job with --export=NONE
# would have neither PATH nor HOME nor USER; Slurm adds to a task what this prints.
[ -n "$HOME" ] || echo "export HOME=$(sed -n "s/^$(cat /etc/box/user):\([^:]*:\)\{4\}\([^:]*\):.*/\2/p" /etc/passwd)"
[ -n "$USER" ] || echo "export USER=$(cat /etc/box/user)"
grep -qz '^PATH=' /proc/self/environ || echo "export PATH=/usr/local/bin:/usr/bin:/bin"
