# shellcheck shell=bash disable=SC2154  # what comes before it sets token, head, image, mounts, programs, modules, is_own
# Whether a node is ready for a job: its bash reads this from ssh's standard input, where words for this job come before
# it. Answers are lines that begin with a mark, since login shells may print anything besides.
say() { printf 'gpu-runner: %s %s\n' "$1" "$2"; }
say machine "$(uname -n) $(cat /proc/sys/kernel/random/boot_id)"
# A network file system may show a new directory late. Who reads the token sees that very directory.
for _ in {1..20}; do [ -r "$token" ] && break; sleep 0.5; done
say token "$(cat -- "$token" 2>/dev/null)"
is_own "${token%/*}" || say exchangeable ''
# shellcheck disable=SC2012  # names of PCI devices
gpus=$(ls /proc/driver/nvidia/gpus 2>/dev/null | wc -l)
[ "$gpus" -gt 0 ] || gpus=$(timeout 15 nvidia-smi -L 2>/dev/null | grep -c '^GPU ')  # WSL2 and gVisor have no such files
[ "$gpus" -gt 0 ] || gpus=$(compgen -G '/dev/nvidia[0-9]*' | wc -l)
say gpus "$gpus"
say head "$(getent ahostsv4 "$head" | head -n 1)"
grep -qE $'^[^\t]+\t00000000\t' /proc/net/route || say no-way-out ''   # a default route (proc(5), /proc/net/route)
[ -z "$image" ] || say image "$(stat -Lc %s -- "$image" 2>/dev/null)"
for i in "${!mounts[@]}"; do [ -e "${mounts[i]}" ] || say no-mount "$i"; done
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || say no-program "$program"
  [ "$program" != python3 ] || say python "$(python3 -X pycache_prefix= -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null)"
done
if [ "${#modules[@]}" -gt 0 ]; then
  say no-modules "$(python3 -X pycache_prefix= -c 'import sys, importlib.util as u
print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))' "${modules[@]}" 2>/dev/null)"
fi
say end ''
