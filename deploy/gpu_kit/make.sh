#!/usr/bin/env bash
# Packs what a machine with an NVIDIA GPU needs to check and measure the CUDA code: `./run gpu-kit`.
# In that machine's copy of the folder, `./run.sh` then does everything in under 8 minutes.
#   deploy/gpu_kit/make.sh [FOLDER]     default: build/gpu-kit
set -euo pipefail

folder=$(realpath -m -- "${1:-$(dirname "${BASH_SOURCE[0]}")/../../build/gpu-kit}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

die() {
  printf 'gpu-kit: %s\n' "$*" >&2
  exit 1
}
[[ $# -le 1 && ${1:-} != -* ]] || die "unknown option $*"

./run build release gpu_test bench_gpu deltawire-sender deltawire_export
note=$(sed -n 's/^DELTAWIRE_CUDA_NOTE:INTERNAL=//p' build/release/CMakeCache.txt)
[[ $note == nvcc* ]] || die "this build has no CUDA ($note); install nvcc 12.0 or later"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build/bin"
for file in bin/gpu_test bin/bench_gpu bin/deltawire-sender lib/libdeltawire_export.so.2; do
  ln -s "$PWD/build/release/$file" "$work/build/bin/"
done
deploy/bundle.sh "$work/build" "$work/kit.tar.gz" >/dev/null
tar -C "$work" -xzf "$work/kit.tar.gz"
rm -rf "$folder"
mkdir -p "$folder"
mv "$work"/deltawire/{bin,lib,licenses} "$folder/"
cp deploy/gpu_kit/{run.sh,torch_step.py} "$folder/"
printf '%s: %s; run %s/run.sh on a machine with a GPU\n' "$folder" "$(du -sh "$folder" | cut -f 1)" "$folder"
