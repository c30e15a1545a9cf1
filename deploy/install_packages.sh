#!/usr/bin/env bash
# install_packages.sh LIST...: installs what is missing of the Debian packages that the lists name, as
# root or with sudo. Does nothing where Debian's tools are not there.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '== %s\n' "$*"; }
die() {
  printf 'packages: %s\n' "$*" >&2
  exit 1
}

if ! command -v dpkg-query >/dev/null; then
  say "no dpkg here; taking for granted what $* lists"
  exit 0
fi
wanted=$(sed -e 's/[[:space:]]*#.*//' -e '/^[[:space:]]*$/d' "$@" | sort -u)
# dpkg-query fails when it does not know a name, and such names are what this looks for.
# shellcheck disable=SC2016 # dpkg-query expands it
mapfile -t missing < <(comm -23 <(echo "$wanted") <({
  xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' <<<"$wanted" 2>/dev/null || true
} | sed -n 's/^installed //p' | sort -u))
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    die "packages are missing and there is no sudo; as root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
readonly log=build/packages.log
mkdir -p build
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y)
say "installing ${#missing[@]} packages: ${missing[*]}"
"${apt[@]}" update >"$log" 2>&1 || say "package lists could not be refreshed; trying with the old"
replaced=$(apt-get -s install --no-install-recommends "${missing[@]}" 2>/dev/null |
  sed -n 's/^Remv \([^ ]*\).*/\1/p' | tr '\n' ' ') || true
[[ -z $replaced ]] || say "they replace: $replaced"
"${apt[@]}" install --no-install-recommends "${missing[@]}" >>"$log" 2>&1 || {
  tail -n 25 "$log" >&2
  die "installing packages failed; the whole log: $log"
}
