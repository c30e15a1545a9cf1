#!/bin/bash
# What guide_test.py runs as a unit of each machine that it boots: a shell that sources /desk/N.sh one
# after the other, with what each says in /desk/N.log and how it ended in /desk/N.status. It is one
# shell, as in a terminal, so a directory or a variable stays; it ends with the first command that
# fails, unless the block says `set +e`. The machine is switched off at the end, whatever that is.
export DEBIAN_FRONTEND=noninteractive HOME=/root
cd
number=1
ended() {
  status=$?
  [[ -e /desk/off ]] || echo $status >"/desk/$number.status"
  journalctl --no-pager -u 'deltawire-*' >/desk/journal 2>&1
  systemctl poweroff --no-block
}
trap ended EXIT
touch /desk/up
while :; do
  until [[ -e /desk/$number.sh ]]; do
    [[ ! -e /desk/off ]] || exit 0
    sleep 0.05
  done
  set -e -o pipefail
  # shellcheck disable=SC1090 # the guide has it
  . "/desk/$number.sh" >"/desk/$number.log" 2>&1 </dev/null
  echo $? >"/desk/$number.status.new"
  set +e
  mv "/desk/$number.status.new" "/desk/$number.status"
  number=$((number + 1))
done
