#!/bin/sh
# Runs a program as the user of the box: root is root.
exec "$@"
