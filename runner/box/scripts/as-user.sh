#!/bin/sh
# Runs a program as the user of the box: in the box's own user namespace that user is root, and Slurm would try to
# change groups, which such a root may not; one namespace further in, the user has its own number again.
exec unshare --user --map-user="$(cat /etc/box/uid)" --map-group="$(cat /etc/box/gid)" -- "$@"
