#!/usr/bin/env bash
# make_venv.sh FOLDER: a virtual environment with torch, transformers and megatron-core for CPU, in
# 1.7 GB instead of the 5.6 GB that their own lists ask for. FOLDER/ready is written last, when a
# collective has run in it; it holds the requirements' checksum, so a changed list makes a new one.
set -euo pipefail

readonly folder=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
wanted=$(cat "$here/requirements.txt" "$here/stub_cuda_libraries.py" | cksum)
readonly wanted

if [[ -x $folder/bin/python3 && $(cat "$folder/ready" 2>/dev/null) == "$wanted" ]]; then exit 0; fi
for tool in cc nm readelf; do
  command -v "$tool" >/dev/null || { echo "no $tool" >&2 && exit 1; }
done

rm -rf "$folder"
python3 -m venv "$folder"
"$folder/bin/pip" install -q --disable-pip-version-check --no-deps --retries 1 --timeout 15 \
  -r "$here/requirements.txt"
site=$("$folder/bin/python3" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
python3 "$here/stub_cuda_libraries.py" "$site"

# Compiles what the tests will import, and fails here rather than there.
"$folder/bin/python3" -W ignore -c '
import os, tempfile
import megatron.core.distributed, megatron.core.models.gpt.gpt_model, torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
with tempfile.TemporaryDirectory() as folder:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    value = torch.ones(2, 2) @ torch.ones(2, 2)
    torch.distributed.all_reduce(value)
    assert value.sum() == 8
    torch.distributed.destroy_process_group()
'
printf '%s\n' "$wanted" >"$folder/ready"
