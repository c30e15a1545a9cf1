"""Files: an HF folder, and a folder of Megatron shards. Also a reader of what is written.

HF folder: config.json, model.safetensors. Shard folder: rank_00003.safetensors with tensors
`chunk{v}/` + mcore's name in that chunk (the chunk is always named), and parallel.json.
bf16 is uint16 here and F32 uint32; safetensors' numpy interface knows no bf16, so the format
(8 bytes of header length, JSON, data) is written by hand.
"""

import json
import pathlib

import numpy as np

DTYPE_NAME = {np.dtype(np.uint16): "BF16", np.dtype(np.uint32): "F32"}
DTYPE = {name: dtype for dtype, name in DTYPE_NAME.items()}


def write_safetensors(path, tensors, rng=None):
    """rng: lay the tensors down in a random order, since order carries no meaning."""
    names = sorted(tensors)
    if rng:
        rng.shuffle(names)
    header, offset, data = {}, 0, []
    for name in names:
        array = np.ascontiguousarray(tensors[name])
        header[name] = {"dtype": DTYPE_NAME[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
        data.append(array.astype(array.dtype.newbyteorder("<")).tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    out = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = (start + offset for offset in entry["data_offsets"])
        flat = np.frombuffer(raw[begin:end], DTYPE[entry["dtype"]].newbyteorder("<"))
        out[name] = flat.astype(DTYPE[entry["dtype"]]).reshape(entry["shape"])
    return out


def write_hf(folder, config, hf, rng=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(folder / "model.safetensors", hf, rng)


def read_hf(folder):
    """Every tensor of every .safetensors file in the folder."""
    out = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        for name, array in read_safetensors(path).items():
            assert name not in out, f"{name} is in two files of {folder}"
            out[name] = array
    return out


def write_shards(folder, parallel, shards, rng=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "parallel.json").write_text(json.dumps(parallel.as_json(), indent=2))
    by_rank = {}
    for (rank, chunk), tensors in shards.items():
        by_rank.setdefault(rank, {}).update({f"chunk{chunk}/{name}": a for name, a in tensors.items()})
    for rank, tensors in by_rank.items():
        write_safetensors(folder / f"rank_{rank:05d}.safetensors", tensors, rng)


def read_shards(folder):
    out = {}
    for path in sorted(pathlib.Path(folder).glob("rank_*.safetensors")):
        rank = int(path.stem.removeprefix("rank_"))
        for name, array in read_safetensors(path).items():
            chunk, _, local = name.partition("/")
            out.setdefault((rank, int(chunk.removeprefix("chunk"))), {})[local] = array
    return out


def differences(expected, found):
    """One line for each tensor that is missing, too many, or differs in dtype, shape or bytes."""
    out = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            out.append(f"{name}: missing")
        elif name not in expected:
            out.append(f"{name}: not expected")
        else:
            a, b = expected[name], found[name]
            if a.dtype != b.dtype or a.shape != b.shape:
                out.append(f"{name}: {a.dtype}{a.shape} expected, {b.dtype}{b.shape} found")
            elif not np.array_equal(a, b):
                where = np.argwhere(a != b)
                out.append(f"{name}: {len(where)} of {a.size} elements differ, first at {where[0].tolist()}")
    return out
