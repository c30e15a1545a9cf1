"""The Python package without torch: numpy, buffers, DLPack, and every refusal."""

from __future__ import annotations

import array
import asyncio
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import support

np = support.need("numpy")
deltawire = support.need("deltawire")
from deltawire import _core  # noqa: E402
from deltawire._async import in_thread  # noqa: E402
from deltawire._background import Offloading  # noqa: E402


def weights(seed: int):
    rng = np.random.default_rng(seed)
    return {
        "matrix": rng.standard_normal((301, 203), dtype=np.float32),
        "half": rng.standard_normal((64, 3, 5)).astype(np.float16),
        "counter": np.array(seed, dtype=np.int64),
        "mask": rng.integers(0, 2, (17,)).astype(bool),
        "empty": np.zeros((0, 4), dtype=np.uint8),
        "complex": rng.standard_normal((5, 2)).astype(np.complex64),
    }


class OnlyDlpack:
    """An array that offers DLPack and nothing else."""

    def __init__(self, inner):
        self._inner = inner

    def __dlpack__(self, **kwargs):
        return self._inner.__dlpack__(**kwargs)


class NumpyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def manager(self, **options):
        options.setdefault("model", self.id().rsplit(".", 1)[-1])
        self.model = options["model"]
        return deltawire.WeightManager(self.cluster.endpoint, **options)

    def check(self, want):
        got = self.cluster.content(self.model)
        self.assertEqual(set(got), set(want))
        for name, value in want.items():
            self.assertEqual(got[name][1], np.shape(value), name)
            self.assertEqual(got[name][2], np.asarray(value).tobytes(), name)

    def test_nothing_heavy_is_imported(self):
        self.assertNotIn("torch", sys.modules)

    def test_versions_follow_one_another(self):
        manager = self.manager()
        for version in (1, 2, 5):
            want = weights(version)
            done = manager.offload(want.items(), version)
            self.assertEqual(done.tensors, 6)
            self.assertEqual(done.bytes_written, sum(v.nbytes for v in want.values()))
            published = done.wait()
            self.assertEqual((published.epoch, published.version), (1, version))
            self.check(want)
        self.assertEqual(manager.register(want), 5)

    def test_tensors_may_change_when_a_background_offload_has_returned(self):
        manager = self.manager()
        manager.register(weights(1))
        for version in (1, 2):
            values = {**weights(version), "strided": weights(9)["matrix"].T[::2],
                      "buffer": memoryview(bytearray(b"abc"))}
            if version == 1:
                manager.register(values, replace=True)
            want = {n: np.array(v) for n, v in values.items()}
            self.cluster.sender_process.send_signal(signal.SIGSTOP)
            try:
                handle = manager.offload(values, version, wait=False)
                for value in values.values():
                    np.asarray(value)[...] = 0
                self.assertFalse(handle.done())
                with self.assertRaisesRegex(deltawire.DeadlineError, "still being written"):
                    handle.result(0)
            finally:
                self.cluster.sender_process.send_signal(signal.SIGCONT)
            self.assertEqual(handle.wait().version, version)
            self.assertEqual(handle.result().tensors, len(values))
            self.check(want)

    def test_a_background_offload_that_fails_says_so_where_it_is_waited_for(self):
        manager = self.manager()
        manager.register(weights(1))
        with self.assertLogs("deltawire", "WARNING"):
            handle = manager.offload({**weights(1), "more": np.zeros(1)}, 1, wait=False)
            for wait in (handle.result, handle.wait, lambda: manager.wait_published(1)):
                with self.assertRaisesRegex(deltawire.ExtraTensorError, '"more"'):
                    wait()
        first = manager.offload(weights(2), 1, wait=False)
        manager.offload(weights(3), 2).wait()  # which waits for the first one's thread
        self.assertTrue(first.done())
        self.assertEqual(first.wait().version, 2)
        self.check(weights(3))
        with self.assertRaisesRegex(deltawire.Error, "notify=False"):
            manager.offload(weights(3), 3, notify=False, wait=False)

    def test_a_version_that_failed_in_the_background_may_be_written_again(self):
        manager = self.manager()
        manager.register(weights(1))
        with self.assertLogs("deltawire", "WARNING"):
            manager.offload({**weights(1), "more": np.zeros(1)}, 1, wait=False).settle()
        manager.offload(weights(2), 1)
        self.assertEqual(manager.wait_published(1).version, 1)
        self.check(weights(2))
        manager.offload(weights(3), 2, notify=False)
        begun = manager.offload(weights(4), 3, wait=False)  # which gives the one before up
        with self.assertRaisesRegex(deltawire.Error, "nothing to notify"):
            manager.notify()
        self.assertTrue(begun.done())
        self.assertEqual(begun.wait().version, 3)

    def test_every_call_that_registers_waits_for_a_background_offload(self):
        manager = self.manager()
        manager.register(weights(1))
        values = weights(2)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text("{}")
            calls = [lambda: manager.register_checkpoint(manager.tensors_meta, folder),
                     lambda: manager.publish_lora({"lora_A.weight": np.ones((2, 3), np.float32)}, 1)]
            for call in calls:
                go = threading.Event()
                manager._background = begun = Offloading(1, go.wait)
                release = threading.Timer(0.3, go.set)
                release.start()
                try:
                    call()
                    self.assertTrue(begun.done())
                finally:
                    go.set()
                    release.join()
                manager._background = None
        manager.offload(values, 1).wait()
        self.check(values)

    def test_a_deadline_of_a_background_offload_ends_the_wait_for_it(self):
        manager = self.manager()
        manager.register(weights(1))
        go = threading.Event()

        def write():
            go.wait()
            raise deltawire.DeadlineError("no sender")

        async def waits():
            manager._background = Offloading(1, write)
            try:
                ends = asyncio.create_task(manager.wait_published_async(1, 3600))
                await asyncio.sleep(0)
                ends.cancel()  # while the offload still runs
                with self.assertRaises(asyncio.CancelledError):
                    await ends
                self.assertFalse(manager._background.done())
            finally:
                go.set()
            with self.assertRaisesRegex(deltawire.DeadlineError, "no sender"):
                await asyncio.wait_for(manager.wait_published_async(1, 3600), 60)

        with self.assertLogs("deltawire", "WARNING"):
            asyncio.run(waits())

    def test_a_task_that_is_cancelled_twice_still_waits_for_its_call(self):
        async def waits():
            asked, ends, over = threading.Event(), threading.Event(), threading.Event()

            def call():
                ends.wait()
                over.set()

            task = asyncio.create_task(in_thread(call, asked.set))
            await asyncio.sleep(0)
            task.cancel()
            while not asked.is_set():
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(4):
                await asyncio.sleep(0)
            early = task.done()
            ends.set()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertFalse(early)
            self.assertTrue(over.is_set())

        asyncio.run(waits())

    def test_a_version_s_progress_is_told(self):
        told = []
        manager = self.manager(progress=told.append)
        values = weights(1)
        manager.offload(values, 1).wait()
        self.assertEqual([p.tensor for p in told], list(values))
        self.assertEqual([p.tensors for p in told], list(range(1, len(values) + 1)))
        self.assertEqual({(p.version, p.of) for p in told}, {(1, len(values))})
        self.assertEqual(told[1].bytes_written, values["matrix"].nbytes)
        manager.offload(weights(2), 2, unchanged=["matrix"], wait=False).wait()
        self.assertEqual((told[-1].version, told[-1].of), (2, len(values) - 1))
        self.manager(progress=True).offload(weights(3), 3).wait()  # with tqdm, or without
        self.check({**weights(3)})

    def test_waits_beside_an_event_loop(self):
        manager = self.manager()

        async def publishes():
            begun = manager.offload(weights(1), 1, wait=False)
            self.assertEqual((await begun).version, 1)
            waits = asyncio.create_task(manager.wait_published_async(9, 60))
            await asyncio.sleep(0)
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits
            with self.assertRaises(deltawire.DeadlineError):
                await manager.wait_published_async(9, 0.3)
            return await manager.offload(weights(2), 2).wait_async()

        self.assertEqual(asyncio.run(publishes()).version, 2)
        self.check(weights(2))

    def test_what_is_no_version_is_said(self):
        manager = self.manager()
        manager.offload(weights(1), np.int64(1)).wait()
        for version in (0, -1, 2**63, 2**64, 1.5, "2", None, True):
            calls = [lambda v: manager.offload(weights(2), v), manager.wait_published]
            for call in calls[:1] if version == 0 else calls:  # 0 waits for any version
                with self.subTest(version=version), self.assertRaisesRegex(
                        deltawire.Error, "is no version: give an integer from") as said:
                    call(version)
                self.assertEqual(said.exception.code, "INVALID_ARGUMENT")
        manager.offload(weights(3), 2**63 - 1).wait()
        self.check(weights(3))

    def test_an_endpoint_where_nobody_can_listen_is_said_at_once(self):
        file = self.cluster.root / "a-file"
        file.touch()
        for endpoint, what in ((file, "is a file"), ("127.0.0.1:7700", "is a network address")):
            with self.assertRaisesRegex(deltawire.Error, f"{what}.*deltawire-sender"):
                deltawire.WeightManager(endpoint)

    def test_a_sender_that_is_not_there_is_said_before_the_wait_for_it(self):
        class Impatient(logging.Handler):
            def emit(self, record):
                raise KeyboardInterrupt(record.getMessage())

        handler = Impatient()
        logging.getLogger("deltawire").addHandler(handler)
        self.addCleanup(logging.getLogger("deltawire").removeHandler, handler)
        nobody = deltawire.WeightManager(self.cluster.root / "nobody", timeout=86400)
        with self.assertRaisesRegex(
                KeyboardInterrupt,
                "no sender listens at .*; start deltawire-sender .*; waiting for it"):
            nobody.register({"a": np.zeros(3)})

    def test_what_is_published_has_its_whole_name(self):
        manager = self.manager()
        drawn = manager.offload(weights(1), 1)
        first = drawn.wait()
        self.assertNotEqual(drawn.attempt, 0)
        self.assertEqual(first.attempt, drawn.attempt)
        self.assertRegex(first.lineage, "^[0-9a-f]{32}$")
        given = deltawire.draw_attempt()
        self.assertNotEqual(given, 0)
        second = manager.offload(weights(2), 2, attempt=given).wait()
        self.assertEqual(second.attempt, given)
        self.assertEqual(second.lineage, first.lineage)
        self.assertNotEqual(second.root, first.root)
        # The same bytes again: another version, the same root.
        self.assertEqual(manager.offload(weights(1), 3).wait().root, first.root)

    def test_ranks_of_two_attempts_do_not_meet(self):
        layout = [("a", "F32", (3,)), ("b", "F32", (2,))]
        a, b = (self.manager(rank=r, world=2) for r in range(2))
        for manager in (a, b):
            manager.register(layout)
        one, other = deltawire.draw_attempt(), deltawire.draw_attempt()
        first = a.offload({"a": np.zeros(3, np.float32)}, 1, attempt=one)
        # Rank 0 is ready and nobody holds its attempt any more, so another one may begin.
        b.offload({"b": np.zeros(2, np.float32)}, 1, attempt=other)
        with self.assertRaises(deltawire.AbandonedError):
            first.wait()

    def test_ranks_name_their_job(self):
        managers = [self.manager(rank=r, world=2, job=job) for r, job in enumerate(("", "a"))]
        for manager in managers:
            manager.register([("a", "F32", (3,)), ("b", "F32", (2,))])
        with self.assertRaisesRegex(deltawire.Error, "neither its job nor an attempt.*job="):
            managers[0].offload({"a": np.zeros(3, np.float32)}, 1)
        managers[0]._job_name = "b"
        first = managers[0].offload({"a": np.zeros(3, np.float32)}, 1)
        managers[1].offload({"b": np.zeros(2, np.float32)}, 1)  # begins anew, and joins nobody
        with self.assertRaisesRegex(deltawire.AbandonedError, "rank 1 began version 1"):
            first.wait()

    def test_several_senders_want_an_attempt(self):
        with self.assertRaisesRegex(deltawire.Error, "give `attempt`"):
            self.manager().offload_megatron(None, None, "", 1, node_ranks=[0])

    def begun(self, rank=0, world=1):
        """An offload of version 1 of a model of one [4, 2] tensor, and how to write rows of it."""
        model = self.id().rsplit(".", 1)[-1]
        client = _core.Client(self.cluster.endpoint, model, rank, world, 30_000, 0)
        client.register([("m", "F32", (4, 2))], [], None, False, False)
        offload = client.begin(1, 0, "job")
        rows = np.arange(8, dtype=np.float32)

        def write(first, last, share):
            offload.write(0, rows.ctypes.data, 4, [last - first, 2], None, [first, 0], share,
                          _core.HOST_MEMORY)

        return offload, write

    def test_an_only_rank_fills_what_it_writes_in_blocks(self):
        offload, write = self.begun()
        write(0, 1, _core.SHARE_BLOCK)
        write(2, 4, _core.SHARE_BLOCK)
        with self.assertRaisesRegex(deltawire.RefusedError, "24 of 32 bytes of tensor m"):
            offload.ready()
        write(1, 2, _core.SHARE_BLOCK)
        offload.ready()

    def test_an_only_rank_may_write_some_bytes_without_counting_them(self):
        offload, write = self.begun()
        write(0, 3, _core.SHARE_BLOCK)
        write(3, 4, _core.SHARE_PART)
        offload.ready()

    def test_an_empty_block_does_not_stand_against_a_rank_that_writes_all(self):
        one, write_one = self.begun(0, 2)
        other, write_other = self.begun(1, 2)
        write_other(4, 4, _core.SHARE_BLOCK)
        other.mark_block(0, [4, 0], [0, 2])
        write_one(0, 4, _core.SHARE_WHOLE)
        other.ready()
        one.ready()

    def test_unchanged_tensors_are_carried_over(self):
        manager = self.manager()
        old, new = weights(1), weights(2)
        manager.offload(old, 1).wait()
        new["half"] = old["half"]
        given = {n: v for n, v in new.items() if n != "half"}
        given["matrix"], kept = np.zeros_like(old["matrix"]), old["matrix"]
        new["matrix"] = kept  # given and declared unchanged, so the sender's bytes stay
        published = manager.offload(given, 2, unchanged=["half", "matrix"]).wait()
        self.check(new)
        self.assertLess(published.changed_elements, 100)

    def test_memory_of_any_order(self):
        rng = np.random.default_rng(3)
        cube = rng.integers(0, 255, (40, 50, 60), dtype=np.uint16)
        want = {
            "transposed": cube.T,
            "swapped": cube.swapaxes(0, 1),
            "reversed": cube[::-1, :, ::-2],
            "column": cube[:, 3, 5],
            "broadcast": np.broadcast_to(cube[0, 0], (7, 60)),
            "fortran": np.asfortranarray(rng.standard_normal((2000, 1030))),
        }
        self.manager().offload(want, 1).wait()
        self.check(want)

    def test_buffers_and_dlpack(self):
        matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
        given = {
            "bytes": b"abc",
            "array": array.array("d", [1.5, 2.5]),
            "view": memoryview(matrix)[1:],
            "dlpack": OnlyDlpack(matrix.T),
        }
        self.manager().offload(given, 1).wait()
        want = {
            "bytes": np.frombuffer(b"abc", dtype=np.uint8),
            "array": np.array([1.5, 2.5]),
            "view": matrix[1:],
            "dlpack": np.ascontiguousarray(matrix.T),
        }
        self.check(want)
        self.assertEqual(self.cluster.content(self.model)["array"][0], "F64")

    def test_a_generator_holds_one_tensor_at_a_time(self):
        alive, most = set(), 0

        class Counted(np.ndarray):
            def __del__(self):
                alive.discard(id(self))

        def generate():
            nonlocal most
            for i in range(6):
                value = np.full((100, 100), i, dtype=np.float32).view(Counted)
                alive.add(id(value))
                most = max(most, len(alive))
                yield f"t{i}", value
                del value

        manager = self.manager()
        with self.assertRaisesRegex(deltawire.Error, "register first"):
            manager.offload(generate(), 1)
        alive.clear()
        most = 0
        manager.register([(f"t{i}", "F32", (100, 100)) for i in range(6)])
        manager.offload(generate(), 1).wait()
        self.assertEqual(most, 1)
        self.check({f"t{i}": np.full((100, 100), i, dtype=np.float32) for i in range(6)})

    def test_every_refusal_names_the_tensor(self):
        manager = self.manager()
        good = weights(1)
        manager.offload(good, 1).wait()
        missing = {n: v for n, v in good.items() if n != "half"}
        for error, tensor, bad in (
            (deltawire.MissingTensorError, "half", missing),
            (deltawire.ExtraTensorError, "surplus", good | {"surplus": np.zeros(3)}),
            (deltawire.ExtraTensorError, "mask", [*good.items(), ("mask", good["mask"])]),
            (deltawire.ShapeError, "matrix", good | {"matrix": good["matrix"].T}),
            (deltawire.DTypeError, "half", good | {"half": good["half"].astype(np.float32)}),
            (deltawire.DTypeError, "half", good | {"half": good["half"].astype(">f2")}),
            (deltawire.DTypeError, "half", good | {"half": good["half"].astype(complex)}),
            (deltawire.TensorError, "half", good | {"half": "text"}),
        ):
            with self.assertRaises(error) as caught:
                manager.offload(bad, 2)
            self.assertEqual(caught.exception.tensor, tensor)
            self.assertIn(f'"{tensor}"', str(caught.exception))
            self.assertNotIn("register first", str(caught.exception))
        with self.assertRaises(deltawire.ExtraTensorError):
            manager.offload(good, 2, unchanged=["surplus"])
        self.check(good)  # none of them was published
        with self.assertRaisesRegex(deltawire.AbandonedError, "TensorError.*half"):
            manager.wait_published(2)
        manager.offload(good, 2).wait()

    def test_extra_tensors_may_be_ignored(self):
        good = weights(1)
        for extra in (True, {"tied"}):
            manager = self.manager(ignore_extra=extra)
            manager.register(good)
            version = 1 if extra is True else 2
            manager.offload(good | {"tied": np.zeros(3)}, version).wait()
        with self.assertRaises(deltawire.ExtraTensorError):
            manager.offload(good | {"untied": np.zeros(3)}, 3)

    def test_another_layout_wants_replace(self):
        manager = self.manager()
        manager.offload({"a": np.zeros(3)}, 1).wait()
        with self.assertRaises(deltawire.RefusedError):
            manager.register({"b": np.zeros(4)})
        manager.register({"b": np.zeros(4)}, replace=True)
        manager.offload({"b": np.ones(4)}, 1).wait()
        self.check({"b": np.ones(4)})

    def test_side_files(self):
        manager = self.manager()
        manager.register({"a": np.zeros(3)}, side_files={"config.json": '{"x": 1}'})
        manager.register({"a": np.zeros(3)})  # as another rank does; the side files stay
        manager.offload({"a": np.zeros(3)}, 1).wait()
        self.check({"a": np.zeros(3)})
        self.assertEqual(self.cluster.side_file("config.json", self.model), '{"x": 1}')

    def test_notify_comes_when_it_is_said(self):
        with self.manager() as manager:
            manager.offload({"a": np.zeros(3)}, 1, notify=False)
            with self.assertRaises(deltawire.DeadlineError):
                manager.wait_published(1, timeout=0.2)
            manager.notify()
            manager.wait_published(1)
            with self.assertRaises(deltawire.Error):
                manager.notify()
            manager.offload({"a": np.ones(3)}, 2, notify=False)
        with self.assertRaises(deltawire.AbandonedError):  # closed before it was notified
            manager.wait_published(2)

    def test_two_ranks_write_their_tensors(self):
        layout = [("a", "F32", (3,)), ("b", "F32", (2,))]
        a, b = (self.manager(rank=r, world=2, job="4711.0") for r in range(2))
        for manager in (a, b):
            manager.register(layout)
        values = {"a": np.arange(3, dtype=np.float32), "b": np.ones(2, dtype=np.float32)}
        a.offload({"a": values["a"]}, 1)
        b.offload({"b": values["b"]}, 1).wait()
        a.wait_published(1)
        self.check(values)
        a.offload({"a": values["a"]}, 2)
        with self.assertRaisesRegex(deltawire.RefusedError, "b"):
            b.offload({}, 2)
        with self.assertRaisesRegex(deltawire.RefusedError, "b"):
            a.wait_published(2)

    def test_a_lora_adapter_is_a_model_of_its_own(self):
        manager = self.manager()
        manager.offload(weights(1), 1).wait()
        adapter = {"q.lora_A.weight": np.ones((4, 8)), "q.lora_B.weight": np.zeros((8, 4))}
        for version in (1, 2):
            adapter["q.lora_B.weight"] = adapter["q.lora_B.weight"] + version
            published = manager.publish_lora(adapter, version, adapter_config={"r": 4})
            self.assertEqual(published.version, version)
            self.check(weights(1))
            self.model += "-lora"
            self.check(adapter)
            self.assertIn('"r": 4', self.cluster.side_file("adapter_config.json", self.model))
            self.model = self.model.removesuffix("-lora")

    def test_a_lora_adapter_replaces_no_other_model(self):
        other = self.manager(model="another-base")
        other.offload(weights(2), 1).wait()
        manager = self.manager()
        manager.offload(weights(1), 1).wait()
        adapter = {"q.lora_A.weight": np.ones((4, 8))}
        with self.assertRaisesRegex(ValueError, "would replace the base model"):
            manager.publish_lora(adapter, 2, model=self.model)
        with self.assertRaisesRegex(deltawire.RefusedError, "another layout"):
            manager.publish_lora(adapter, 2, model="another-base")
        self.check(weights(1))
        self.assertEqual(other.register(weights(2)), 1)
        self.assertEqual(manager.publish_lora(adapter, 2, model="of-its-own").version, 2)
        other_layout = {"q.lora_A.weight": np.ones((2, 8))}
        self.assertEqual(manager.publish_lora(other_layout, 3, model="of-its-own").version, 3)

    def test_a_sender_that_is_not_there_is_named_before_the_wait_and_after_it(self):
        """In the words of the tool: at each call that waits for it, and once for each absence."""
        cluster = self.enterContext(support.Cluster())
        socket = pathlib.Path(cluster.endpoint) / "trainer.sock"
        absent = (f"no sender listens at {socket} (Connection refused); "
                  "start deltawire-sender on this machine, or ")
        tool = subprocess.run(
            [support.programs() / "deltawire", "publish", cluster.root, "--version", "1",
             "--socket", socket.with_name("none.sock")], capture_output=True, text=True)
        self.assertIn(absent.replace("trainer.sock", "none.sock").replace(
            "Connection refused", "No such file or directory"), tool.stderr)
        manager = deltawire.WeightManager(cluster.endpoint, "m", timeout=1)
        manager.register(weights(1))
        cluster.sender_process.kill()
        cluster.sender_process.wait()
        calls = {
            "register": lambda: deltawire.WeightManager(cluster.endpoint, "m", timeout=1).register(
                weights(1)),
            "offload": lambda: manager.offload(weights(1), 1),
            "wait_published": lambda: deltawire.WeightManager(
                cluster.endpoint, "m", timeout=1).wait_published(1),
            "publish_lora": lambda: manager.publish_lora({"a": np.ones(2)}, 1),
        }
        for name, call in calls.items():
            begun, said = time.monotonic(), []
            handler = logging.Handler()
            handler.emit = lambda record, b=begun, s=said: s.append(
                (time.monotonic() - b, record.getMessage()))
            logger = logging.getLogger("deltawire")
            logger.addHandler(handler)
            try:
                with self.subTest(name), self.assertRaises(
                        # The second: the call had gone out when the sender's end was seen.
                        (deltawire.DeadlineError, deltawire.UnavailableError)) as late:
                    call()
            finally:
                logger.removeHandler(handler)
            with self.subTest(name):
                self.assertIn(absent, str(late.exception))
                self.assertEqual(len(said), 1, said)
                self.assertLess(said[0][0], 1)
                self.assertIn(absent, said[0][1])

    @unittest.skipUnless(os.geteuid() == 0, "only root may become another user")
    def test_another_user_is_told_whose_the_socket_is(self):
        manager = self.manager(timeout=1)
        manager.register(weights(1))
        code = f"""
import logging, os, traceback
import deltawire
os.setgid(65534), os.setuid(65534)
deltawire.WeightManager({self.cluster.endpoint!r}, "m", timeout=1).register([("a", "F32", (2,))])
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              check=False)
        # At once, and in the error.
        self.assertEqual(done.stderr.count("is closed to user 65534 (Permission denied); run this "
                                           "as the sender's user"), 2, done.stderr)

    def test_an_error_with_a_file_name_s_stray_bytes_is_the_reason_for_all_ranks(self):
        ranks = [self.manager(rank=rank, world=2, job="4711.0") for rank in range(2)]
        for manager in ranks:
            manager.register(weights(1).items())
        ranks[1].offload({}, version=1, notify=False)

        def tensors():
            raise FileNotFoundError("no file w\udcff.bin")
            yield

        with self.assertRaises(FileNotFoundError):
            ranks[0].offload(tensors, version=1)
        with self.assertRaisesRegex(deltawire.AbandonedError, "FileNotFoundError: no file w"):
            ranks[1].notify()

    def test_a_forked_child_does_not_hide_that_its_rank_has_died(self):
        layout = [("a", "F32", (3,)), ("b", "F32", (2,))]
        zero = self.manager(rank=0, world=2, job="forks")
        zero.register(layout)
        first = zero.offload({"a": np.zeros(3, np.float32)}, 1)
        script = f"""
import os, sys, time
import deltawire

def tensors():
    child = os.fork()  # as a data loader does
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
    yield

one = deltawire.WeightManager(sys.argv[1], sys.argv[2], rank=1, world=2, job="forks")
one.register({layout})
one.offload(tensors, 1)
"""
        rank = subprocess.Popen([sys.executable, "-c", script, self.cluster.endpoint, self.model],
                                stdout=subprocess.PIPE)
        child = int(rank.stdout.readline())
        try:
            rank.kill()
            killed = time.monotonic()
            with self.assertRaisesRegex(deltawire.AbandonedError, "rank 1 of 2 has gone"):
                first.wait()
            self.assertLess(time.monotonic() - killed, 1)
        finally:
            os.kill(child, signal.SIGKILL)
            rank.communicate()

    def test_an_interpreter_that_ends_beside_a_waiting_thread(self):
        """Python gives a daemon thread the GIL no more by then."""
        self.manager().offload(weights(1), version=1).wait()
        directory = self.cluster.follow(self.model)
        directory.await_version(1)
        waits = {
            "a wait for a version": ("m = deltawire.WeightManager(sys.argv[1], sys.argv[2])",
                                     "m.wait_published(99, 0.3)"),
            "a wait that ends": ("from deltawire.engine import EngineClient\n"
                                 "c = EngineClient(sys.argv[3])", "c.wait(c.committed, 0.3)"),
            "a wait that goes on": ("from deltawire.engine import EngineClient\n"
                                    "c = EngineClient(sys.argv[3])", "c.wait(c.committed, 60)"),
        }
        for name, (begin, wait) in waits.items():
            script = f"""
import sys, threading, time
import deltawire
{begin}
ready = threading.Event()
sys.setswitchinterval(60)  # so that the thread gives the GIL away in its wait and not before

def run():
    ready.set()
    {wait}

class Long:
    def __del__(self):
        self.sleep(0.6)  # the interpreter is ending, and the wait's time is over in here

last = Long()
last.sleep = time.sleep
threading.Thread(target=run, daemon=True).start()
ready.wait()
"""
            with self.subTest(name):
                done = subprocess.run(
                    [sys.executable, "-c", script, self.cluster.endpoint, self.model,
                     str(directory.directory)], capture_output=True, text=True, timeout=60,
                    check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_ctrl_c_ends_a_wait_at_once(self):
        self.manager().offload(weights(1), version=1).wait()
        self.interrupt("manager.wait_published(99, 20)", "")
        self.interrupt("nobody.register([('a', 'F32', (3,))])",
                       "(no sender listens at /nowhere/trainer.sock .*; waiting for it\n)?")  # if in time

    def interrupt(self, wait: str, said: str) -> None:
        script = f"""
import sys, threading
import deltawire
manager = deltawire.WeightManager(sys.argv[1], sys.argv[2])
nobody = deltawire.WeightManager("/nowhere/trainer.sock", timeout=20)
begun = threading.Event()

def tell():
    begun.wait()
    print("waits", flush=True)

threading.Thread(target=tell).start()
sys.setswitchinterval(60)  # so that the thread has its turn in the wait and not before
begun.set()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(manager.wait_published(1).version)
"""
        with subprocess.Popen([sys.executable, "-c", script, self.cluster.endpoint, self.model],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            self.assertEqual(child.stdout.readline(), "waits\n")
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.stdout.readline(), "interrupted\n")
            self.assertLess(time.monotonic() - sent, 1)
            # communicate() would lose what readline() has read beyond its line.
            out, err = child.stdout.read(), child.stderr.read()
        self.assertEqual((child.returncode, out), (0, "1\n"))
        self.assertRegex(err, f"^{said}$")

    def test_no_sender(self):
        manager = deltawire.WeightManager("/nowhere/trainer.sock", timeout=0.2)
        with self.assertRaisesRegex(deltawire.Error, "/nowhere/trainer.sock"):
            manager.register({"a": np.zeros(3)})


if __name__ == "__main__":
    unittest.main()
