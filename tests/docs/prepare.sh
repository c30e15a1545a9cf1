# Prepares what the reader of a document already has. The "before" blocks source it:
#
#   . tests/docs/prepare.sh sender ADDRESS          a sender without keys, on this node
#   . tests/docs/prepare.sh receiver ADDRESS        a receiver of the model policy of that sender
#   . tests/docs/prepare.sh checkpoint STEP...      checkpoints/step-STEP, with one small tensor
#   . tests/docs/prepare.sh tarball                 a tarball of the built programs, here
case "$1" in
sender)
    deltawire-sender --control-listen "$2:7700" --bulk-listen "$2:7701" --insecure-plaintext \
        > sender.log 2>&1 &
    until grep -qs "control $2:7700" sender.log; do sleep 0.1; done
    ;;
receiver)
    deltawire-receiver --sender "$2:7700" --model policy=/dev/shm/policy > receiver.log 2>&1 &
    until grep -qs "control 127.0.0.1:7710" receiver.log; do sleep 0.1; done
    ;;
checkpoint)
    python3 - "${@:2}" <<'PYTHON'
import json, pathlib, struct, sys
for step in sys.argv[1:]:
    at = pathlib.Path(f"checkpoints/step-{step}")
    at.mkdir(parents=True)
    head = json.dumps({"w": {"dtype": "F32", "shape": [1024], "data_offsets": [0, 4096]}}).encode()
    data = bytes([int(step)]) * 4096
    (at / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (at / "config.json").write_text("{}")
PYTHON
    ;;
tarball)
    mkdir -p some/bin
    cp build/release/bin/deltawire build/release/bin/deltawire-sender \
        build/release/bin/deltawire-receiver some/bin
    deploy/bundle.sh some "$PWD/deltawire-0.0.0-linux-x86_64.tar.gz"
    ;;
*)
    echo "prepare.sh: unknown word $1" >&2
    false
    ;;
esac
