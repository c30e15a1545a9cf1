#!/usr/bin/env bash
# Runs the tests or a benchmark of a bundle, without CMake:
#   ./run-tests.sh                     the unit tests; those for a GPU skip where there is none
#   ./run-tests.sh NAME...             only these programs
#   ./run-tests.sh --bench SUITE ARGS  one benchmark; JSON lines in SUITE.jsonl here
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here"

if [[ ${1:-} == --bench ]]; then
  suite=${2:?which benchmark?}
  shift 2
  exec "bin/bench_$suite" --json "$here/$suite.jsonl" "$@"
fi

# The programs look for test files where the source tree stood when they were built. If nothing is
# there, a link to the bundle takes its place.
source_path=$(cat source-path)
if [[ ! -e $source_path ]] && mkdir -p "$(dirname "$source_path")" 2>/dev/null &&
  ln -s "$here" "$source_path" 2>/dev/null; then
  trap 'rm -f "$source_path"' EXIT
fi
[[ -d $source_path/tests/golden ]] ||
  echo "note: $source_path could not be made; tests that read files will fail"

why() { sed -n 's/^SKIPPED: //p' <<<"$1" | sort -u | head -n 3; }

programs=("$@")
((${#programs[@]})) || mapfile -t programs <unit-tests
passed=0 failed=()
for program in "${programs[@]}"; do
  status=0
  said=$("bin/$program" 2>&1) || status=$?
  # Catch counts a case that cannot run here as passed, but the case prints that it was skipped.
  skipped=$(grep -c '^SKIPPED: ' <<<"$said" || true)
  if ((status == 0)); then
    passed=$((passed + 1))
    printf '%-28s ok    %s\n' "$program" "$(grep -E 'passed' <<<"$said" | tail -n 1)"
    ((skipped == 0)) || printf '%-28s       %d cases skipped: %s\n' '' "$skipped" "$(why "$said")"
  elif ((status == 77)); then # DELTAWIRE_SKIP_CODE: no case could run
    printf '%-28s skipped: %s\n' "$program" "$(why "$said")"
  else
    failed+=("$program")
    printf '%-28s FAILED (exit status %d)\n%s\n' "$program" "$status" "$(tail -n 40 <<<"$said")"
  fi
done
printf '%d programs passed, %d failed%s\n' "$passed" "${#failed[@]}" "${failed[*]:+: ${failed[*]}}"
((${#failed[@]} == 0 && passed > 0))
