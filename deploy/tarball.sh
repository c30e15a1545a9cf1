#!/usr/bin/env bash
# Builds a tarball of the three programs and their libraries, which runs wherever glibc is as new as
# here: `./run tarball`.
#   deploy/tarball.sh [TARBALL]     default: build/deltawire-VERSION-linux-x86_64.tar.gz
set -euo pipefail

target=${1:+$(realpath -m -- "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  printf 'tarball: %s\n' "$*" >&2
  exit 1
}

[[ $# -le 1 && ${1:-} != -* ]] || die "unknown option $*"
version=$(sed -n 's/^project(deltawire VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

# These are the packages' programs, which do not contain this tree's path.
DELTAWIRE_PYTHON=/usr/bin/python3 ./run build package deltawire deltawire-sender deltawire-receiver
deploy/bundle.sh build/package "${target:-build/deltawire-$version-linux-x86_64.tar.gz}"
