"""Values of an HF checkpoint in which every swapped row shows.

bf16 tensors are uint16 bit patterns, F32 tensors uint32. Patterns count up from a start of the
tensor's own, so all elements of a tensor differ (up to 65280 of them), and all are finite: PAD, which
fills vocabulary padding, is a NaN and so can only come from a shard's padding.
"""

import numpy as np

from .hub import HubFile, hf_tensors
from .model import Model

PAD = {np.dtype(np.uint16): 0x7FFF, np.dtype(np.uint32): 0x7FFFFFFF, np.dtype(np.int64): -1}
FINITE_BF16 = 2 * 0x7F80
SMALL_BF16 = 0x4000  # the place of 2.0


def finite_bf16(numbers):
    """The bit pattern of each number's place among the finite bf16 values; wraps around."""
    place = np.asarray(numbers) % FINITE_BF16
    return np.where(place < 0x7F80, place, place + 0x80).astype(np.uint16)


def widen(bf16):
    """bf16 bits to fp32 bits: exact."""
    return bf16.astype(np.uint32) << 16


def round_to_bf16(fp32_bits):
    """fp32 bits to bf16 bits, to nearest, ties to even. Finite values only."""
    bits = fp32_bits.astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def add_one(fp32_bits):
    return (fp32_bits.view(np.float32) + np.float32(1)).view(np.uint32)


def stale(array):
    """Other values of the same shape: what a copy that receives no gradient has drifted to."""
    return array ^ array.dtype.type(1)


def hf_values(config, rng, hub=HubFile()):
    """name -> array for the whole checkpoint. rng is a random.Random."""
    model, out = Model(config), {}
    for name, (shape, dtype) in hf_tensors(config, hub).items():
        count, start = int(np.prod(shape)), rng.randrange(FINITE_BF16)
        if name.endswith("linear_attn.norm.weight"):
            flat = _gdn_norm(count, dtype, rng)
        elif dtype == "BF16":
            # A norm has values to which one can be added: from 2 ** 8 on bf16 may stay the same.
            first = start % SMALL_BF16 if name.endswith("norm.weight") else start
            flat = finite_bf16(first + np.arange(count))
        elif model.csa or name.endswith(("e_score_correction_bias", "expert_bias")):
            # fp32 whose low half is never zero: a trip through bf16 shows.
            low = 1 + (np.arange(count, dtype=np.uint32) * 0x1235 + start) % 0xFFFE
            flat = widen(finite_bf16(start + np.arange(count))) | low.astype(np.uint32)
        else:
            flat = widen(finite_bf16(start + np.arange(count)))  # trained in bf16, kept as F32
        out[name] = flat.reshape(shape)
    embedding = out[model.published(f"{model.hf_prefix}embed_tokens.weight")]
    head = model.published("lm_head.weight")
    if model.tied and head in out:
        out[head] = embedding
    for name in out:
        if model.mtp_layers and name.endswith((".shared_head.head.weight", ".shared_head.output.weight")):
            out[name] = out.get(head, embedding)
        elif model.mtp_layers and name.endswith(".embed_tokens.weight"):
            out[name] = embedding
    return out


def _gdn_norm(count, dtype, rng):
    """A norm's weights near 1, each the sum of 1 and a bf16 number.

    Numbers of at least 2^-8 in multiples of 2^-15, so the sum is exact in fp32.
    """
    offsets = np.array([rng.choice([-1, 1]) * rng.randint(128, 16383) for _ in range(count)])
    bf16 = round_to_bf16((offsets / 32768).astype(np.float32).view(np.uint32))
    total = add_one(widen(bf16))
    return total if dtype == "F32" else round_to_bf16(total)


def mcore_out_norm(hf):
    """What mcore stores for a GDN norm: a bf16 w with w + 1, rounded once, equal to hf.

    Many w give the same bf16 sum. Taken is one off the middle where there is one, now below and now
    above, so that a sum which truncates, or adds 1 in bf16's own bits, is seen.
    """
    if hf.dtype == np.uint32:
        return round_to_bf16((hf.view(np.float32) - np.float32(1)).view(np.uint32))
    value = widen(hf).view(np.float32)
    exact = value - np.float32(1)
    spacing = np.where(value < 1, np.float32(2.0 ** -8), np.float32(2.0 ** -7))  # of bf16 around value
    best = round_to_bf16(exact.view(np.uint32))
    for share in (0.2, 0.3, 0.4):
        sign = np.where(np.arange(hf.size) % 2, np.float32(-1), np.float32(1)).reshape(hf.shape)
        moved = (exact + sign * spacing * np.float32(share)).astype(np.float32)
        tried = round_to_bf16(moved.view(np.uint32))
        same = round_to_bf16(add_one(widen(tried))) == hf
        best = np.where(same, tried, best)
    assert (round_to_bf16(add_one(widen(best))) == hf).all()
    return best.astype(np.uint16)
