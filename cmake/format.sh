#!/usr/bin/env bash
# format.sh [--check]: clang-format over every source in place, or only says what is not clean.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(find bench cli common kernels proto python receiver sender tests -type f \
  \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \))
case ${1:-} in
  '') exec clang-format-14 -i "${sources[@]}" ;;
  --check)
    unclean=$(clang-format-14 --dry-run "${sources[@]}" 2>&1 | sed -n 's/:.*warning.*//p' | sort -u)
    [[ -n $unclean ]] || exit 0
    printf 'format: not clean (./run format puts it right):\n%s\n' "$unclean" >&2
    ;;
  *) printf 'format: unknown option %s\n' "$1" >&2 ;;
esac
exit 1
