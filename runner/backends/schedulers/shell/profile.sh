# shellcheck shell=bash disable=SC2034,SC2154,SC2329  # what job.sh and other files set and call
# Makes the environment anew by the node's /etc/profile, which brings PATH and the module system. To be read by job.sh
# itself: what a profile declares in a function would be the function's own.
set +u   # the profile reads names that are not set
runner_path=$PATH
# What the scheduler itself sets for a job, and what a file system may need to let the job in.
runner_keep_only 'SLURM*' 'PBS*' 'PALS*' "${runner_own[@]}" GPU_DEVICE_ORDINAL KRB5CCNAME
export PATH=/usr/local/bin:/usr/bin:/bin HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
# shellcheck source=/dev/null
if [ -r /etc/profile ]; then . /etc/profile; fi   # and no start-up file of the user's
export PATH="$PATH:$runner_path"   # at the end: where the scheduler's clients may be
set -u
