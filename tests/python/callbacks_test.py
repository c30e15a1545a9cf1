"""The callbacks of transformers' and Lightning's trainers: each version is the model of its step.

    callbacks_test.py                          transformers' handler of callbacks
    callbacks_test.py accelerate | lightning   the trainer that needs it
"""

from __future__ import annotations

import sys
import tempfile
import unittest

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

    def newest(self) -> int:
        with deltawire.WeightManager(self.cluster.endpoint, self.model) as weights:
            return weights.wait_published(0).version

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
        self.assertEqual(self.newest(), 4)
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

    def test_what_cannot_be_published_is_said(self):
        with self.assertRaisesRegex(deltawire.Error, "1 or more"):
            DeltawireCallback(every=0)
        module = torch.nn.Linear(2, 2)
        module.weight._is_flat_param = True
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
    if sys.argv[1:]:
        support.need(sys.argv[1])
        suite = unittest.TestSuite([CallbackTest(f"trainer_of_{sys.argv[1]}")])
        sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
    unittest.main()
