"""deltawire convert's options, one by one: what each does, and where it is refused.

usage: check_command.py DELTAWIRE
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

if __package__ in (None, ""):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mcore_reference.case import random_case, seeds_that_show
from mcore_reference.values import round_to_bf16
from mcore_reference.write import (differences, read_hf, read_safetensors, read_shards, write_hf,
                                   write_shards)

PROGRAM = ""
FAILED, USAGE = 1, 2


class Convert(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)
        self.hf, self.out = self.folder / "hf", self.folder / "out"

    def run_tool(self, *args):
        return subprocess.run([PROGRAM, "convert", *map(str, args)], capture_output=True, text=True,
                              timeout=60)

    def converts(self, *args):
        done = self.run_tool(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refuses(self, code, text, *args):
        before = sorted(self.folder.rglob("*"))
        done = self.run_tool(*args)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def checkpoint(self, family="qwen3", seed=0):
        case = random_case(family, seed)
        write_hf(self.hf, case.config, case.hf)
        return case

    def names(self, folder):
        return {name for held in read_shards(folder).values() for name in held}

    def test_options_that_would_do_nothing_are_refused(self):
        self.checkpoint()
        self.converts(self.hf, self.folder / "shards", "--parallel", "tp=1")
        for args, text in (
            (["shards", "out", "--core-version", "0.19"], "--core-version is for shards"),
            (["shards", "out", "--round"], "--round is for shards"),
            (["hf", "out", "--parallel", "tp=1", "--max-shard-size", "1KB"],
             "--max-shard-size is for the files of an HF directory"),
            (["shards", "out", "--parallel", "tp=1", "--max-shard-size", "1KB"],
             "--max-shard-size is for the files of an HF directory"),
            (["hf", "out", "--parallel", "tp=1", "--unmarked"], "--unmarked is for rank files"),
        ):
            with self.subTest(args):
                self.refuses(USAGE, text, *(self.folder / a if a in ("hf", "shards", "out") else a
                                            for a in args))

    def test_values_are_rounded_on_a_word_only(self):
        case = self.checkpoint()
        wide = {name: (array.astype(np.uint32) << 16) | 0x9234 for name, array in case.hf.items()}
        write_hf(self.hf, case.config, wide)
        self.refuses(FAILED, "say --round", self.hf, self.out, "--parallel", "tp=1")
        said = self.converts(self.hf, self.out, "--parallel", "tp=1", "--round")
        self.assertIn(f"rounded to fewer bits: {len(wide)} tensors", said)
        self.converts(self.out, self.folder / "back")
        rounded = {name: round_to_bf16(array).astype(np.uint32) << 16 for name, array in wide.items()}
        self.assertEqual(differences(rounded, read_hf(self.folder / "back")), [])
        # Numbers that bf16 holds are only stored in more bits: nothing is rounded.
        write_hf(self.hf, case.config, rounded)
        said = self.converts(self.hf, self.out, "--parallel", "tp=1", "--replace")
        self.assertNotIn("rounded", said)

    def test_core_version_chooses_the_names(self):
        seed, = seeds_that_show("deepseek_v3", lambda m, x: m.mtp_layers == 1, 1)
        self.checkpoint("deepseek_v3", seed)
        for args, version, inner in (
            ([], "0.16", "transformer_layer"),
            (["--core-version", "0.18"], "0.18", "transformer_layer"),
            (["--core-version", "0.19.1"], "0.19", "mtp_model_layer"),
        ):
            with self.subTest(args):
                self.converts(self.hf, self.out, "--parallel", "tp=1", "--replace", *args)
                stated = json.loads((self.out / "parallel.json").read_text())["core_version"]
                self.assertEqual(stated, version)
                found = {match[1] for name in self.names(self.out)
                         if (match := re.match(r"mtp\.layers\.0\.(\w+_layer)\.", name))}
                self.assertEqual(found, {inner})
        # Names of every version are read, so one version's shards become another's.
        newer = self.out.rename(self.folder / "newer")
        self.converts(newer, self.out, "--parallel", "tp=1", "--core-version", "0.14")
        self.assertTrue(any(".transformer_layer." in name for name in self.names(self.out)))
        self.refuses(FAILED, "0.x", self.hf, self.folder / "none", "--parallel", "tp=1",
                     "--core-version", "0.x")

    def test_from_is_not_written_to(self):
        case = self.checkpoint()
        for to in (self.hf, self.folder / "." / "hf", self.folder):
            for more in ([], ["--replace"]):
                with self.subTest(to=to, more=more):
                    self.refuses(FAILED, "is read from, and would be replaced", self.hf, to,
                                 "--parallel", "tp=1", *more)
        self.assertEqual(differences(case.hf, read_hf(self.hf)), [])

    def test_another_layout_into_one_directory(self):
        seed, = seeds_that_show("llama", lambda m, x: m.heads % 8 == 0 and m.groups in (2, 4)
                                and m.ffn % 8 == 0 and m.heads * m.head_dim % 8 == 0
                                and m.fused_qkv_rows() % 8 == 0, 1)
        case = self.checkpoint("llama", seed)
        self.converts(self.hf, self.out, "--parallel", "tp=8")
        self.assertEqual(len(list(self.out.glob("rank_*"))), 8)
        self.refuses(FAILED, "pass --replace", self.hf, self.out, "--parallel", "tp=2")
        self.assertEqual(len(list(self.out.glob("rank_*"))), 8)
        self.converts(self.hf, self.out, "--parallel", "tp=2", "--replace")
        self.assertEqual(sorted(path.name for path in self.out.glob("rank_*")),
                         ["rank_00000.safetensors", "rank_00001.safetensors"])
        self.converts(self.out, self.folder / "back")
        self.assertEqual(differences(case.hf, read_hf(self.folder / "back")), [])

    def test_families_takes_one_directory_and_may_be_repeated(self):
        case = self.checkpoint("llama")
        for name in ("a", "b"):
            (self.folder / name).mkdir()
            (self.folder / name / "f.toml").write_text(
                f'family = "{name}"\nextends = "llama"\nmatch = {{ when = "0" }}\n')
        self.converts("--families", self.folder / "a", "--families", self.folder / "b",
                      "--parallel", "tp=1", "--family", "b", self.hf, self.out)
        self.converts("--families", self.folder / "b", self.out, self.folder / "back", "--family", "b")
        self.assertEqual(differences(case.hf, read_hf(self.folder / "back")), [])

    def test_shards_are_cut_from_the_tensors_of_from_wherever_another_checkpoint_has_them(self):
        """--hf names a checkpoint of the same model whose files have another order."""
        case = self.checkpoint()
        tuned, back = self.folder / "tuned", self.folder / "back"
        other = {name: np.roll(array, 1) for name, array in case.hf.items()}
        write_hf(tuned, case.config, other, random.Random(1))
        self.converts(tuned, self.out, "--parallel", "tp=1,pp=1", "--hf", self.hf)
        self.converts(self.out, back)
        self.assertEqual(differences(other, read_hf(back)), [])
        # A checkpoint that has not the same tensors is of no use, and is refused by their names.
        name = sorted(other)[-1]
        for change in ({name: other[name][:-1]}, {"surplus": other[name]}):
            write_hf(tuned, case.config, {**other, **change}, random.Random(1))
            self.refuses(FAILED, next(iter(change)), tuned, self.folder / "none", "--parallel", "tp=1",
                         "--hf", self.hf)

    def test_a_copy_that_differs_is_refused(self):
        """Of a tied model the trainer has one parameter, so a checkpoint cannot have two values."""
        case = self.checkpoint()  # tied, with both tensors
        head, embedding = "lm_head.weight", "model.embed_tokens.weight"
        self.assertTrue(np.array_equal(case.hf[head], case.hf[embedding]))
        write_hf(self.hf, case.config, {**case.hf, head: np.roll(case.hf[head], 1)})
        for layout in ("tp=1", "tp=2", "tp=1,pp=2"):
            with self.subTest(layout):
                self.refuses(FAILED, f"{embedding} and {head} are one parameter", self.hf, self.out,
                             "--parallel", layout)

    def test_an_unwritable_place_is_named(self):
        self.checkpoint()
        (self.folder / "file").write_text("x")
        self.refuses(FAILED, str(self.folder / "file"), self.hf, self.folder / "file" / "to",
                     "--parallel", "tp=1")

    def test_norms_that_are_rounded_are_named(self):
        """Norms of which HF has the trainer's value plus one."""
        seed = next(seed for seed in range(100) if not random_case("qwen3_next", seed).hub.gdn_fp32)
        case = random_case("qwen3_next", seed)
        write_hf(self.hf, case.config, case.hf)
        shards = self.folder / "shards"
        write_shards(shards, case.parallel, case.shards())
        said = self.converts(shards, self.out, "--hf", self.hf, "--unmarked")
        count = sum(name.endswith("linear_attn.norm.weight") for name in case.hf)
        self.assertIn("written as the trainer's value plus one, rounded", said)
        self.assertRegex(said, rf"differ: {count} tensors?, model\.layers\.\d+\.linear_attn\.norm")
        # From shards to shards, and back: every bit.
        other, back = self.folder / "other", self.folder / "back"
        said = self.converts(shards, other, "--hf", self.hf, "--unmarked", "--parallel", "tp=1")
        self.assertNotIn("rounded", said)
        norm = lambda folder: [array.tobytes() for name, array in
                               sorted(read_safetensors(folder / "rank_00000.safetensors").items())
                               if name.endswith("decoder.layers.0.self_attention.out_norm.weight")]
        self.converts(other, back, "--parallel", shards / "parallel.json")
        self.assertEqual(norm(back), norm(shards))
        self.assertNotEqual(norm(back), [])

    def test_a_bias_that_the_checkpoint_has_in_bf16(self):
        """Widened on the way to shards. On the way back its values are HF's exactly, or it is refused."""
        for family in ("glm4_moe", "deepseek_v3"):
            case = random_case(family, 3)
            bias = lambda name: name.endswith(("e_score_correction_bias", ".expert_bias"))
            hf = {name: round_to_bf16(array) if bias(name) else array for name, array in case.hf.items()}
            here = self.folder / family
            write_hf(here / "hf", case.config, hf)
            self.converts(here / "hf", here / "shards", "--parallel", "tp=1")
            held = read_shards(here / "shards")[0, 0]
            self.assertEqual({array.dtype.name for name, array in held.items() if bias(name)}, {"uint32"})
            self.converts(here / "shards", here / "back")
            self.assertEqual(differences(hf, read_hf(here / "back")), [])
            write_shards(here / "trained", case.parallel, case.shards())
            self.refuses(FAILED, "that would round its values", here / "trained", here / "no", "--hf",
                         here / "hf", "--unmarked")

    def test_a_model_that_no_family_fits(self):
        case = random_case("qwen3", 0)
        extra = {"model.layers.0.self_attn.g_proj.weight": np.zeros((3, 5), np.uint16)}
        config = case.config | {"model_type": "qwen9", "architectures": ["Qwen9ForCausalLM"]}
        write_hf(self.hf, config, case.hf | extra)
        done = self.run_tool(self.hf, self.out, "--parallel", "tp=1")
        self.assertEqual(done.returncode, FAILED)
        for text in ('no model family fits model_type "qwen9"', 'the nearest family is "qwen3"',
                     "model.layers.0.self_attn.g_proj.weight is made by no parameter"):
            self.assertIn(text, done.stderr)
        # The file that it gives is one: with the trainer's name in it, the model is converted.
        families = self.folder / "families"
        families.mkdir()
        text = done.stderr[done.stderr.index("# qwen9.toml"):]
        self.assertIn('extends = "qwen3"\n', text)
        (families / "qwen9.toml").write_text(
            text.replace('mcore = "..."', 'mcore = "g.weight"\nwhen = "layer == 0"', 1))
        write_hf(self.hf, config, case.hf | extra)
        self.converts(self.hf, self.out, "--parallel", "tp=1", "--families", families)
        write_hf(self.folder / "same", config, case.hf)
        done = self.run_tool(self.folder / "same", self.folder / "other", "--parallel", "tp=1")
        self.assertIn("--family qwen3\n", done.stderr)

    def plan_of(self, config, tensors=None):
        """What `plan` says of a model that no family fits."""
        here = self.folder / config["model_type"]
        write_hf(here, config, tensors or {"unused": np.zeros(1, np.uint16)})
        if tensors is None:
            for path in here.glob("*.safetensors*"):
                path.unlink()
        done = subprocess.run([PROGRAM, "plan", "--hf", here, "--parallel", "tp=1"], capture_output=True, text=True)
        self.assertEqual(done.returncode, FAILED)
        return here, done.stderr

    def planned_with(self, here, said):
        """The file that was given, as it stands, fits the model."""
        families = here / "families"
        families.mkdir()
        (families / "given.toml").write_text(said[said.index("# " + here.name):])
        done = subprocess.run([PROGRAM, "plan", "--hf", here, "--parallel", "tp=1", "--families", families],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_model_under_another_root(self):
        case = random_case("qwen3", 0)
        here, said = self.plan_of(case.config | {"model_type": "acme_text"}, {
            name.replace("model.", "model.inner."): array for name, array in case.hf.items()})
        self.assertIn('the nearest family is "qwen3", with names that begin with "model.inner."\n', said)
        self.assertIn('names = { root = "model.inner." }\n', said)
        self.planned_with(here, said)

    def test_a_model_with_one_tensor_under_another_name(self):
        case = random_case("qwen3", 0)
        here, said = self.plan_of(case.config | {"model_type": "acme_dense"}, {
            name.replace(".o_proj.", ".dense."): array for name, array in case.hf.items()})
        self.assertIn('mcore = "self_attention.linear_proj.weight"\n', said)
        self.assertIn('split = "columns"\n', said)
        self.planned_with(here, said)

    def test_a_model_of_which_only_the_config_is_known(self):
        config = random_case("qwen3", 0).config
        _, said = self.plan_of(config | {"model_type": "qwen9"})
        self.assertRegex(said, 'the nearest family is "qwen[23]", by its name')
        _, said = self.plan_of(config | {"model_type": "zyx"})
        self.assertIn("no family is near: give a directory with the checkpoint", said)
        self.assertIn('extends = "llama"\n', said)
        _, said = self.plan_of(config | {"model_type": "zyxwvut", "num_experts": 8})
        self.assertIn('extends = "moe"\n', said)
        _, said = self.plan_of({"model_type": "zyxwv", "hidden_size": 8})
        self.assertRegex(said, 'no family is near: .*config.json has no field "')


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
