#!/usr/bin/env python3
"""Layouts that megatron-core refuses are refused by `deltawire plan`, and the others are planned.

refusals.json holds megatron-core's own answers, so that any Python can compare plan with them, and no
option asks for more. --ask asks megatron-core again, and --write records what it says: for every case
its config and the model chunks of every pipeline rank are built, in one process with a process group
that only claims to have other members. Both print "SKIPPED: ..." where megatron-core is missing.

usage: refusals_test.py [--ask | --write] [-v]
"""
import argparse
import contextlib
import dataclasses
import io
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import families  # noqa: E402
from layouts import Layout  # noqa: E402

RECORD = pathlib.Path(__file__).with_name("refusals.json")
RENAMED = {"stages": "layout", "first": "first_stage_layers", "last": "last_stage_layers"}
# Of every case: the models are built from megatron-core's own modules, with padding of PAD_TO rows.
OF_ALL = dict(vocab_divisor=families.PAD_TO, spec="local", experts="sequential")


def llama(**more):
    return families.Family(lambda: families.llama(**more), families.FAMILIES["llama"].options)


MODELS = {
    **families.FAMILIES,
    "llama-four-heads": llama(num_attention_heads=4, num_key_value_heads=4, hidden_size=64),
    "llama-six-heads": llama(num_attention_heads=6, num_key_value_heads=3, hidden_size=96),
}


def cases():
    """Yields (what the case is about, model, layout); some layouts are legal, some are not."""
    moe, mla, mtp = "qwen3-moe", "deepseek-v3", "deepseek-v3-mtp"
    for tp in (1, 2, 3, 4, 6, 8):
        yield "heads", "llama-four-heads", Layout(tp=tp)
        yield "groups", "llama-six-heads", Layout(tp=tp)
        yield "groups", "llama-few-groups", Layout(tp=tp)
        yield "MLA's heads", mla, Layout(tp=tp, etp=1)
        yield "experts' heads", moe, Layout(tp=tp, etp=1)
    for ep in (2, 3, 4, 16):
        yield "experts of a dense model", "llama", Layout(dp=ep, ep=ep)
        yield "experts", moe, Layout(dp=ep, ep=ep)
    for etp in (2, 3, 4, 5):
        yield "cut experts", moe, Layout(dp=etp, etp=etp)
    for pp, vpp in ((2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (2, 3), (1, 2), (4, 2)):
        yield "stages", "llama", Layout(pp=pp, vpp=vpp)
    for pp, first, last in ((2, 1, None), (2, 3, 1), (2, 1, 2), (3, 1, 1), (3, 2, 2), (3, 4, None),
                            (2, None, 4), (4, 2, None), (1, 4, None)):
        yield "uneven stages", "llama", Layout(pp=pp, first=first, last=last)
    for pp, embedding, loss in ((2, True, False), (5, True, False), (3, True, True), (6, True, True)):
        yield "counted stages", "llama", Layout(
            pp=pp, account_for_embedding=embedding, account_for_loss=loss
        )
    for pp, stages in (
        (2, "Ett|ttL"), (2, "tEt|ttL"), (2, "Ett|tLt"), (2, "tt|EttL"), (3, "E|tttt|L"),
        (2, "Ett|tttL"), (2, "EttL|tt"), (4, "E|tt|tt|L"), (2, "E|tttt||L"), (2, "Ettt|tmL"),
        (2, "EEtt|ttL"), (2, "Ettt|t"), (2, "|EttttL"), (3, "Ett|tt|"),
    ):
        yield "layouts", "llama", Layout(pp=pp, vpp=(stages.count("|") + 1) // pp, stages=stages)
    for pp, stages in (
        (2, "Ett|ttmL"), (3, "Ett|ttm|L"), (3, "Et|tttm|L"), (2, "Ettttm|L"), (2, "Etttt|mL"),
        (2, "Ettm|ttL"), (2, "Ett|mttL"), (3, "Ett|tt|mL"), (2, "Ett|tt|m|L"), (2, "Et|t|t|tmL"),
        (2, "Et|t|ttm|L"), (2, "Ett|ttL"), (2, "Ett|ttmmL"), (2, "Ett|ttLm"), (1, "EttttmL"),
        (3, "Etttt|m|L"), (2, "E|tttt|m|L"), (2, "E|ttttm||L"),
    ):
        yield "MTP's place", mtp, Layout(pp=pp, vpp=(stages.count("|") + 1) // pp, stages=stages)
    for pp, vpp in ((1, 1), (2, 1), (2, 2)):
        yield "MTP without a layout", mtp, Layout(pp=pp, vpp=vpp)


def asked(family, hf, layout):
    """megatron-core's reason to refuse the layout, or None. A child process finds out, because
    process groups can be made only once per process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            pipe.write(refusal(family, hf, layout) or "")
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if status != 0:
        raise SystemExit(f"the child that asked for {layout.name} ended with status {status}")
    return said or None


def refusal(family, hf, layout):
    import torch
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import models

    for stage in range(layout.pp):
        rank = stage * layout.tp * layout.cp * layout.dp
        torch.distributed.init_process_group(
            backend="fake", rank=rank, world_size=layout.world, store=FakeStore()
        )
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                models.initialize(layout, create_gloo_process_groups=False)
                models.build(family, hf, layout, seed=1)
        except Exception as refusal:  # whatever kind: the trainer would not start
            return f"{type(refusal).__name__}: {refusal}".splitlines()[0]
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()
    return None


def parallel_of(layout):
    """The layout by deltawire's keys, without what is not set. Always with dp, whose default is
    the smallest that fits, and not 1."""
    values = {**dataclasses.asdict(layout), "etp": layout.expert_tp}
    unset = {key: value for key, value in dataclasses.asdict(Layout()).items() if key != "dp"}
    if layout.expert_tp == layout.tp:
        del values["etp"]
    return {RENAMED.get(key, key): value for key, value in values.items()
            if key not in unset or value != unset[key]}


def config_of(model):
    """config.json as transformers saves it, but for its own version, which is no fact of a model."""
    with tempfile.TemporaryDirectory() as directory:
        MODELS[model].config().save_pretrained(directory)
        config = json.loads((pathlib.Path(directory) / "config.json").read_text())
    config.pop("transformers_version", None)
    return config


def answers():
    """What megatron-core says today, as refusals.json has it."""
    import cpu_patches
    import megatron.core

    cpu_patches.apply()
    found = []
    for about, model, layout in cases():
        family = MODELS[model]
        found.append({"about": about, "model": model, "parallel": parallel_of(layout),
                      "refused": asked(family, family.config(), layout)})
    return {"megatron_core": megatron.core.__version__,
            "models": {model: config_of(model) for model in sorted({c["model"] for c in found})},
            "cases": sorted(found, key=place)}


def place(case):
    return case["about"], case["model"], json.dumps(case["parallel"])


def text_of(record):
    """JSON with a line for each model and each case, so that a changed answer is a changed line."""
    models = ",\n".join(f"{json.dumps(name)}: {json.dumps(config)}"
                        for name, config in record["models"].items())
    lines = ",\n".join(json.dumps(case) for case in record["cases"])
    return (f'{{"megatron_core": {json.dumps(record["megatron_core"])},\n'
            f'"models": {{\n{models}}},\n"cases": [\n{lines}]}}\n')


def changes(record, today):
    """Where the record is not what megatron-core says today. Another version may say it in other
    words."""
    same_words = record["megatron_core"] == today["megatron_core"]

    def told(case):
        return case["refused"] if same_words else case["refused"] is not None

    out = [f"{name}: another config" for name in sorted({*record["models"], *today["models"]})
           if record["models"].get(name) != today["models"].get(name)]
    old, new = ({place(case): case for case in r["cases"]} for r in (record, today))
    for key in sorted({*old, *new}):
        if key not in old or key not in new:
            out.append(f"{key}: {'not recorded' if key in new else 'no case any more'}")
        elif told(old[key]) != told(new[key]):
            out.append(f"{key}: recorded: {old[key]['refused'] or 'takes it'}; today: "
                       f"{new[key]['refused'] or 'takes it'}")
    return out


def planned(directory, parallel):
    """deltawire's reason to refuse the layout, or None."""
    deltawire = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]) / "deltawire"
    done = subprocess.run(
        [deltawire, "plan", "--hf", directory, "--parallel", json.dumps({**parallel, **OF_ALL})],
        capture_output=True, text=True, check=False, timeout=60,
    )
    # 1 is a refusal; anything else, such as a signal or wrong usage, is none.
    if done.returncode not in (0, 1):
        raise SystemExit(f"deltawire plan {parallel}: exit {done.returncode}\n{done.stderr}")
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip()


def compare(record, verbose):
    """Returns how many answers of `deltawire plan` differ from the record."""
    listed = sorted((about, model, json.dumps(parallel_of(layout))) for about, model, layout in cases())
    if listed != [place(case) for case in record["cases"]]:
        print(f"{RECORD.name} holds other cases than this script: record them with --write")
        return 1
    wrong = refused = 0
    with tempfile.TemporaryDirectory() as directory:
        for case in record["cases"]:
            config = record["models"][case["model"]]
            (pathlib.Path(directory) / "config.json").write_text(json.dumps(config))
            theirs, ours = case["refused"], planned(directory, case["parallel"])
            refused += theirs is not None
            same = (theirs is None) == (ours is None)
            wrong += not same
            if not same or verbose:
                print(f"{'same ' if same else 'WRONG'}  {case['about']}, {case['model']}, "
                      f"{case['parallel']}\n    megatron-core: {theirs or 'takes it'}\n"
                      f"    deltawire:     {ours or 'takes it'}")
    taken = len(record["cases"]) - refused
    print(f"{refused} refused and {taken} taken by megatron-core {record['megatron_core']}; deltawire "
          f"differs in {wrong}")
    return wrong or not refused or not taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ask", action="store_true", help="megatron-core whether the record is right")
    what.add_argument("--write", action="store_true", help="record what megatron-core says")
    parser.add_argument("-v", action="store_true", help="print every answer")
    options = parser.parse_args()
    if not options.ask and not options.write:
        return 1 if compare(json.loads(RECORD.read_text()), options.v) else 0
    try:
        import megatron.core  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as missing:
        print(f"SKIPPED: {missing}")
        return 0
    today = answers()
    if options.write:
        RECORD.write_text(text_of(today))
        print(f"{RECORD.name}: {len(today['cases'])} answers of megatron-core {today['megatron_core']}")
        return 0
    changed = changes(json.loads(RECORD.read_text()), today)
    for line in changed:
        print(line)
    print(f"megatron-core {today['megatron_core']}: {len(changed)} of {len(today['cases'])} answers "
          "are not the recorded ones" + "; record them with --write" * bool(changed))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
