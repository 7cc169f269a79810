#!/bin/bash
# Apptainer, and Singularity: COMMAND ... of each rank.
#
# shellcheck source=../../leftovers.sh
. "${0%/*}/leftovers.sh"
unset_unsafe TMPDIR APPTAINER_TMPDIR SINGULARITY_TMPDIR # where FUSE is not available, the image is unpacked there
exec "$@"
