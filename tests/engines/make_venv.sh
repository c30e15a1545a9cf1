#!/usr/bin/env bash
# make_venv.sh ENGINE FOLDER: a virtual environment with a real inference engine for CPU, in about
# 3 GB, from requirements-ENGINE.txt. FOLDER/ready is written last, when the engine could be
# imported; it holds the list's checksum, so a changed list makes a new one.
set -euo pipefail

readonly engine=$1 folder=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here list=$here/requirements-$engine.txt stand_ins=$here/../trainer/stub_cuda_libraries.py
wanted=$(cat "$list" "$stand_ins" | cksum)
readonly wanted

if [[ -x $folder/bin/python3 && $(cat "$folder/ready" 2>/dev/null) == "$wanted" ]]; then exit 0; fi
for tool in cc nm readelf; do
  command -v "$tool" >/dev/null || { echo "no $tool" >&2 && exit 1; }
done

rm -rf "$folder"
python3 -m venv "$folder"
"$folder/bin/pip" install -q --disable-pip-version-check --no-deps --retries 1 --timeout 30 -r "$list"
site=$("$folder/bin/python3" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
python3 "$stand_ins" "$site"
"$folder/bin/python3" -W ignore -c "import torch, $engine"
printf '%s\n' "$wanted" >"$folder/ready"
