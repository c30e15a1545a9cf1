"""The callbacks of transformers' and Lightning's trainers: each version is the model of its step.

    callbacks_test.py                          transformers' handler of callbacks
    callbacks_test.py accelerate | lightning   the trainer that needs it
    callbacks_test.py rank RANK WORLD STORE ENDPOINT CASE OUT   one rank of several
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
transformers = support.need("transformers")
deltawire = support.need("deltawire")
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState  # noqa: E402

from deltawire.integrations.transformers import DeltawireCallback  # noqa: E402


def tiny(tied: bool = True) -> torch.nn.Module:
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=32, tie_word_embeddings=tied))


def raw(tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = (torch.arange(8) * (index + 3)) % 32
        return {"input_ids": ids, "labels": ids}


def steps(callback, module, last: int) -> None:
    """Training of that many steps, as transformers tells callbacks of it."""
    handler = CallbackHandler([callback], module, None, None, None)
    state, control = TrainerState(), TrainerControl()
    for step in range(1, last + 1):
        with torch.no_grad():
            for p in module.parameters():
                p.add_(0.5)
        state.global_step = step
        handler.on_step_end(object(), state, control)
    handler.on_train_end(object(), state, control)


def rank_main(rank: int, world: int, store: str, endpoint: str, case: str, out: str) -> None:
    """Rank 0 saves what the model is at the end."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    module = tiny(tied=False)
    callback = DeltawireCallback(every=2, endpoint=endpoint, model=case, timeout=120)
    if case == "fsdp2":
        fully_shard(module, mesh=init_device_mesh("cpu", (world,)))
    if case == "zero3":
        with partitioned(module) as whole:
            for held in whole.values():
                held.add_(1)
            steps(callback, module, 3)
            state = {n: whole[id(p)] for n, p in module.named_parameters()}
    else:
        steps(callback, torch.nn.parallel.DistributedDataParallel(module) if case == "ddp" else
              module, 3)
        state = {n: t.full_tensor() if hasattr(t, "full_tensor") else t
                 for n, t in module.state_dict().items()}
    assert callback.version == 3, callback.version
    if rank == 0:
        torch.save(state, out)
    dist.barrier()
    dist.destroy_process_group()


@contextlib.contextmanager
def partitioned(module):
    """NOT DeepSpeed's: the placeholders that ZeRO-3 leaves, and what gathers them."""
    whole = {id(p): p.data.clone() for p in module.parameters()}
    for p in module.parameters():
        p.ds_shape, p.ds_numel, p.ds_id = p.shape, p.numel(), id(p)
        p.data = torch.empty(0, dtype=p.dtype)

    @contextlib.contextmanager
    def gathered(params):
        for p in params:
            p.data = whole[p.ds_id]
        yield
        for p in params:
            p.data = torch.empty(0, dtype=p.dtype)

    zero = types.ModuleType("deepspeed.zero")
    zero.GatheredParameters = gathered
    package = types.ModuleType("deepspeed")
    package.zero = zero
    with unittest.mock.patch.dict(sys.modules, {"deepspeed": package, "deepspeed.zero": zero}):
        yield whole


class CallbackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def setUp(self):
        self.model = self.id().rsplit(".", 1)[-1]
        self.options = {"endpoint": self.cluster.endpoint, "model": self.model, "timeout": 60}

    def check(self, module) -> None:
        """The receiver has the module's tensors, as they are saved."""
        got = self.cluster.content(self.model)
        want = {n: t for n, t in module.state_dict().items() if n != "lm_head.weight"}
        self.assertEqual(set(got), set(want))
        for name, tensor in want.items():
            self.assertEqual(got[name][2], raw(tensor), name)

    def newest(self, at_least: int = 0) -> int:
        with deltawire.WeightManager(self.cluster.endpoint, self.model) as weights:
            return weights.wait_published(at_least).version

    def test_the_events_of_transformers(self):
        module = tiny()
        callback = DeltawireCallback(every=2, **self.options)
        handler = CallbackHandler([callback], module, None, None, None)
        state, control = TrainerState(), TrainerControl()
        args = object()
        for step in range(1, 6):
            with torch.no_grad():
                for p in module.parameters():
                    p.add_(0.5)
            state.global_step = step
            handler.on_step_end(args, state, control)
            self.assertEqual(callback.version, step // 2 * 2)
        self.assertEqual(self.newest(at_least=4), 4)  # a step does not wait for it
        handler.on_train_end(args, state, control)
        self.assertEqual(self.newest(), 5)
        self.check(module)
        self.assertIn('"hidden_size": 16', self.cluster.side_file("config.json", self.model))
        # A run that begins anew counts on.
        again = DeltawireCallback(every=1, **self.options)
        handler = CallbackHandler([again], module, None, None, None)
        state.global_step = 1
        handler.on_step_end(args, state, control)
        self.assertEqual(again.version, 6)
        handler.on_train_end(args, state, control)
        self.assertEqual(self.newest(), 6)
        for done in (7, 8):  # so do the same callback's further runs, which end with the same step
            handler.on_step_end(args, state, control)
            handler.on_train_end(args, state, control)
            self.assertEqual(self.newest(), done)

    def test_several_ranks(self):
        for case in ("ddp", "fsdp2", "zero3"):
            with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                out, log = pathlib.Path(folder) / "state.pt", pathlib.Path(folder) / "log"
                with open(log, "w") as file:
                    ranks = [support.spawn(
                        [sys.executable, "-B", __file__, "rank", str(r), "2", f"{folder}/store",
                         self.cluster.endpoint, case, str(out)],
                        stdout=file, stderr=subprocess.STDOUT,
                        env=os.environ | {"OMP_NUM_THREADS": "1"}) for r in range(2)]
                try:
                    codes = [r.wait(timeout=200) for r in ranks]
                finally:
                    for r in ranks:
                        r.kill()
                        r.wait()
                self.assertEqual(codes, [0, 0], log.read_text())
                got = self.cluster.content(case)
                want = torch.load(out)
                self.assertEqual(set(got), set(want))
                for name, tensor in want.items():
                    self.assertEqual(got[name][2], raw(tensor), name)

    def test_what_cannot_be_published_is_said(self):
        with self.assertRaisesRegex(deltawire.Error, "1 or more"):
            DeltawireCallback(every=0)
        for mark in ("_is_flat_param", "_fsdp_flattened"):
            module = torch.nn.Linear(2, 2)
            setattr(module.weight, mark, True)
            callback = DeltawireCallback(**self.options)
            state = TrainerState(global_step=1)
            with self.assertRaisesRegex(deltawire.Error, "use FSDP2"):
                callback.on_step_end(None, state, None, model=module)

    def trainer_of_accelerate(self):
        module = tiny()
        callback = DeltawireCallback(every=2, **self.options)
        with tempfile.TemporaryDirectory() as out:
            trainer = transformers.Trainer(
                model=module, train_dataset=Data(), callbacks=[callback],
                args=transformers.TrainingArguments(
                    out, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=3,
                    learning_rate=0.01, report_to=[], use_cpu=True, save_strategy="no",
                    disable_tqdm=True))
            trainer.train()
        self.assertEqual((callback.version, self.newest()), (3, 3))
        self.check(module)

    def trainer_of_lightning(self):
        import lightning
        from deltawire.integrations import lightning as hook

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.inner = tiny()

            def training_step(self, batch, _):
                return self.inner(**batch).loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.inner.parameters(), lr=0.1)

        module = Module()
        callback = hook.DeltawireCallback(every=2, module="inner", **self.options)
        with tempfile.TemporaryDirectory() as out:
            lightning.Trainer(
                max_steps=3, accumulate_grad_batches=2, callbacks=[callback], accelerator="cpu",
                default_root_dir=out, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False,
            ).fit(module, torch.utils.data.DataLoader(Data(), 4))
        self.assertEqual((callback.version, self.newest()), (3, 3))
        self.check(module.inner)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
        sys.exit()
    if sys.argv[1:]:
        support.need(sys.argv[1])
        suite = unittest.TestSuite([CallbackTest(f"trainer_of_{sys.argv[1]}")])
        sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
    unittest.main()
