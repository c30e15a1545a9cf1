"""Known export bugs, planted one at a time, are caught: refused, or seen in the result.

usage: check_planted.py DELTAWIRE CONFIGS_MODELS [SEEDS]
Planted in family files (planted_edits.py) and in what a trainer hands over (here). Each case is also
converted without the bug, which must pass. Prints how each was caught.
"""

import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

if __package__ in (None, ""):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mcore_reference.case import random_case, seeds_that_show
from mcore_reference.model import Model
from mcore_reference.planted_edits import PLANTED
from mcore_reference.values import round_to_bf16, widen
from mcore_reference.write import differences, read_hf, write_hf, write_shards

NO_CHANGE = lambda language: None


class Runs:
    """Cases on disk, each converted once without a bug."""

    def __init__(self, program, folder):
        self.program, self.folder, self.cases = program, folder, {}

    def clean(self, family, seed, change):
        key = (family, seed, change)
        if key not in self.cases:
            case = random_case(family, seed, change)
            where = self.folder / str(len(self.cases))
            shards = case.shards()
            write_hf(where / "hf", case.config, case.hf)
            (where / "config").mkdir(exist_ok=True)
            shutil.copy(where / "hf" / "config.json", where / "config")
            write_shards(where / "shards", case.parallel, shards)
            refusal, problems = self.convert(case, where / "shards", where / "hf")
            assert refusal is None and not problems, (
                f"{family} seed {seed}, nothing planted: {refusal or problems[:5]}")
            self.cases[key] = case, shards, where
        return self.cases[key]

    def convert(self, case, shards, hf, families=None):
        """(the refusal or None, what differs from the expected tensors)."""
        with tempfile.TemporaryDirectory(dir=self.folder) as out:
            command = [self.program, "convert", shards, out, "--hf", hf, "--unmarked"]
            if families is not None:
                command += ["--families", families]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
            if done.returncode == 0:
                return None, differences(case.hf, read_hf(out))
            assert done.returncode > 0, f"ended by signal {-done.returncode}: {done.stderr}"
            left = [path.name for path in pathlib.Path(out).iterdir()]
            assert not left, f"refused, but {left} were written"
            return done.stderr.strip(), []


def judge(refusal, problems, says):
    """How a bug was caught; raises where it was not, or not as it should be."""
    if refusal is None:
        assert problems, "NOT CAUGHT: the result is the expected one"
        assert says is None, f"not refused (wanted: {says!r}), though the result differs: {problems[0]}"
        return f"seen in the result: {len(problems)} tensors, e.g. {problems[0]}"
    assert says is not None, f"refused, which this entry does not know of: {refusal}"
    told = [says] if isinstance(says, str) else says
    assert any(text in refusal for text in told), f"the refusal does not say {says!r}: {refusal}"
    lines = refusal.splitlines()
    return "refused: " + " ".join(line.strip() for line in lines[:3] if line.strip())[:260]


def plant_in_family(runs, entry, seed, configs):
    change = entry.change or NO_CHANGE
    case, _, where = runs.clean(entry.family, seed, change)
    with tempfile.TemporaryDirectory(dir=runs.folder) as families:
        texts = {}
        for edit in entry.edits(Model(case.config)):
            text = texts.get(edit.file) or (configs / f"{edit.file}.toml").read_text()
            texts[edit.file] = edit.apply(text)
        for file, text in texts.items():
            (pathlib.Path(families) / f"{file}.toml").write_text(text)
        hf = where / ("hf" if entry.listing else "config")
        if not entry.listing:
            refusal, _ = runs.convert(case, where / "shards", hf)
            assert refusal is None, f"without a listing, nothing planted: {refusal}"
        return judge(*runs.convert(case, where / "shards", hf, families), entry.says)


# What a trainer may hand over. Each takes {(rank, chunk): {name: array}} and gives what the refusal
# must name; None: nothing but values tells.


def a_parameter_missing(case, shards):
    key = max(shards)
    name = sorted(shards[key])[len(shards[key]) // 2]
    del shards[key][name]
    return f"{stripped(name)} (chunk {key[1]}"


def one_more(case, shards):
    shards[max(shards)]["decoder.layers.0.self_attention.linear_x.weight"] = np.zeros(3, np.uint16)
    return "decoder.layers.0.self_attention.linear_x.weight (chunk"


def stripped(name):
    return name.removeprefix("thinker.").removeprefix("llava_model.").removeprefix("language_model.")


def another(shards, end):
    key, name = next((key, name) for key in sorted(shards, reverse=True)
                     for name in sorted(shards[key]) if name.endswith(end))
    return key, name, shards[key][name]


def wrong_shape(case, shards):
    key, name, array = another(shards, "linear_proj.weight")
    shards[key][name] = array[:, :-1]
    return f"{stripped(name)} (chunk {key[1]}) is [{array.shape[0]}, {array.shape[1] - 1}]"


def exchanged_shape(case, shards):
    key, name, array = another(shards, "linear_proj.weight")
    shards[key][name] = array.T
    return f"{stripped(name)} (chunk {key[1]}) is [{array.shape[1]}, {array.shape[0]}]"


def fp32_where_hf_has_bf16(case, shards):
    for name, array in shards[0, 0].items():
        if name.endswith("word_embeddings.weight"):
            shards[0, 0][name] = widen(array) | np.uint32(1)  # a value that bf16 lacks
            return f"{stripped(name)} is F32 and"
    raise AssertionError("no embedding on rank 0")


def router_bias_rounded(case, shards):
    """As Float16Module leaves the buffer until the first forward pass, which goes on from the rounded
    values: they are the trainer's, so they are widened and not refused.
    """
    for tensors in shards.values():
        for name, array in tensors.items():
            if name.endswith("expert_bias"):
                tensors[name] = round_to_bf16(array)
    return None


def router_bias_rounded_in_fp32(case, shards):
    for tensors in shards.values():
        for name, array in tensors.items():
            if name.endswith("expert_bias"):
                tensors[name] = widen(round_to_bf16(array))
    return None


def chunks_of_first_stage_swapped(case, shards):
    shards[0, 0], shards[0, 1] = shards[0, 1], shards[0, 0]
    return "rank_00000.safetensors: rank 0: "


def swap_ranks(shards, a, b):
    for chunk in {c for _, c in shards}:
        shards[a, chunk], shards[b, chunk] = shards[b, chunk], shards[a, chunk]


def first_and_last_stage_swapped(case, shards):
    swap_ranks(shards, 0, case.parallel.world - 1)
    return "rank_00000.safetensors: rank 0: "


def tp_ranks_swapped(case, shards):
    swap_ranks(shards, 0, 1)
    return None


def chunks_of_a_middle_stage_swapped(case, shards):
    rank = case.parallel.world // case.parallel.pp  # the first of stage 1
    shards[rank, 0], shards[rank, 1] = shards[rank, 1], shards[rank, 0]
    return None


first_two_alike = lambda m, x: x.tp > 1 and x.pp == 1
middle_alike = lambda m, x: (x.pp > 2 and x.vpp == 2 and not x.layout and
                             not (x.first_stage_layers or x.last_stage_layers) and
                             m.layers > x.pp * x.vpp - 2)
HANDED_OVER = [
    (a_parameter_missing, "qwen3_moe", lambda m, x: x.world > 1),
    (one_more, "qwen3", lambda m, x: x.pp > 1),
    (wrong_shape, "qwen3", lambda m, x: m.heads * m.head_dim // x.tp > 1),
    (exchanged_shape, "qwen3", lambda m, x: m.heads * m.head_dim // x.tp != m.hidden),
    (fp32_where_hf_has_bf16, "qwen3", lambda m, x: x.world > 1),
    (router_bias_rounded, "deepseek_v3", lambda m, x: m.correction_bias),
    (router_bias_rounded_in_fp32, "deepseek_v3", lambda m, x: m.correction_bias),
    (chunks_of_first_stage_swapped, "qwen3", lambda m, x: x.vpp == 2),
    (first_and_last_stage_swapped, "qwen3_moe", lambda m, x: x.pp > 1),
    # No name and no shape tells these; what is seen here is that the values are wrong.
    (tp_ranks_swapped, "qwen3", first_two_alike),
    (chunks_of_a_middle_stage_swapped, "llama", middle_alike),
]


def hand_over(runs, change_shards, family, seed):
    case, shards, where = runs.clean(family, seed, NO_CHANGE)
    shards = {key: dict(tensors) for key, tensors in shards.items()}
    says = change_shards(case, shards)
    with tempfile.TemporaryDirectory(dir=runs.folder) as folder:
        write_shards(folder, case.parallel, shards)
        return judge(*runs.convert(case, folder, where / "hf"), says)


def main():
    program, configs = sys.argv[1], pathlib.Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    failed, caught = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(program, pathlib.Path(folder))
        todo = [(f"{e.name} ({e.family})", e.family, e.shows, e.change or NO_CHANGE,
                 lambda seed, e=e: plant_in_family(runs, e, seed, configs)) for e in PLANTED]
        todo += [(f"trainer: {f.__name__.replace('_', ' ')} ({family})", family, shows, NO_CHANGE,
                  lambda seed, f=f, family=family: hand_over(runs, f, family, seed))
                 for f, family, shows in HANDED_OVER]
        for name, family, shows, change, run in todo:
            seed = None
            try:
                for seed in seeds_that_show(family, shows, count, change):
                    how = run(seed)
                print(f"{name}: {how}")
                caught += 1
            except AssertionError as error:
                failed += 1
                print(f"FAILED {name}, seed {seed}: {error}")
    print(f"{caught} of {len(todo)} kinds of error are caught, in {count} cases each")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
