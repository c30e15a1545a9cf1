"""What all of deltawire.integrations share, over real daemons: the publisher, a checkpoint's files,
and what the engine's client tells a server. integrations_FRAMEWORK_test.py has the hooks, and
integrations_frameworks_test.py the frameworks' own classes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import support

support.use_trainer_python()
from integrations_rig import (  # noqa: E402  # or a skip
    HIDDEN,
    LIMIT_S,
    ROWS,
    Case,
    Engine,
    changed,
)

import deltawire.control  # noqa: E402
import torch  # noqa: E402
from deltawire._names import Names  # noqa: E402
from deltawire.engine import EngineClient  # noqa: E402
from deltawire.engine._served import Reading, Served, State  # noqa: E402
from deltawire.integrations import _checkpoint, nemo_rl, trl, verl  # noqa: E402
from deltawire.integrations._directory import Expected, ReceiverDirectory  # noqa: E402
from deltawire.integrations._left_out import LeftOut  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402
from safetensors.torch import save_file  # noqa: E402


def without_framework(kind: type):
    """An instance before `__init__`, installed or not."""
    return object.__new__(kind)


class PublisherTest(Case):
    def test_a_stream_is_gone_through_once_and_cast_to_the_checkpoint_s_dtypes(self):
        publisher = Publisher(**self.arguments)
        self.assertEqual(publisher.open(), 0)
        for version in (1, 2, 3):
            self.weights = changed(self.weights, version)
            floats = ((n, t.float() if t.is_floating_point() else t)
                      for n, t in self.weights.items())
            self.assertEqual(publisher.publish(floats).version, version)
            self.assert_receiver_has(self.weights, version)
        self.assertEqual((self.receiver.directory / "config.json").read_text(), "{}")

    def test_without_a_checkpoint_the_first_stream_gives_the_layout(self):
        publisher = Publisher(**self.arguments | {"hf_dir": None})
        for version in (1, 2):
            self.weights = changed(self.weights, version)
            publisher.publish(iter(self.weights.items()))
            self.assert_receiver_has(self.weights, version)

    def test_versions_go_on_from_what_the_sender_has(self):
        first = Publisher(**self.arguments)
        first.open()
        first.publish(self.weights.items(), version=41)
        second = Publisher(**self.arguments)
        self.assertEqual(second.open(), 41)
        with self.assertRaisesRegex(deltawire.Error, "has 41 already"):
            second.publish(self.weights.items(), version=41)
        self.assertEqual(second.publish(self.weights.items()).version, 42)
        with self.assertRaises(deltawire.Error):  # the first knows nothing of 42
            first.publish(self.weights.items())

    def test_what_does_not_fit_names_the_tensor_and_publishes_nothing(self):
        publisher = Publisher(**self.arguments)
        publisher.open()
        publisher.publish(self.weights.items())
        for what, wrong in (("norm", self.weights | {"norm": torch.zeros(3)}),
                            ("other", self.weights | {"other": torch.zeros(3)}),
                            ("q", self.weights | {"q": self.weights["q"].to(torch.int16)}),
                            ("k", {n: t for n, t in self.weights.items() if n != "k"})):
            with self.subTest(what), self.assertRaisesRegex(deltawire.TensorError, f'"{what}"'):
                publisher.publish(wrong.items())
        publisher.publish(self.weights.items())
        self.assert_receiver_has(self.weights, 2)

    def test_a_tensor_that_is_not_in_the_checkpoint_is_left_out_if_it_is_a_tie(self):
        """verl streams a state dict, in which a tied head has a name and gathered memory of its
        own, while a saved checkpoint has the embedding alone."""
        publisher = Publisher(**self.arguments)
        publisher.open()
        for version in (1, 2):
            self.weights = changed(self.weights, version)
            floats = {n: t.float() for n, t in self.weights.items()}
            head = {"lm_head.weight": floats["embed"].clone()}
            stream = floats | head if version == 1 else head | floats
            publisher.publish(iter(stream.items()))
            self.assert_receiver_has(self.weights, version)
        head = {"lm_head.weight": self.weights["embed"].clone()}
        head["lm_head.weight"][-1, -1] += 1
        vector = {"vector": self.weights["norm"].clone()}  # equal, but by chance
        many = {f"early{i}": self.weights["embed"] for i in range(5)}
        for wrong, name in ((self.weights | head, "lm_head.weight"),
                            (head | self.weights, "lm_head.weight"),
                            (self.weights | vector, "vector"), (many | self.weights, "early4")):
            with self.subTest(name), self.assertRaisesRegex(deltawire.ExtraTensorError,
                                                            f'"{name}".* no copy'):
                publisher.publish(iter(wrong.items()))
        publisher.publish(iter(self.weights.items()))
        self.assert_receiver_has(self.weights, 3)

    def test_bf16_is_cast_to_a_checkpoint_in_fp16_only_where_it_is_asked_for(self):
        half = {n: t.to(torch.float16) for n, t in self.weights.items()}
        save_file(half, self.hf_dir / "model.safetensors")
        bf16 = {n: t.to(torch.bfloat16) for n, t in self.weights.items()}
        publisher = Publisher(**self.arguments)
        publisher.open()
        with self.assertRaisesRegex(deltawire.DTypeError, f'"embed" is bf16, and fp16 in '
                                    f"{self.hf_dir}: numbers beyond 65504 .*bf16_to_fp16"):
            publisher.publish(bf16.items())
        floats = ((n, t.float()) for n, t in half.items())
        self.assertEqual(publisher.publish(floats).version, 1)
        asked = Publisher(**self.arguments, bf16_to_fp16=True)
        asked.open()
        asked.publish(bf16.items())
        self.assert_receiver_has({n: t.to(torch.float16) for n, t in bf16.items()}, 2)
        bf16["q"][3, 5] = 1e5
        with self.assertRaisesRegex(deltawire.DTypeError, '"q" has numbers that fp16 does not'):
            asked.publish(bf16.items())
        bf16["q"][3, 5] = float("inf")  # as the trainer has it
        asked.publish(bf16.items())
        self.assert_receiver_has({n: t.to(torch.float16) for n, t in bf16.items()}, 3)

    def test_every_stream_is_gone_through_to_its_end(self):
        """The trainer's other ranks gather each tensor together with the one that publishes."""
        publisher = Publisher(**self.arguments)
        publisher.open()
        publisher.publish(self.weights.items())
        given = []

        def stream(weights):
            for pair in weights.items():
                given.append(pair[0])
                yield pair

        scale = {"model.layers.0.self_attn.attn.k_scale": torch.ones(1)}  # of an fp8 KV cache
        for wrong, error, version in (
                (self.weights | {"embed": torch.zeros(3)}, '"embed"', None),
                (scale | self.weights, '"model.layers.0.self_attn.attn.k_scale"', None),
                (self.weights, "the sender has 1 already", 1)):
            with self.subTest(error), self.assertRaisesRegex(deltawire.Error, error):
                publisher.publish(stream(wrong), version)
            self.assertEqual(given, list(wrong))
            given.clear()
        transfer = trl.WeightTransfer("http://127.0.0.1:9", "/d")
        with self.assertRaisesRegex(deltawire.Error, "init_weight_transfer comes before"):
            transfer.send_weights(stream(self.weights))
        self.assertEqual(given, list(self.weights))

    def test_a_wait_that_was_given_up_does_not_hold_up_the_next_versions(self):
        publisher = Publisher(**self.arguments)
        publisher.open()
        publisher.publish(self.weights.items())
        real = deltawire.WeightManager.wait_published
        for version, reason in ((2, deltawire.DeadlineError("planted")), (4, KeyboardInterrupt())):
            def too_late(*arguments, why=reason):
                real(*arguments)  # it is published all the same
                raise why

            with (unittest.mock.patch.object(deltawire.WeightManager, "wait_published", too_late),
                  self.assertRaises(type(reason))):
                publisher.publish(self.weights.items())
            self.assertEqual(publisher.published, version)
            self.weights = changed(self.weights, version)
            self.assertEqual(publisher.publish(self.weights.items()).version, version + 1)
            self.assert_receiver_has(self.weights, version + 1)

    def test_a_checkpoint_without_weights_gives_no_layout(self):
        empty = self.cluster.root / f"empty-{self.model}"
        empty.mkdir()
        publisher = Publisher(**self.arguments | {"hf_dir": empty})
        self.assertEqual(publisher.open(), 0)
        with self.assertRaisesRegex(deltawire.Error, "has no .*safetensors"):
            publisher.open(needs_layout=True)

    def test_what_verl_s_bucket_does_not_hold_is_handed_over_on_the_gpu(self):
        """A device that is not there stands for it."""
        sizes = sorted(t.nbytes for t in self.weights.values())
        self.assertLess(sizes[0], sizes[-1])
        with unittest.mock.patch.object(verl, "_DEVICE", "meta"):
            engine = without_framework(verl.DeltawireCheckpointEngine)
            engine.__init__(
                sizes[-1] - 1, is_master=True, directory=self.receiver.directory, **self.arguments)
            engine.init_process_group(**engine.prepare())
            asyncio.run(engine.send_weights(iter(self.weights.items())))

            async def received():
                return [t async for _, t in engine.receive_weights()]

            for cuda in (True, False):
                with unittest.mock.patch("torch.cuda.is_available", return_value=cuda):
                    for tensor in asyncio.run(received()):
                        self.assertEqual(tensor.is_meta, cuda and tensor.nbytes == sizes[-1])

    def test_a_refit_reads_the_checkpoint_again_only_where_it_has_changed(self):
        """NeMo RL's calls with release_after_refit, without NeMo RL."""
        engine = without_framework(nemo_rl.DeltawireCheckpointEngine)
        engine.__init__(1 << 20, directory=self.receiver.directory, release_after_refit=True,
                        **self.arguments)
        names = []
        with unittest.mock.patch("deltawire._checkpoint.header", wraps=_checkpoint.header) as read:
            for version in (1, 2, 3):
                prepared = engine.prepare()
                self.assertEqual(prepared["published"], version - 1)
                engine.init_policy_process_group(worker_rank=0, train_world_size=1,
                                                 rollout_world_size=1, metadata=[prepared])
                self.weights = changed(self.weights, version)
                asyncio.run(engine.send_weights(iter(self.weights.items())))
                names.append(engine._publisher._names)  # pylint: disable=protected-access
                engine.finalize()
                self.assert_receiver_has(self.weights, version)
                if version == 2:
                    (self.hf_dir / "config.json").write_text('{"architectures": ["Other"]}')
            self.assertEqual(read.call_count, 2)
        self.assertIs(names[0], names[1])
        self.assertIsNot(names[1], names[2])
        # In the place of the old file, as big and as old as it.
        weights, old = self.hf_dir / "model.safetensors", self.hf_dir / ".old"
        weights.rename(old)
        save_file(self.weights | {"k": torch.zeros(HIDDEN, ROWS, dtype=torch.bfloat16)}, weights)
        os.utime(weights, ns=(old.stat().st_atime_ns, old.stat().st_mtime_ns))
        with self.assertRaisesRegex(deltawire.RefusedError, "layout"):
            engine.prepare()
        old.rename(weights)
        self.assertEqual(engine.prepare()["published"], 3)

    def test_a_wait_for_a_directory_says_what_is_there(self):
        with self.assertRaisesRegex(deltawire.DeadlineError, "no receiver has committed there"):
            ReceiverDirectory("/nowhere").wait(Expected(1, ""), 0.1)
        publisher = Publisher(**self.arguments)
        publisher.open()
        five = Expected.of(publisher.publish(self.weights.items(), version=5))
        directory = ReceiverDirectory(self.receiver.directory)
        found = directory.wait(five, LIMIT_S)
        six, four = (dataclasses.replace(five, version=v) for v in (6, 4))
        with self.assertRaisesRegex(deltawire.DeadlineError,
                                    f"version 6 of lineage {five.lineage[:8]} is not .* "
                                    f"version 5 .*{five.lineage[:8]}"):
            directory.wait(six, 0.1)
        with self.assertRaisesRegex(deltawire.Error, "version 5 is committed, and 4"):
            directory.wait(four, 0.1)
        for other in ({"lineage": "0" * 32}, {"root": five.root + 1}, {"epoch": 2}):
            with self.assertRaises(deltawire.DeadlineError):
                directory.wait(dataclasses.replace(five, **other), 0.1)
        publisher.publish(changed(self.weights, 6).items())
        self.assert_receiver_has(changed(self.weights, 6), 6)
        with self.assertRaisesRegex(deltawire.Error, "was committed while version 5"):
            list(directory.tensors(found))

    def test_a_version_of_an_earlier_run_is_not_taken_for_one_of_this(self):
        """The node of the trainer has started anew, and the receiver has not heard of it."""
        publisher = Publisher(**self.arguments)
        publisher.open()
        publisher.publish(self.weights.items())
        old = self.newest()
        self.assert_receiver_has(self.weights, 1)
        receiver = self.enterContext(deltawire.control.Receiver(self.receiver.address))
        receiver.pause()
        del publisher
        self.unregister()
        again = Publisher(**self.arguments)
        again.open()
        new = Expected.of(again.publish(changed(self.weights, 2).items()))
        self.assertEqual(new.version, old.version)
        directory = ReceiverDirectory(self.receiver.directory)
        with self.assertRaisesRegex(deltawire.DeadlineError, "is not committed"):
            directory.wait(new, 0.2)
        name = {"epoch": new.epoch, "version": new.version, "lineage": new.lineage,
                "root": f"{new.root:016x}"}
        with self.assertRaises(deltawire.DeadlineError):
            receiver.wait(name, timeout=0.2)
        tool = [pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]) / "deltawire", "wait", "--receiver",
                self.receiver.address, "--version", "1", "--timeout", "0.2"]
        for more in (["--lineage", new.lineage[:8]], ["--root", name["root"]]):
            self.assertEqual(subprocess.run(tool + more, check=False).returncode, 1)
        receiver.resume()
        self.assertEqual(receiver.wait(name, timeout=LIMIT_S)["id"]["root"], name["root"])
        for more in (["--lineage", new.lineage[:8]], ["--root", name["root"]]):
            self.assertEqual(subprocess.run(tool + more, check=False).returncode, 0)
        self.assert_receiver_has(changed(self.weights, 2), 1)


class CheckpointFilesTest(unittest.TestCase):
    """Of a checkpoint that is damaged, or still being written."""

    def test_a_file_that_is_no_json_is_named(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        config, index = folder / "config.json", folder / "model.safetensors.index.json"
        metas = [deltawire.TensorMeta(n, "F32", (2, 2)) for n in ("embed_tokens.weight",
                                                                  "lm_head.weight")]
        left_out = LeftOut(metas, Names((), folder), folder)
        for text, why in (("{", "it is no JSON"), ("\xff", "it is no JSON"), ("[]", "no object"),
                          ("[" * 100_000, "it is no JSON")):
            config.write_bytes(text.encode("latin-1"))
            with self.subTest(text[:2]), self.assertRaisesRegex(deltawire.Error,
                                                                f"{config} .*{why}"):
                list(left_out.completed([]))
        config.write_text('{"text_config": "none", "tie_word_embeddings": false}')
        with self.assertRaises(deltawire.MissingTensorError):
            list(left_out.completed([]))
        index.write_text('{"weight_map": {"w": 1}}')
        with self.assertRaisesRegex(deltawire.Error, f"{index} .*no weight_map"):
            _checkpoint.metas(folder)
        index.unlink()
        weights = folder / "model.safetensors"
        weights.write_bytes((9).to_bytes(8, "little") + b'{"w": {"d')
        with self.assertRaisesRegex(deltawire.Error, f"{weights} .*its header is no JSON"):
            _checkpoint.metas(folder)


class ServedTest(Case):
    """What the engine's client tells the server's HTTP process (deltawire.engine.middleware)."""

    def setUp(self):
        super().setUp()
        self.served = Served()
        self.addCleanup(self.served.close)
        self.publisher = Publisher(**self.arguments)
        self.publisher.open()
        self.publish()

    def publish(self):
        self.wait(self.publisher.publish(self.weights.items()))

    def test_it_is_what_the_memory_is_at_every_moment(self):
        model = Engine()
        model.load_weights(self.weights.items())
        client = EngineClient(self.receiver.directory)
        self.assertEqual(self.served.read(), Reading())
        self.assertTrue(client.attach(model, model.load_weights))
        first = self.served.read()
        self.assertEqual(first.state, State.of(client.held))
        self.weights = changed(self.weights, 2)
        self.publish()
        self.assertTrue(client.prepare())
        self.assertEqual(self.served.read(), first)

        meanwhile = []
        begin = client._record.changing  # pylint: disable=protected-access

        def changing(*states):
            begin(*states)
            meanwhile.append(self.served.read())

        with unittest.mock.patch.object(client._record, "changing", changing):
            self.assertTrue(client.apply())
            second = self.served.read()
            self.assertTrue(client.rollback())
        self.assertEqual(second.state.version, 2)
        self.assertEqual([r.states for r in meanwhile], [(first.state, second.state), ()])
        third = self.served.read()
        self.assertEqual(third.state, first.state)
        self.assertNotEqual(third.changes, first.changes)

        self.assertFalse(client.attach(model, model.load_weights))  # version 2 is committed
        self.assertEqual(self.served.read(), Reading())
        model.load_weights(self.weights.items())
        self.assertTrue(client.attach(model, model.load_weights))
        self.assertEqual(self.served.read().state, second.state)
        del client, begin, changing
        self.assertEqual(self.served.read(), Reading())


class WithoutTest(unittest.TestCase):
    def test_modules_import_alone_and_say_what_they_miss(self):
        """In a Python that finds none of the frameworks, installed or not."""
        code = """
import sys
for name in ("trl", "verl", "nemo_rl", "ray", "torch", "vllm", "transformers",
             "lightning", "pytorch_lightning"):
    sys.modules[name] = None  # an import of it fails
from deltawire.integrations import lightning, nemo_rl, slime, transformers, trl, verl
for module in (transformers, lightning):
    try:
        module.DeltawireCallback()
        raise SystemExit(f"{module.__name__} does without its framework")
    except ImportError as error:
        assert module.__name__.rpartition(".")[2] in str(error), error
for module in (verl, nemo_rl):
    try:
        module.DeltawireCheckpointEngine(1 << 20, directory="/d", hf_dir="/h")
        raise SystemExit(f"{module.__name__} does without its framework")
    except ImportError as error:
        assert module.__name__.rpartition(".")[2] in str(error), error
try:
    slime.on_nodes([], None, '/d', 1)
    raise SystemExit("slime does without Ray")
except ImportError as error:
    assert "Ray" in str(error), error
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_modules_import_beside_a_framework_that_lacks_the_class(self):
        """As an older or newer release may."""
        code = """
import sys, types
for name in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning", "verl",
             "verl.checkpoint_engine", "verl.checkpoint_engine.base", "nemo_rl", "nemo_rl.utils",
             "nemo_rl.utils.checkpoint_engines", "nemo_rl.utils.checkpoint_engines.base"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["pytorch_lightning"].Callback = type("Callback", (), {})
from deltawire.integrations import lightning, nemo_rl, transformers, verl
assert lightning.Callback is sys.modules["pytorch_lightning"].Callback
for kind, package in ((transformers.DeltawireCallback, "transformers,"),
                      (verl.DeltawireCheckpointEngine, "verl,"),
                      (nemo_rl.DeltawireCheckpointEngine, "nemo_rl,")):
    try:
        kind(1 << 20, directory="/d", hf_dir="/h")
        raise SystemExit(f"{kind} does without its framework")
    except ImportError as error:
        assert f"needs {package}" in str(error), error
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
