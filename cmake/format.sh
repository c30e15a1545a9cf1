#!/usr/bin/env bash
# format.sh [--check | --check-sources]: clang-format over every source in place, or only says what
# is not clean; --check also says which subjects of commits that upstream lacks are too long.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(find bench cli common kernels proto python receiver sender tests -type f \
  \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \))
case ${1:-} in
  '') exec clang-format-14 -i "${sources[@]}" ;;
  --check | --check-sources)
    unclean=$(clang-format-14 --dry-run "${sources[@]}" 2>&1 | sed -n 's/:.*warning.*//p' | sort -u)
    # Commits that can still be changed; without git or an upstream there are none.
    long=
    [[ $1 == --check-sources ]] ||
      long=$(git log --format=%s '@{upstream}..' 2>/dev/null | awk 'length > 72' || true)
    [[ -n $unclean$long ]] || exit 0
    [[ -z $unclean ]] ||
      printf 'format: not clean (./run format puts it right):\n%s\n' "$unclean" >&2
    [[ -z $long ]] ||
      printf 'format: commits with subjects above 72 characters (git rebase -i, reword):\n%s\n' "$long" >&2
    ;;
  *) printf 'format: unknown option %s\n' "$1" >&2 ;;
esac
exit 1
