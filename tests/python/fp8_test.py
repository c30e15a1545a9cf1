"""Checkpoints that are fp8 already, with scales for blocks as DeepSeek-V3's or for whole tensors: by
`deltawire publish` and from torch, first whole and then as a delta, to a receiver's file."""

from __future__ import annotations

import json
import subprocess
import unittest

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("safetensors")
deltawire = support.need("deltawire")

from safetensors.torch import save_file  # noqa: E402

BLOCK = 128
HIDDEN, FFN, EXPERTS, LAYERS = 320, 200, 3, 2  # no multiples of a block
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
NAMES = {FP8: "F8_E4M3", BF16: "BF16", torch.float32: "F32"}


def quantized(shape, maker, per_tensor: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as fp8, and what they are multiplied by."""
    weight = torch.randn(shape, generator=maker)
    if per_tensor:
        scale = weight.abs().max() / 448
        return (weight / scale).to(FP8), scale
    rows, columns = (-(-n // BLOCK) for n in shape)
    scale = torch.rand(rows, columns, generator=maker) / 100 + 0.01
    blocks = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return (weight / blocks[:shape[0], :shape[1]]).clamp(-448, 448).to(FP8), scale


def checkpoint(seed: int, per_tensor: bool) -> dict[str, torch.Tensor]:
    maker = torch.Generator().manual_seed(seed)
    made = {"model.embed_tokens.weight": torch.randn(77, HIDDEN, generator=maker).to(BF16)}

    def add(name, *shape):
        weight, scale = quantized(shape, maker, per_tensor)
        made[f"{name}.weight"] = weight
        made[f"{name}.weight_scale" + ("" if per_tensor else "_inv")] = scale
        if per_tensor:
            made[f"{name}.input_scale"] = torch.rand((), generator=maker)

    for layer in range(LAYERS):
        own = f"model.layers.{layer}."
        made[own + "input_layernorm.weight"] = torch.randn(HIDDEN, generator=maker).to(BF16)
        add(own + "self_attn.q_a_proj", 150, HIDDEN)
        add(own + "self_attn.o_proj", HIDDEN, 96)
        made[own + "mlp.gate.weight"] = torch.randn(EXPERTS, HIDDEN, generator=maker).to(BF16)
        made[own + "mlp.gate.e_score_correction_bias"] = torch.randn(EXPERTS, generator=maker)
        for expert in range(EXPERTS):
            for name, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
                add(f"{own}mlp.experts.{expert}.{name}_proj", *shape)
    return made


def trained(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """After a step: few codes are others, and one block's scale."""
    maker, made = torch.Generator().manual_seed(seed), {}
    for name, tensor in weights.items():
        made[name] = tensor.clone()
        if tensor.dtype == FP8:
            codes = made[name].view(torch.uint8).view(-1)
            at = torch.randperm(codes.numel(), generator=maker)[:codes.numel() // 50]
            codes[at] ^= 1
        elif "scale" in name:
            made[name].view(-1)[0] *= 1.01
    return made


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Fp8Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def save(self, weights, name: str):
        """Two files with an index, as published."""
        folder = self.cluster.root / f"{self.model}-{name}"
        folder.mkdir()
        method = {"quant_method": "fp8"}
        (folder / "config.json").write_text(json.dumps(
            {"model_type": "deepseek_v3", "torch_dtype": "bfloat16", "quantization_config": method}))
        names = list(weights)
        half = {n: f"model-0000{1 + (i > len(names) // 2)}-of-00002.safetensors"
                for i, n in enumerate(names)}
        for file in set(half.values()):
            save_file({n: t for n, t in weights.items() if half[n] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": half}))
        return folder

    def tool(self, *arguments, code: int = 0) -> str:
        done = subprocess.run([support.programs() / "deltawire", *map(str, arguments)],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr if code else done.stdout

    def by_tool(self, version: int, weights) -> tuple[int, int]:
        said = json.loads(self.tool(
            "publish", self.save(weights, f"v{version}"), "--model", self.model, "--version", version,
            "--socket", self.cluster.root / "s" / "trainer.sock", "--json"))
        return int(said["delta_bytes"]), int(said["model_bytes"])

    def from_torch(self, version: int, weights, stream: bool = False) -> tuple[int, int]:
        if version == 1:
            self.manager = deltawire.WeightManager(self.cluster.endpoint, model=self.model)
            self.manager.register(weights, hf_dir=self.save(weights, "hf"))
        done = self.manager.offload(iter(weights.items()) if stream else weights, version).wait()
        return done.delta_bytes, done.model_bytes

    def check_versions(self, publish, per_tensor: bool):
        self.model = self.id().rsplit(".", 1)[-1]
        receiver = self.cluster.follow(self.model)
        weights = checkpoint(3, per_tensor)
        for version in (1, 2, 3):
            delta, whole = publish(version, weights)
            receiver.await_version(version)
            got = receiver.content()
            self.assertEqual(set(got), set(weights))
            for name, tensor in weights.items():
                self.assertEqual(got[name][:2], (NAMES[tensor.dtype], tuple(tensor.shape)), name)
                self.assertTrue(got[name][2] == raw(tensor), f"version {version}: {name}: other bytes")
            if version > 1:
                self.assertGreater(delta, 0)
                self.assertLess(delta, whole // 4)
            weights = trained(weights, version)

    def test_blocks_by_the_tool(self):
        self.check_versions(self.by_tool, per_tensor=False)

    def test_tensors_by_the_tool(self):
        self.check_versions(self.by_tool, per_tensor=True)

    def test_blocks_from_torch(self):
        self.check_versions(self.from_torch, per_tensor=False)

    def test_tensors_from_torch(self):
        self.check_versions(self.from_torch, per_tensor=True)

    def test_blocks_from_a_stream(self):
        self.check_versions(lambda *given: self.from_torch(*given, stream=True), per_tensor=False)

    def test_what_is_not_quantized_is_refused_beside_an_fp8_checkpoint(self):
        """The trainer holds bf16, and would publish what engines of that checkpoint cannot load."""
        self.model = "refused"
        for per_tensor in (False, True):
            weights = checkpoint(4, per_tensor)
            folder = self.save(weights, f"hf{per_tensor}")
            masters = {n: t.to(BF16) if t.dtype == FP8 else t
                       for n, t in weights.items() if "scale" not in n}
            with self.assertRaisesRegex(
                    deltawire.DTypeError, r'"model.layers.0.self_attn.q_a_proj.weight" is F8_E4M3 in .*, '
                    "and BF16 here: .* or quantize"):
                deltawire.WeightManager(self.cluster.endpoint, model=self.model).register(
                    masters, hf_dir=folder)

    def test_plan_and_convert_say_that_megatron_makes_no_fp8(self):
        self.model = "planned"
        folder = self.save(checkpoint(5, False), "hf")
        says = "the checkpoint is quantised (model.layers.0"
        self.assertIn(says, self.tool("plan", "--hf", folder, "--parallel", "tp=1", code=1))
        self.assertIn(says, self.tool("convert", folder, self.cluster.root / "shards", "--parallel", "tp=1",
                                      code=1))


if __name__ == "__main__":
    unittest.main()
