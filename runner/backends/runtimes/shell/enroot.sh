#!/bin/bash
# Enroot without Pyxis. Its data may lie in a home that nodes share: the node is part of a container's name.
#
#     create RC NAME IMAGE ...           once a node; then the second and third argument of is_left
#     start RC NAME VARIABLES N ...      each rank: N options of enroot start, then the program
#     remove NAME                        once a node, at the end
#
# RC stands for the image's command script, which would run its entry point first. A file: no pipe reaches Enroot's own
# namespace ("cp: cannot stat '/dev/fd/63'", 4.1.2). Each node writes the same one, whole. NAME: PREFIX-JOB.
node=$(uname -n)
case $1 in
create)
  # shellcheck source=../../leftovers.sh
  . "${BASH_SOURCE%/*}/leftovers.sh" || exit
  printf 'enroot\t%s\n' "$(enroot version 2>&1)" >"versions-$(uname -n)"   # of this node
  data=$(enroot_data)
  [ -n "$data" ] || {   # as where it cannot be made yet: another user could make it by then
    enroot remove gpu-runner-none </dev/null >&2 && echo "$node: Enroot does not say where it keeps containers" >&2
    exit 1
  }
  is_own "$data" || {
    stat -c "$node: another user could exchange containers in %n, which is %U's; fix: set ENROOT_DATA_PATH" -- "$data" >&2
    exit 1
  }
  rc=$2 prefix=${3%%-*}- own=${3#*-} name=$3-$node
  for old in $(enroot list); do
    [ "${old%"-$node"}" != "$old" ] && [ "${old#"$prefix"}" != "$old" ] && [ "$old" != "$name" ] || continue
    job=${old#"$prefix"} job=${job%"-$node"}
    if is_left "$job" "$5" "$6" "$own"; then
      echo "$node: removing $old, of a job that has ended"
      enroot remove --force "$old"
    fi
  done
  # shellcheck disable=SC2016  # the container's shell expands it
  printf '%s\n' 'exec "$@"' >"$rc.$node" && mv -f -- "$rc.$node" "$rc" && exec enroot create --force --name "$name" "$4"
  ;;
start)
  # enroot clears the environment, and --env NAME takes the host's value: those of each task are named in the task.
  rc=$2 name=$3-$node variables=$4 count=$5
  shift 5
  set -f   # patterns of names, not of files
  options=(--rc "$rc")
  while IFS= read -r variable; do
    for pattern in $variables; do
      # shellcheck disable=SC2053  # it is a pattern
      [[ $variable == $pattern ]] && options+=(--env "$variable") && break
    done
  done < <(compgen -e)
  exec enroot start "${options[@]}" "${@:1:count}" "$name" "${@:count+1}"
  ;;
remove)
  name=$2-$node
  if enroot list | grep -qxF -- "$name"; then enroot remove --force "$name"; fi
  ;;
esac
