#!/usr/bin/env bash
# make_venv.sh LIST FOLDER ARGUMENT...: a virtual environment with what LIST pins, installed as it
# stands, and stand-ins for CUDA's libraries. Its Python then runs with the ARGUMENTs, which import
# what the tests will (and so compile it), and fail here rather than there. FOLDER/ready is written
# last; it holds a checksum of the list, so a changed list makes a new one. VENV_PYTHON: instead of
# python3.
set -euo pipefail

readonly list=$1 folder=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here stand_ins=$here/stub_cuda_libraries.py triton=$here/stub_triton.py
wanted=$(cat "$list" "$stand_ins" "$triton" | cksum)
readonly wanted

if [[ -x $folder/bin/python3 && $(cat "$folder/ready" 2>/dev/null) == "$wanted" ]]; then exit 0; fi
for tool in cc nm readelf; do
  command -v "$tool" >/dev/null || { echo "no $tool" >&2 && exit 1; }
done

rm -rf "$folder"
"${VENV_PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install -q --disable-pip-version-check --no-deps --retries 1 --timeout 30 -r "$list"
site=$("$folder/bin/python3" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
python3 "$stand_ins" "$site"
python3 "$triton" "$site"
"$folder/bin/python3" -W ignore "$@"
printf '%s\n' "$wanted" >"$folder/ready"
