#!/usr/bin/env bash
# tidy.sh JOBS [FILE...]: clang-tidy, by DELTAWIRE_TIDY_PYTHON's environment, over the sources that
# build/tidy has commands for. These come from the build's own list, so that a file of no target is
# not checked with made-up flags.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=$1
shift
python3 -B cmake/tidy/once.py build/tidy "$@" >build/tidy/sources
mapfile -d '' -t files <build/tidy/sources
printf '== clang-tidy over %s files\n' "${#files[@]}"
xargs -0 -n 1 -P "$jobs" "${DELTAWIRE_TIDY_PYTHON%python3}clang-tidy" -p build/tidy/once --quiet \
  --warnings-as-errors='*' <build/tidy/sources \
  2> >(grep -vE '^[0-9]+ warnings? (and [0-9]+ errors? )?generated|^Suppressed |Processing file' >&2 || true)
printf '== clang-tidy: clean\n'
