#!/bin/sh
# What packages_check.py does inside of its root. Each "ok" is a step that held.
set -eu
export DEBIAN_FRONTEND=noninteractive
say() { echo "ok $*"; }
quiet() { "$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }
as() { setpriv --reuid deltawire --regid deltawire --clear-groups "$@"; }

dpkg-query -W -f '${Package}\n' | sort >/tmp/before
quiet apt-get -y --no-install-recommends install /debs/*.deb
say "installed: $(dpkg-query -W -f '${Package} ' '*deltawire*')"
getent passwd deltawire >/dev/null
[ "$(stat -c '%U %a' /etc/deltawire)" = "root 750" ]
[ "$(stat -c '%U %a' /dev/shm/deltawire)" = "deltawire 755" ]
say "user and directories are there"
[ -h /etc/systemd/system/multi-user.target.wants/deltawire-sender.service ]
[ -h /etc/systemd/system/multi-user.target.wants/deltawire-receiver.service ]
[ ! -e /etc/deltawire/receiver.toml ]
say "units are enabled, and have no configuration to start with"
! ldd /usr/bin/deltawire /usr/bin/deltawire-sender /usr/bin/deltawire-receiver | grep -q 'not found'
deltawire --version >/dev/null
say "programs have their libraries"

install -m 640 -g deltawire /usr/share/deltawire/examples/sender.toml /etc/deltawire/sender.toml
install -m 640 -g deltawire /usr/share/deltawire/examples/receiver.toml /etc/deltawire/receiver.toml
as deltawire-sender --config /etc/deltawire/sender.toml >/tmp/sender.log 2>&1 &
sender=$!
# On one machine with its sender the receiver needs a directory of its own.
as deltawire-receiver --config /etc/deltawire/receiver.toml \
  --model policy=/dev/shm/deltawire/received >/tmp/receiver.log 2>&1 &
receiver=$!
mkdir /tmp/policy
python3 - <<'PY'
import json, struct
header = json.dumps({"t": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
with open("/tmp/policy/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header + bytes(range(64)))
PY
for _ in $(seq 100); do [ ! -S /dev/shm/deltawire/trainer.sock ] || break; sleep 0.1; done
as deltawire publish /tmp/policy --version 1 >/tmp/said 2>&1 || { cat /tmp/said /tmp/*.log; exit 1; }
deltawire wait --version 1 --model policy --timeout 60 >/tmp/said 2>&1 ||
  { cat /tmp/said /tmp/*.log; exit 1; }
say "a version was published and committed, by the sample configurations"
python3 -c 'import deltawire, deltawire.engine'
say "Python imports the package"
kill $sender $receiver
wait $sender $receiver || true

quiet apt-get -y --reinstall install /debs/*.deb
say "installed again"
# An instance that the operator enabled.
ln -s /lib/systemd/system/deltawire-receiver@.service \
  /etc/systemd/system/multi-user.target.wants/deltawire-receiver@b.service
quiet apt-get -y remove '*deltawire*'
[ -e /etc/deltawire/receiver.toml ]
say "removed; the configuration stays"
quiet apt-get -y purge '*deltawire*'
! getent passwd deltawire >/dev/null
[ ! -h /etc/systemd/system/multi-user.target.wants/deltawire-receiver@b.service ]
[ ! -e /etc/deltawire ] && [ ! -e /dev/shm/deltawire ]
# What came as a dependency goes, too, so that only deltawire's own traces could be left.
dpkg-query -W -f '${Package}\n' | sort >/tmp/after
comm -13 /tmp/before /tmp/after >/tmp/new
quiet xargs -r apt-get -y --allow-remove-essential purge </tmp/new
say "purged"
rm -rf /tmp/policy /tmp/said /tmp/*.log /tmp/before /tmp/after /tmp/new
