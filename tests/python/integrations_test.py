"""deltawire.integrations over real daemons. What stands for vLLM's server here is labelled so;
tests/engines has the real one, and integrations_frameworks_test.py the frameworks' own classes.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import unittest
import unittest.mock

import support

support.use_trainer_python()
from integrations_rig import LIMIT_S, Case, Engine, changed, raw  # noqa: E402  # or a skip

import deltawire  # noqa: E402
import torch  # noqa: E402
from deltawire.engine import EngineClient  # noqa: E402
from deltawire.engine._served import Reading, Served, State  # noqa: E402
from deltawire.integrations import slime, trl  # noqa: E402
from deltawire.integrations._directory import ReceiverDirectory  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402


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

    def test_a_wait_for_a_directory_says_what_is_there(self):
        with self.assertRaisesRegex(deltawire.DeadlineError, "no receiver has committed there"):
            ReceiverDirectory("/nowhere").wait(1, 0.1)
        publisher = Publisher(**self.arguments)
        publisher.open()
        publisher.publish(self.weights.items(), version=5)
        directory = ReceiverDirectory(self.receiver.directory)
        directory.wait(5, LIMIT_S)
        with self.assertRaisesRegex(deltawire.DeadlineError, "version 6 is not .* version 5 is"):
            directory.wait(6, 0.1)
        with self.assertRaisesRegex(deltawire.Error, "version 5 is committed, and 4"):
            directory.wait(4, 0.1)
        with self.assertRaisesRegex(deltawire.Error, "was committed while 4"):
            list(directory.tensors(4))


class ServerStandIn(http.server.ThreadingHTTPServer):
    """NOT vLLM: its endpoints over one model of this process and the real EngineClient, to see the
    order of the calls and what a refusal leads to."""

    def __init__(self, model: Engine):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.client = model, None
        self.calls: list[str] = []
        self.refuse = ""
        self.paused = False
        self.update = None
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()

    def answer(self, path: str, body: dict) -> dict:
        if path == self.refuse:
            raise RuntimeError("refused by the test")
        if path == "/init_weight_transfer_engine":
            self.client = EngineClient(body["init_info"]["directory"])
            attached = self.client.attach(self.model, self.model.load_weights)
            assert attached, attached.reason
        elif path == "/start_weight_update":
            prepared = self.client.prepare()
            assert prepared, prepared.reason
            self.update = prepared.update
        elif path in ("/pause", "/resume"):
            self.paused = path == "/pause"
        elif path == "/update_weights":
            assert self.paused and self.update.to.version == body["update_info"]["version"]
            done = self.client.apply()
            assert done, done.reason
        return {"success": True}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(200, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        self.server.calls.append(path)
        try:
            self._answer(200, self.server.answer(path, body))
        except Exception as error:  # pylint: disable=broad-except  # as vLLM answers what is raised
            self._answer(500, {"error": str(error)})

    def _answer(self, status: int, body: dict):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


class TrlTest(Case):
    UPDATE = ["/start_weight_update", "/pause", "/update_weights", "/finish_weight_update",
              "/reset_prefix_cache", "/resume"]

    def start(self, **options) -> trl.WeightTransfer:
        model = Engine()
        model.load_weights(self.weights.items())
        self.server = ServerStandIn(model)
        self.addCleanup(self.server.close)
        transfer = trl.WeightTransfer(self.server.url, self.receiver.directory,
                                      **self.arguments | options)
        self.addCleanup(transfer.destroy)
        transfer.init_weight_transfer()
        return transfer

    def sync(self, transfer):
        """What TRL calls for each version."""
        transfer.pause()
        transfer.send_weights(iter(self.weights.items()))
        transfer.resume()
        self.assert_engine_has(self.weights)

    def assert_engine_has(self, weights):
        want = Engine()
        want.load_weights(weights.items())
        self.assertEqual(raw(self.server.model.state_dict()), raw(want.state_dict()))

    def test_a_server_started_from_the_trainer_s_checkpoint_follows_every_version(self):
        transfer = self.start()
        self.assertEqual(self.server.calls, [])  # nothing is published that it could be attached to
        self.sync(transfer)
        self.assertEqual(self.server.calls, ["/pause", "/init_weight_transfer_engine",
                                             "/update_weight_version", "/reset_prefix_cache",
                                             "/resume"])
        for version in (2, 3):
            self.server.calls.clear()
            self.weights = changed(self.weights, version)
            self.sync(transfer)
            self.assertEqual(transfer.version, version)
            self.assertEqual(self.server.calls, self.UPDATE)

    def test_a_server_started_from_the_receiver_s_directory_is_attached_first(self):
        publisher = Publisher(**self.arguments)
        publisher.open()
        publisher.publish(self.weights.items(), version=7)
        # The receiver's address in the place of the directory: the wait goes over gRPC.
        tool = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]) / "deltawire"
        transfer = self.start(receiver=self.receiver.address, tool=str(tool))
        self.assertEqual(self.server.calls, ["/init_weight_transfer_engine"])
        self.server.calls.clear()
        self.weights = changed(self.weights, 8)  # a run that goes on from other weights
        self.sync(transfer)
        self.assertEqual(self.server.calls, self.UPDATE)
        self.assertEqual(transfer.version, 8)

    def test_a_refusal_before_the_pause_leaves_the_server_at_work(self):
        transfer = self.start()
        self.sync(transfer)
        before = dict(self.weights)
        self.weights = changed(self.weights, 2)
        self.server.refuse = "/start_weight_update"
        with self.assertRaisesRegex(deltawire.Error, "answered 500.*refused by the test"):
            self.sync(transfer)
        self.assertFalse(self.server.paused)
        self.assert_engine_has(before)
        self.assertEqual(transfer.version, 1)
        self.server.refuse = ""
        self.sync(transfer)  # the next version takes both steps at once
        self.assertEqual(transfer.version, 3)

    def test_a_failure_while_it_writes_leaves_the_server_paused(self):
        transfer = self.start()
        self.sync(transfer)
        self.server.calls.clear()
        self.server.refuse = "/update_weights"
        with self.assertRaises(deltawire.Error):
            self.sync(transfer)
        transfer.destroy()
        self.assertTrue(self.server.paused)
        self.assertNotIn("/resume", self.server.calls)

    def test_what_is_not_there_is_named(self):
        with self.assertRaisesRegex(deltawire.Error, "no URL"):
            trl.WeightTransfer("localhost:8000", "/d")
        gone = trl.WeightTransfer("http://127.0.0.1:9", "/d", timeout=0.1)
        with self.assertRaisesRegex(deltawire.DeadlineError, "not up"):
            gone.init_weight_transfer()
        transfer = self.start(receiver="127.0.0.1:9", tool="/nowhere/deltawire")
        with self.assertRaisesRegex(deltawire.Error, "give `tool` its path"):
            self.sync(transfer)


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
        version = self.publisher.publish(self.weights.items()).version
        ReceiverDirectory(self.receiver.directory).wait(version, LIMIT_S)

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


class SlimeTest(Case):
    def test_settings_are_read_from_slime_s_arguments(self):
        settings = slime.Settings.of(self.slime_args())
        self.assertEqual((settings.model, settings.timeout), (self.model, LIMIT_S))
        with self.assertRaisesRegex(deltawire.Error, "deltawire_modle, which is no setting"):
            slime.Settings.of(self.slime_args(deltawire_modle="m"))
        with self.assertRaisesRegex(deltawire.Error, "no deltawire_directory"):
            slime.Settings.of(argparse.Namespace())

    def test_a_directory_that_is_no_full_update_is_refused(self):
        with self.assertRaisesRegex(deltawire.Error, "update-weight-mode full"):
            slime.publish(self.slime_args(), str(self.hf_dir), [])

    def test_an_engine_s_node_gets_a_link_to_the_committed_version(self):
        publisher = Publisher(**self.arguments)
        publisher.open()
        settings = slime.Settings.of(self.slime_args())
        disk = self.cluster.root / f"disk-{self.model}"
        for version in (1, 2):
            self.weights = changed(self.weights, version)
            publisher.publish(self.weights.items())
            path = disk / f"weight_v{version:06d}"
            slime.follow(True, settings, str(path), version)
            self.assertEqual([e.name for e in disk.iterdir()], [path.name])
            self.assertEqual(path.resolve(), self.receiver.directory.resolve())
        own = disk / "weight_v000003"  # as on the trainer's node
        self.save(self.weights, own)
        publisher.publish(self.weights.items())
        slime.follow(True, settings, str(own), 3)
        self.assertFalse(own.is_symlink())
        nobody = slime.Settings(str(disk / "none"))
        self.assertEqual(slime.follow(False, nobody, str(disk / "weight_v000004"), 4),
                         "no receiver's directory, and no engine")


class WithoutTest(unittest.TestCase):
    def test_modules_import_alone_and_say_what_they_miss(self):
        """In a Python that finds none of the frameworks, installed or not."""
        code = """
import sys
for name in ("trl", "verl", "nemo_rl", "ray", "torch", "vllm", "transformers"):
    sys.modules[name] = None  # an import of it fails
from deltawire.integrations import nemo_rl, slime, trl, verl
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


if __name__ == "__main__":
    unittest.main()
