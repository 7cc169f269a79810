#!/bin/bash
# What a session of ssh runs on a node of a job: a shell, a command, or the server of scp and sftp, beside the job's own
# processes. Arguments: the words before a program that is to run there.
case ${SSH_ORIGINAL_COMMAND-} in
'') set -- "$@" bash ;;
internal-sftp)
  # The container's files are meant, and it has no such server: the node's, through files that are open already.
  for server in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh; do [ ! -x "$server/sftp-server" ] || break; done
  needs=$(ldd "$server/sftp-server")
  libraries=$(sed -n 's|.* => \(/.*\)/libc\.so.*|\1|p' <<<"$needs") loader=$(sed -n 's|^\s*\(/[^ ]*\) (.*|\1|p' <<<"$needs")
  { exec 7<"$libraries" 8<"$loader" 9<"$server/sftp-server"; } 2>/dev/null ||
    { echo "gpu-runner: $(uname -n) has no sftp-server, by which scp copies" >&2; exit 1; }
  set -- "$@" /proc/self/fd/8 --library-path /proc/self/fd/7 /proc/self/fd/9
  ;;
*) set -- "$@" bash -c "$SSH_ORIGINAL_COMMAND" ;;
esac
exec "$@"
