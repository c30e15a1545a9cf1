#!/usr/bin/env bash
# Builds a wheel in build/wheel: `./run wheel`. It holds the Python package, for the Python that
# DELTAWIRE_PYTHON names, the three programs, and all libraries that these need.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# shellcheck source=/dev/null
. tests/support/pythons.sh

(($# == 0)) || die "unknown option $*"
[[ -n ${DELTAWIRE_NO_INSTALL:-} ]] || deploy/install_packages.sh deploy/apt-packages.txt
need_wheel_python
./run build wheel
"$DELTAWIRE_WHEEL_PYTHON" -B deploy/wheel/make.py build/wheel build/wheel
