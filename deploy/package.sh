#!/usr/bin/env bash
# Builds Debian packages in build/package/packages: `./run package`.
#   deploy/package.sh [--check]     --check: also lintian, and an installation, a sync and a purge in a
#                                   root made for it (as root)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  printf 'package: %s\n' "$*" >&2
  exit 1
}

[[ $# == 0 || $* == --check ]] || die "unknown option $*"

[[ -n ${DELTAWIRE_NO_INSTALL:-} ]] || deploy/install_packages.sh deploy/apt-packages.txt
for tool in help2man dpkg-shlibdeps file; do # without these, cpack would fail after the build
  command -v "$tool" >/dev/null || die "no $tool: apt-get install help2man dpkg-dev file"
done

# The packages are for Debian's own Python.
DELTAWIRE_PYTHON=/usr/bin/python3 ./run build package
rm -rf build/package/packages
(cd build/package && cpack >packages.log 2>&1) || die "cpack failed: build/package/packages.log"
ls -sh build/package/packages/*.deb
[[ ${1:-} != --check ]] || python3 -B tests/deploy/packages_check.py build/package/packages
