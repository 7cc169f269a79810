#!/bin/bash
# A keeper's task, one a node: makes its node ready, says so, and cleans up at the end of its input: slurmd's signals
# reach every process of a job at once, while ranks may still be writing. What a node's failure or SIGKILL leaves is
# removed by the next job of the same user there (leftovers.sh).
# Arguments: how many words the first command has; the command that makes ready; the command that cleans up.
first=("${@:2:$1}") last=("${@:2+$1}") code=0
trap : HUP INT TERM USR1 USR2
set -m; "${first[@]}" >"logs/node-$SLURMD_NODENAME.log" 2>&1 </dev/null & work=$!; set +m
while kill -0 "$work" 2>/dev/null; do
  read -r -t 0.2 _; [ $? -gt 128 ] || { kill -TERM -- "-$work"; break; }
done
while kill -0 "$work" 2>/dev/null; do wait "$work"; done
wait "$work" || code=$?
if [ "$code" -eq 0 ]; then
  echo ready
  while :; do read -r -t 60 _; [ $? -gt 128 ] || break; done
else
  echo failed
fi
trap "" HUP INT TERM USR1 USR2
# What the clean-up says is no evidence of why a job failed: it stands apart from what is.
"${last[@]}" >>logs/cleanup.log 2>&1 </dev/null
exit "$code"
