#!/usr/bin/env bash
# Checks and measures the CUDA code on this machine's GPU, the most valuable first, and prints a
# summary last. Logs and JSON lines go to $OUT (default: out, here).
#   ./run.sh [--mib N] [--runs N] [--seconds N]     a half's size (8192), runs of each case (3), the
#                                                   time for all (470)
# A step without a device or a tool is skipped, and counted as such. Exit status: 1 if a step failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

mib=8192 runs=3 seconds=470
while (($#)); do
  case $1 in
    --mib) mib=${2:?} ;;
    --runs) runs=${2:?} ;;
    --seconds) seconds=${2:?} ;;
    *)
      printf 'run.sh: unknown option %s\n' "$1" >&2
      exit 1
      ;;
  esac
  shift 2
done
export OUT=${OUT:-$PWD/out} mib
mkdir -p "$OUT"
export PATH=$PATH:/usr/local/cuda/bin

readonly skip_code=77 # of a program that could not run here, as DELTAWIRE_SKIP_CODE
passed=0 failed=0 skipped=0 summary=

# step SECONDS NAME COMMAND...: runs the command for so long at most, and adds a line to the summary.
step() {
  local limit=$1 name=$2 status=0 started=$SECONDS left=$((seconds - SECONDS)) verdict why=
  shift 2
  printf '\n## %s\n' "$name"
  if ((left < 5)); then
    status=$skip_code why=': no time is left'
  else
    timeout --kill-after 5 $((limit < left ? limit : left)) "$@" >"$OUT/$name.txt" 2>&1 || status=$?
    tail -n 60 "$OUT/$name.txt"
    ((status != skip_code)) || why=": $(sed -n 's/^SKIPPED: //p' "$OUT/$name.txt" | head -n 1)"
  fi
  case $status in
    0) verdict=ok passed=$((passed + 1)) ;;
    "$skip_code") verdict="skipped$why" skipped=$((skipped + 1)) ;;
    124 | 137) verdict="FAILED: stopped after $limit s" failed=$((failed + 1)) ;;
    *) verdict="FAILED: exit status $status" failed=$((failed + 1)) ;;
  esac
  summary+=$(printf '%-12s %4d s  %s' "$name" $((SECONDS - started)) "$verdict")$'\n'
}

skip() {
  printf 'SKIPPED: %s\n' "$*"
  exit "$skip_code"
}

machine() {
  uname -r
  nproc
  free -g | sed -n 2p
  df -h /dev/shm | tail -n 1
  command -v nvidia-smi >/dev/null || skip "no nvidia-smi"
  nvidia-smi --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max \
    --format=csv,noheader || skip "nvidia-smi sees no device"
}

# After a failure each case runs in a process of its own, because CUDA's errors stay.
gpu_tests() {
  local status=0 name
  bin/gpu_test || status=$?
  ((status == 0 || status == skip_code)) && return $status
  bin/gpu_test --list-test-names-only | while IFS= read -r name; do
    [[ -n $name ]] || continue
    timeout 20 bin/gpu_test "$name" >"$OUT/case.txt" 2>&1
    echo "exit status $?: $name"
  done
  return $status
}

# bench NAME ARGS...: a run of the benchmark, which checks every result.
bench() {
  local name=$1
  shift
  bin/bench_gpu --json "$OUT/$name.jsonl" "$@" | tee "$OUT/$name-table.txt"
  local status=${PIPESTATUS[0]}
  ! grep -q '^not measured: no CUDA device' "$OUT/$name-table.txt" || skip "no CUDA device"
  return "$status"
}

sanitize() { # sanitize TOOL CASES
  command -v compute-sanitizer >/dev/null || skip "no compute-sanitizer"
  compute-sanitizer --tool "$1" --error-exitcode 9 bin/gpu_test "$2"
}

profile() {
  command -v ncu >/dev/null || skip "no ncu"
  ncu --clock-control none --section SpeedOfLight --section Occupancy --launch-skip 24 --launch-count 8 \
    -k 'regex:EncodeKernel|DigestKernel|ScatterKernel|PlaceKernel' bin/bench_gpu --mib 512 \
    --density 0.01 --runs 1 --only 'diff_encode/on-device|digest|engine/apply|place/columns'
}

python_step() {
  command -v python3 >/dev/null || skip "no python3"
  python3 -B torch_step.py --mib $((mib / 4)) --dir "$OUT/sender"
}

export -f machine gpu_tests bench sanitize profile python_step skip
export skip_code
# A container's /dev/shm has 64 MB unless somebody asked for more.
room=$(df --output=avail -m /dev/shm | tail -n 1)
((room > 3 * mib)) || mount -o "remount,size=$((4 * mib))m" /dev/shm 2>/dev/null ||
  printf 'note: /dev/shm has room for %d MiB only\n' "$room"

step 15 machine bash -c machine
step 100 gpu_test bash -c gpu_tests
step 170 bench bash -c "bench bench --mib $mib --density 0.01 --runs $runs --seconds 140"
step 60 torch bash -c python_step
step 50 densities bash -c "bench densities --mib $((mib / 8 > 0 ? mib / 8 : 1)) --density 0.001,0.3 \
  --runs $runs --seconds 35 --only trainer/,diff_encode,decode_apply,engine/"
step 70 memcheck bash -c "sanitize memcheck 'GPU diffs from a base*,GPU diffs of thousands*,GPU resident bases*,GPU scatter takes*,A GPU queue*'"
step 70 racecheck bash -c "sanitize racecheck 'GPU resident bases*,GPU scatter takes*'"
step 40 profile bash -c profile
printf '\n%s%d ok, %d failed, %d skipped in %d s\n' "$summary" $passed $failed $skipped $SECONDS |
  tee "$OUT/summary.txt"
((failed == 0))
