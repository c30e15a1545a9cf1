#!/bin/sh
# What booted_test.py runs as a unit of the machine that it boots. Each "ok" is a step that held; the
# machine is switched off at the end, whatever that is.
set -eu
export DEBIAN_FRONTEND=noninteractive
exec >/check.log 2>&1
ended() {
  journalctl --no-pager -u 'deltawire-*' >/journal.log 2>&1 || true
  # Where no D-Bus runs it says so, and then asks systemd itself.
  systemctl poweroff --no-block >/dev/null 2>&1
}
trap ended EXIT
say() { echo "ok $*"; }
fail() { echo "FAILED: $*"; exit 1; }
quiet() { "$@" >/tmp/said 2>&1 || { cat /tmp/said; fail "$*"; }; }
as() { setpriv --reuid deltawire --regid deltawire --clear-groups "$@"; }
property() { systemctl show --property "$2" --value "$1"; }
# until SECONDS COMMAND...: waits for a condition.
until_true() {
  left=$(($1 * 10))
  shift
  until "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ $left -gt 0 ] || fail "not in time: $*"
    sleep 0.1
  done
}
inactive() { [ "$(property "$1" ActiveState)" = inactive ]; }
status_says() { systemctl status "$1" | grep -q "$2"; }
restarted() { [ "$(property "$1" NRestarts)" = "$2" ] && systemctl is-active --quiet "$1"; }
# publish VERSION RECEIVERS: ends when so many receivers, and all that are attached, have it.
publish() {
  python3 - "$1" <<'PY'
import json, pathlib, struct, sys
version, bytes_ = int(sys.argv[1]), 1 << 20
header = json.dumps({"t": {"dtype": "U8", "shape": [bytes_], "data_offsets": [0, bytes_]}}).encode()
folder = pathlib.Path("/tmp/policy")
folder.mkdir(exist_ok=True)
data = bytearray(bytes(range(256)) * (bytes_ // 256))
data[:: 1000] = bytes([version]) * len(data[:: 1000])
(folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
PY
  until_true 30 test -S /dev/shm/deltawire/trainer.sock
  quiet as deltawire publish /tmp/policy --model policy --version "$1"
  quiet deltawire wait --all --at-least "$2" --model policy --version "$1" --timeout 60
}
# same_bytes RECEIVER: its directory holds what was published last.
same_bytes() { quiet deltawire verify --against /tmp/policy --receiver "$1"; }
# by_delta RECEIVER: its last pull brought each chunk as a delta, and none whole.
by_delta() {
  deltawire status --json --receiver "$1" >/tmp/status.json || fail "no status of $1"
  quiet python3 -c 'import json
pull = json.load(open("/tmp/status.json"))["receiver"]["models"][0]["last_pull"]
assert pull["chunks_full"] == 0 and pull["chunks_delta"] > 0, pull'
}

in_memory=127.0.0.1:7710 on_disk=127.0.0.1:7720
for unit in deltawire-sender deltawire-receiver; do
  systemctl is-enabled --quiet $unit || fail "$unit is not enabled"
  inactive $unit || fail "$unit runs without a configuration"
done
say "booted; the units are enabled, and have no configuration to start with"

examples=/usr/share/deltawire/examples
install -m 640 -g deltawire $examples/sender.toml /etc/deltawire/sender.toml
sed 's|^model = .*|model = ["policy=/dev/shm/deltawire/received"]|' $examples/receiver.toml \
  >/etc/deltawire/receiver.toml
chgrp deltawire /etc/deltawire/receiver.toml
# Type=notify: this returns when both have said that they are ready.
quiet systemctl start deltawire-sender deltawire-receiver
for unit in deltawire-sender deltawire-receiver; do
  [ "$(stat -c %U /proc/"$(property $unit MainPID)")" = deltawire ] || fail "$unit's user"
done
publish 1 1
same_bytes $in_memory
until_true 30 status_says deltawire-receiver 'policy: version 1'
say "started in their sandbox; a version was published and committed, and systemctl status has it"

before=$(property deltawire-receiver MainPID)
quiet systemctl reload deltawire-receiver deltawire-sender
[ "$(property deltawire-receiver MainPID)" = "$before" ] || fail "a reload restarted it"
publish 2 1
say "reloaded by SIGHUP, in the same process"

systemctl kill --signal KILL deltawire-receiver
until_true 30 restarted deltawire-receiver 1
quiet deltawire wait --model policy --version 2 --timeout 60
systemctl kill --signal KILL deltawire-sender
until_true 30 restarted deltawire-sender 1
publish 3 1
same_bytes $in_memory
say "each killed by SIGKILL, started again by systemd, with its model"

# It hangs: the watchdog has 30 s, and then aborts it.
systemctl kill --signal STOP deltawire-receiver
until_true 90 restarted deltawire-receiver 2
publish 4 1
say "stopped by SIGSTOP, ended by the watchdog and started again"

kill -TERM "$(property deltawire-receiver MainPID)"
until_true 30 inactive deltawire-receiver
[ "$(property deltawire-receiver NRestarts)" = 2 ] || fail "SIGTERM: it was started again"
quiet systemctl start deltawire-receiver
echo 'nonsense = 1' >/etc/deltawire/receiver-wrong.toml
chgrp deltawire /etc/deltawire/receiver-wrong.toml
! systemctl start deltawire-receiver@wrong >/dev/null 2>&1 || fail "wrong options were taken"
[ "$(property deltawire-receiver@wrong ActiveState)" = failed ] || fail "wrong options: state"
[ "$(property deltawire-receiver@wrong NRestarts)" = 0 ] || fail "wrong options: tried again"
say "SIGTERM ends it for good, and so do wrong options"

# A directory that is not in memory needs the drop-in.
install -d -o deltawire -g deltawire /srv/deltawire
sed -e 's|^model = .*|model = ["policy=/srv/deltawire/policy"]|' \
  -e 's|^control-listen = .*|control-listen = "'$on_disk'"|' \
  -e 's|^receiver-id = .*|receiver-id = "disk"|' $examples/receiver.toml \
  >/etc/deltawire/receiver-disk.toml
chgrp deltawire /etc/deltawire/receiver-disk.toml
timeout 20 systemctl start deltawire-receiver@disk >/dev/null 2>&1 || true
[ ! -e /srv/deltawire/policy ] || fail "the sandbox let it write to /srv"
systemctl stop deltawire-receiver@disk
mkdir -p /etc/systemd/system/deltawire-receiver@disk.service.d
cp $examples/receiver-data-dir.conf.example \
  /etc/systemd/system/deltawire-receiver@disk.service.d/data-dir.conf
systemctl daemon-reload
quiet systemctl start deltawire-receiver@disk
quiet deltawire wait --model policy --version 4 --timeout 60 --receiver $on_disk
same_bytes $on_disk
say "a model on a disk, with the drop-in and not without it"

before=$(property deltawire-sender MainPID)
instance=$(property deltawire-receiver@disk MainPID)
quiet apt-get -y --no-install-recommends install /newer/*.deb
[ "$(property deltawire-sender MainPID)" != "$before" ] || fail "the upgrade did not restart it"
[ "$(property deltawire-receiver@disk MainPID)" != "$instance" ] ||
  fail "the upgrade did not restart an instance"
[ "$(property deltawire-receiver@wrong ActiveState)" = failed ] ||
  fail "the upgrade started an instance that does not run"
dpkg-query -W -f '${Version}\n' deltawire-sender | grep -qx '0.0.1+test' || fail "the version"
quiet deltawire wait --model policy --version 4 --timeout 60
publish 5 2
for receiver in $in_memory $on_disk; do
  same_bytes "$receiver"
  by_delta "$receiver"
done
say "upgraded while running: both kept their models, and the next version came by delta"

systemctl disable --quiet deltawire-receiver@disk  # it runs on, until its package goes
quiet apt-get -y remove '*deltawire*'
! pgrep -u deltawire >/dev/null || fail "a daemon outlived its package"
[ -e /etc/deltawire/sender.toml ] || fail "the configuration went"
quiet apt-get -y purge '*deltawire*'
! getent passwd deltawire >/dev/null || fail "the user stays"
[ ! -e /dev/shm/deltawire ] || fail "models stay"
say "removed, and purged"
echo "the end"
