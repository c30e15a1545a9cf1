"""Which HF row stands at each row of an mcore tensor: index formulas, one function each.

All return integer arrays indexed by the mcore row. Where several HF tensors feed one mcore tensor, the
result counts rows of those HF tensors put one after the other in the order that the function names.
"""

import numpy as np


def chunk_rows(total, parts, part):
    """A plain split: local row i of `part` is row part*n + i, n = total/parts."""
    n = total // parts
    assert n * parts == total
    return part * n + np.arange(n)


def glu_rows(ffn, parts, part, interleave=0):
    """Local fc1 rows of one rank, in [gate (ffn rows); up (ffn rows)]."""
    b = ffn // parts
    assert b * parts == ffn
    i = np.arange(2 * b)
    if interleave:
        # Blocks of `interleave` gate rows and as many up rows take turns within the rank.
        block, inside = i // interleave, i % interleave
        half, o = block % 2, (block // 2) * interleave + inside
    else:
        half, o = i // b, i % b
    return half * ffn + part * b + o


def qkv_rows(heads, groups, head_dim, gated, v_dim=None):
    """The full fused QKV's rows in [q_proj; k_proj; v_proj].

    A KV group is its q heads, (gated: as many gate heads,) its k head, its v head. Gated: q_proj
    holds for each head its head_dim q rows, then its head_dim gate rows. v_dim: rows of a v head, if others.
    """
    per, v_dim = heads // groups, v_dim or head_dim  # q heads a group
    width = (2 * per if gated else per) + 2  # heads a group
    rows = (width - 1) * head_dim + v_dim
    r = np.arange(groups * rows)
    g, x = r // rows, r % rows
    j = np.minimum(x // head_dim, width - 1)
    d = x - j * head_dim
    k_start = heads * head_dim * (2 if gated else 1)
    v_start = k_start + groups * head_dim
    k_or_v = np.where(j == width - 2, k_start + g * head_dim, v_start + g * v_dim) + d
    if not gated:
        q = (g * per + j) * head_dim + d
        return np.where(j < per, q, k_or_v)
    q = (g * per + j) * 2 * head_dim + d
    gate = (g * per + j - per) * 2 * head_dim + head_dim + d
    return np.where(j < per, q, np.where(j < 2 * per, gate, k_or_v))


def component_rows(sizes, parts, part):
    """Each component is split by itself; rows in the components put one after the other."""
    rows, start = [], 0
    for size in sizes:
        rows.append(start + chunk_rows(size, parts, part))
        start += size
    return np.concatenate(rows)


def qwen3_next_gdn_rows(k_heads, v_heads, k_dim, v_dim):
    """Rows of [in_proj_qkvz; in_proj_ba] in the order of components q, k, v, z, b, a.

    HF groups both by key head: [q k v z] and [b a], with all the value heads of that key head.
    """
    vpg = v_heads // k_heads  # value heads a key head
    block = 2 * k_dim + 2 * vpg * v_dim
    key, value, head = np.arange(k_heads * k_dim), np.arange(v_heads * v_dim), np.arange(v_heads)
    q = (key // k_dim) * block + key % k_dim
    k = q + k_dim
    v = (value // (vpg * v_dim)) * block + 2 * k_dim + value % (vpg * v_dim)
    z = v + vpg * v_dim
    ba_start = 2 * k_heads * k_dim + 2 * v_heads * v_dim
    b = ba_start + (head // vpg) * 2 * vpg + head % vpg
    a = b + vpg
    return np.concatenate([q, k, v, z, b, a])
