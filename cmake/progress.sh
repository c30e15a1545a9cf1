#!/usr/bin/env bash
# progress.sh show|hide: reads a tool's output. On a terminal, lines that tell of progress, such as
# "[3/9] ..." and " 3/9 Test ...", replace one another; elsewhere they are left out. Other lines are
# printed with "show", and left out with "hide", since they are in the log.
set -euo pipefail

others=$1 width=80 busy=
step='^ *\[?[0-9]+/[0-9]+\]? (Test +#[0-9]+: .* Passed |[^T]|T[^e])'
chatter='^( *Start +[0-9]+: |Test project |$)'
[[ ! -t 1 ]] || width=$(tput cols 2>/dev/null || echo 80)
while IFS= read -r line; do
  if [[ $line =~ $step ]]; then
    [[ ! -t 1 ]] || printf '\r\033[K%s' "${line:0:width-1}"
    busy=1
  elif [[ $others == show && ! $line =~ $chatter ]]; then
    [[ ! -t 1 || -z $busy ]] || printf '\r\033[K'
    busy=
    printf '%s\n' "$line"
  fi
done
[[ ! -t 1 || -z $busy ]] || printf '\r\033[K'
