"""deltawire.integrations over real daemons. What stands for vLLM's server here is labelled so;
tests/engines has the real one, and integrations_frameworks_test.py the frameworks' own classes.
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import types
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
    raw,
)

import deltawire  # noqa: E402
import torch  # noqa: E402
from deltawire.engine import EngineClient  # noqa: E402
from deltawire.engine._served import Reading, Served, State  # noqa: E402
from deltawire.integrations import _checkpoint, nemo_rl, slime, trl  # noqa: E402
from deltawire.integrations._checkpoint_names import CheckpointNames  # noqa: E402
from deltawire.integrations._directory import ReceiverDirectory  # noqa: E402
from deltawire.integrations._left_out import LeftOut  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402
from deltawire.integrations._vllm_http import VllmServer  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


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

        def too_late(*arguments):
            real(*arguments)  # it is published all the same
            raise deltawire.DeadlineError("planted")

        with (unittest.mock.patch.object(deltawire.WeightManager, "wait_published", too_late),
              self.assertRaises(deltawire.DeadlineError)):
            publisher.publish(self.weights.items())
        self.assertEqual(publisher.published, 2)
        self.weights = changed(self.weights, 3)
        self.assertEqual(publisher.publish(self.weights.items()).version, 3)
        self.assert_receiver_has(self.weights, 3)

    def test_a_checkpoint_without_weights_gives_no_layout(self):
        empty = self.cluster.root / f"empty-{self.model}"
        empty.mkdir()
        publisher = Publisher(**self.arguments | {"hf_dir": empty})
        self.assertEqual(publisher.open(), 0)
        with self.assertRaisesRegex(deltawire.Error, "has no .*safetensors"):
            publisher.open(needs_layout=True)

    def test_a_refit_reads_the_checkpoint_again_only_where_it_has_changed(self):
        """NeMo RL's calls with release_after_refit, without NeMo RL."""
        with unittest.mock.patch.object(nemo_rl, "_missing", None):
            engine = nemo_rl.DeltawireCheckpointEngine(
                1 << 20, directory=self.receiver.directory, release_after_refit=True,
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


class CheckpointFilesTest(unittest.TestCase):
    """Of a checkpoint that is damaged, or still being written."""

    def test_a_file_that_is_no_json_is_named(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        config, index = folder / "config.json", folder / "model.safetensors.index.json"
        metas = [deltawire.TensorMeta(n, "F32", (2, 2)) for n in ("embed_tokens.weight",
                                                                  "lm_head.weight")]
        left_out = LeftOut(metas, CheckpointNames((), folder), folder)
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


class ServerStandIn(http.server.ThreadingHTTPServer):
    """NOT vLLM: its endpoints over one model of this process and the real EngineClient, to see the
    order of the calls and what a refusal leads to. With `tls`, it speaks it; it wants `key` of each
    request, as a gateway would."""

    def __init__(self, model: Engine, tls: ssl.SSLContext | None = None, key: str = ""):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tls, self.key, self.pauses, self.unknown = tls, key, [], ()
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.model, self.client = model, None
        self.calls: list[str] = []
        self.refuse = ""
        self.paused = self.active = False
        self.update = None
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()

    def answer(self, path: str, body: dict) -> dict:
        if path == "/update_weights" and path == self.refuse:
            self.active = False  # vLLM's session ends with an error
        if path == self.refuse:
            raise RuntimeError("refused by the test")
        if path == "/init_weight_transfer_engine":
            self.client = EngineClient(body["init_info"]["directory"])
            attached = self.client.attach(self.model, self.model.load_weights)
            assert attached, attached.reason
        elif path == "/start_weight_update":
            assert not self.active, "an update is active already"
            prepared = self.client.prepare()
            assert prepared, prepared.reason
            self.update, self.active = prepared.update, True
        elif path == "/finish_weight_update":
            assert self.active, "no update is active"
            self.active = False
        elif path in ("/pause", "/resume"):
            self.paused = path == "/pause"
        elif path == "/update_weights":
            assert self.active and self.paused
            assert self.update.to.version == body["update_info"]["version"]
            done = self.client.apply()
            assert done, done.reason
        return {"success": True}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self._lets_in():
            self._answer(200, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path, _, query = self.path.partition("?")
        if not self._lets_in():
            return
        if path in self.server.unknown:
            self._answer(404, {"detail": "Not Found"})
            return
        self.server.calls.append(path)
        if path == "/pause":
            self.server.pauses.append(query)
        try:
            self._answer(200, self.server.answer(path, body))
        except Exception as error:  # pylint: disable=broad-except  # as vLLM answers what is raised
            self._answer(500, {"error": str(error)})

    def _lets_in(self) -> bool:
        shown = self.headers.get("Authorization", "")
        if not self.server.key or shown == f"Bearer {self.server.key}":
            return True
        self._answer(401, {"error": f"Unauthorized: {shown}"})
        return False

    def _answer(self, status: int, body: dict):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


class TrlTest(Case):
    ATTACH = ["/finish_weight_update", "/init_weight_transfer_engine", "/update_weight_version",
              "/reset_prefix_cache", "/reset_encoder_cache", "/resume"]
    UPDATE = ["/start_weight_update", "/pause", "/update_weights", "/finish_weight_update",
              "/reset_prefix_cache", "/reset_encoder_cache", "/resume"]

    def start(self, tls: ssl.SSLContext | None = None, key: str = "", **options
              ) -> trl.WeightTransfer:
        model = Engine()
        model.load_weights(self.weights.items())
        self.server = ServerStandIn(model, tls, key)
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
        self.assertEqual(self.server.calls, ["/pause", *self.ATTACH])
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
        self.assertEqual(self.server.calls, self.ATTACH)
        self.assertEqual(transfer.version, 7)
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

    def test_an_update_that_broke_off_does_not_stand_in_the_way_of_the_next(self):
        transfer = self.start()
        self.sync(transfer)
        for seed, path in enumerate(("/pause", "/update_weights", "/finish_weight_update"), 2):
            with self.subTest(path):
                self.weights = changed(self.weights, seed)
                self.server.refuse = path
                with self.assertRaisesRegex(deltawire.Error, "refused by the test"):
                    self.sync(transfer)
                self.server.refuse = ""
                self.sync(transfer)
                self.assertFalse(self.server.paused or self.server.active)

    def test_a_trainer_that_follows_one_that_died_in_an_update(self):
        transfer = self.start()
        self.sync(transfer)
        self.weights = changed(self.weights, 2)
        self.server.refuse = "/finish_weight_update"
        with self.assertRaisesRegex(deltawire.Error, "refused by the test"):
            self.sync(transfer)
        self.server.refuse = ""
        self.assertTrue(self.server.paused and self.server.active)
        follower = trl.WeightTransfer(self.server.url, self.receiver.directory, **self.arguments)
        self.addCleanup(follower.destroy)
        follower.init_weight_transfer()
        # Its first step needs answers of the server.
        self.assertFalse(self.server.paused or self.server.active)
        self.assertEqual(follower.version, 2)
        self.assert_engine_has(self.weights)
        self.weights = changed(self.weights, 3)
        self.sync(follower)

    def test_a_server_behind_tls_that_wants_a_key_is_followed(self):
        tls, ca_file = self.certificates()
        key_file = self.cluster.root / f"key-{self.model}"
        key_file.write_text("the-key\n")
        key_file.chmod(0o600)
        transfer = self.start(tls, "the-key", token_file=key_file, ca_file=ca_file,
                              pause_mode="abort")
        self.sync(transfer)
        key_file.write_text("the-next-one\n")  # read anew for each request
        self.server.key = "the-next-one"
        self.weights = changed(self.weights, 2)
        self.sync(transfer)
        self.assertEqual(self.server.pauses, ["mode=abort"] * 2)
        self.server.key = "another"
        with self.assertRaisesRegex(deltawire.Error, "401: .*Bearer \\[key\\].*does not take the key"):
            self.sync(transfer)
        server = VllmServer(self.server.url, ca_file=ca_file)
        with self.assertRaisesRegex(deltawire.Error, "it wants an API key"):
            server.resume()
        # Its certificate is of 127.0.0.1, and by nobody whom the system knows.
        with self.assertRaisesRegex(deltawire.Error, "CERTIFICATE_VERIFY_FAILED"):
            VllmServer(self.server.url).resume()
        connect = socket.create_connection
        other = VllmServer(self.server.url.replace("127.0.0.1", "other.test"), ca_file=ca_file)
        with unittest.mock.patch("socket.create_connection",
                                 lambda at, *rest: connect(("127.0.0.1", at[1]), *rest)):
            with self.assertRaisesRegex(deltawire.Error, "not valid for 'other.test'"):
                other.resume()

    def test_a_key_that_cannot_be_read_any_more_is_still_shown(self):
        key_file = self.cluster.root / f"gone-{self.model}"
        key_file.write_text("the-key\n")
        key_file.chmod(0o600)
        transfer = self.start(key="the-key", token_file=key_file)
        key_file.unlink()
        with self.assertLogs("deltawire._server_access", "WARNING") as logged:
            self.sync(transfer)
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn(f"{key_file} cannot be read (No such file or directory)", logged.output[0])
        self.weights = changed(self.weights, 2)
        self.server.key = "the-next-one"
        with self.assertRaisesRegex(deltawire.Error, f"401: .*last key of {key_file}, which cannot"):
            self.sync(transfer)
        key_file.write_text("the-next-one\n")
        key_file.chmod(0o600)
        with self.assertNoLogs("deltawire._server_access"):
            self.sync(transfer)
        key_file.unlink()
        with self.assertRaisesRegex(deltawire.Error, f"No such file .*{key_file}"):
            VllmServer(self.server.url, token_file=key_file)

    def test_the_program_for_adapters_shows_the_key(self):
        server = ServerStandIn(Engine(), key="the-key")
        self.addCleanup(server.close)
        key_file = self.cluster.root / f"adapter-{self.model}"
        key_file.write_text("the-key")
        key_file.chmod(0o600)
        directory = self.cluster.root / f"adapter-files-{self.model}"
        directory.mkdir()

        def run(*options: str) -> subprocess.CompletedProcess:
            return subprocess.run(
                [sys.executable, "-m", "deltawire.engine.adapter", server.url, "--links",
                 str(self.cluster.root / f"links-{self.model}"), *options],
                env=os.environ | {"DELTAWIRE_MODEL": "m", "DELTAWIRE_DIRECTORY": str(directory),
                                  "DELTAWIRE_VERSION": "7"},
                capture_output=True, text=True, check=False)

        done = run("--token-file", str(key_file))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(server.calls, ["/v1/load_lora_adapter"])
        refused = run()
        self.assertEqual(refused.returncode, 1)
        self.assertIn("version 7 is not served", refused.stderr)
        self.assertIn("it wants an API key", refused.stderr)

    def certificates(self) -> tuple[ssl.SSLContext, pathlib.Path]:
        """Of a server at 127.0.0.1, and the file of who vouches for it."""
        tool = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]) / "deltawire"
        keys = self.cluster.root / f"keys-{self.model}"
        subprocess.run([tool, "certs", keys, "server=127.0.0.1"], check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(keys / "server" / "certificate.pem", keys / "server" / "key.pem")
        return tls, keys / "server" / "ca.pem"

    def test_a_key_is_not_taken_where_others_would_see_it(self):
        key_file = self.cluster.root / f"seen-{self.model}"
        key_file.write_text("the-key")
        key_file.chmod(0o600)
        with self.assertRaisesRegex(deltawire.Error, "use https://, or allow it"):
            VllmServer("http://10.0.0.1:8000", token_file=key_file)
        VllmServer("http://10.0.0.1:8000", token_file=key_file, insecure_plaintext=True)
        for text, mode, why in (("the-key", 0o644, "mode 0644 lets every user"),
                                ("two words", 0o600, "not one line"), ("", 0o600, "not one line")):
            key_file.write_text(text)
            key_file.chmod(mode)
            with self.assertRaisesRegex(deltawire.Error, why) as raised:
                VllmServer("http://127.0.0.1:8000", token_file=key_file)
            self.assertNotIn("the-key", str(raised.exception))
        with self.assertRaisesRegex(deltawire.Error, "none of vLLM's: abort, wait, keep"):
            VllmServer("http://127.0.0.1:8000", pause_mode="retract")
        with self.assertRaisesRegex(deltawire.Error, "is no https://"):
            VllmServer("http://127.0.0.1:8000", ca_file="/ca.pem")

    def test_a_server_that_cannot_drop_encoders_outputs_is_followed_without_that(self):
        transfer = self.start()
        self.server.unknown = ("/reset_encoder_cache",)
        with self.assertLogs("deltawire.integrations._vllm_http", "INFO") as logged:
            self.sync(transfer)
            self.weights = changed(self.weights, 2)
            self.sync(transfer)
        self.assertEqual(len(logged.output), 1, logged.output)  # said once
        self.assertNotIn("/reset_encoder_cache", self.server.calls)

    def test_what_is_not_there_is_named(self):
        with self.assertRaisesRegex(deltawire.Error, "no URL"):
            trl.WeightTransfer("localhost:8000", "/d")
        gone = trl.WeightTransfer("http://127.0.0.1:9", "/d", timeout=0.1)
        with self.assertRaisesRegex(deltawire.DeadlineError, "not up"):
            gone.init_weight_transfer()
        transfer = self.start(receiver="127.0.0.1:9", tool="/nowhere/deltawire")
        with self.assertRaisesRegex(deltawire.Error, "give `tool` its path"):
            self.sync(transfer)

    def tool(self, text: str) -> str:
        """A command in the place of `deltawire`, which notes its calls."""
        path = self.cluster.root / f"tool-{self.model}"
        path.write_text(f"#!/bin/sh\necho \"$*\" >> {path}.calls\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def test_a_receiver_that_cannot_be_reached_is_asked_again(self):
        real = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]) / "deltawire"
        tool = self.tool(f'[ $(wc -l < "$0.calls") -ge 3 ] && exec {real} "$@"\n'
                         'echo "nobody answers" >&2\nexit 3')
        transfer = self.start(receiver=self.receiver.address, tool=tool)
        self.sync(transfer)
        self.assertEqual(transfer.version, 1)
        calls = pathlib.Path(f"{tool}.calls").read_text().splitlines()
        self.assertEqual(len(calls), 3)
        self.assertTrue(all(f"--receiver {self.receiver.address}" in call for call in calls))

    def test_a_receiver_that_refuses_is_not_asked_again(self):
        tool = self.tool('echo "another model" >&2\nexit 1')
        transfer = self.start(receiver=self.receiver.address, tool=tool)
        with self.assertRaisesRegex(deltawire.Error, "did not commit version 1: another model"):
            self.sync(transfer)
        self.assertEqual(len(pathlib.Path(f"{tool}.calls").read_text().splitlines()), 1)

    def test_a_command_that_hangs_is_killed(self):
        tool = self.tool("exec sleep 600")
        transfer = self.start(receiver=self.receiver.address, tool=tool, timeout=1.0)
        with (unittest.mock.patch.object(trl, "_GRACE_S", 0.5),
              self.assertRaisesRegex(deltawire.DeadlineError, "did not end")):
            self.sync(transfer)

    def test_what_is_no_http_answer_is_an_error_of_deltawires(self):
        for answer in (b"no http\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
                       b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext"):
            with self.subTest(answer), socket.create_server(("127.0.0.1", 0)) as listening:
                def serve(sockets=listening, said=answer):
                    connection, _ = sockets.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(said)

                thread = threading.Thread(target=serve)
                thread.start()
                server = VllmServer(f"http://127.0.0.1:{listening.getsockname()[1]}", LIMIT_S)
                with self.assertRaises(deltawire.Error):
                    server.resume()
                thread.join()


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


class RayStandIn:
    """NOT Ray: its tasks run here at once, on the node that they are sent to by name."""

    def __init__(self, here: str, nodes: list[str], directories: dict[str, pathlib.Path]):
        self.node, self.directories = here, directories
        self.ran: list[tuple[str, str]] = []
        strategy = types.SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda node, soft: node)
        ray = types.SimpleNamespace(
            get=lambda found: found, remote=lambda **_: self.remote,
            nodes=lambda: [{"NodeID": n, "Alive": True} for n in nodes]
            + [{"NodeID": "gone", "Alive": False}],
            get_runtime_context=lambda: types.SimpleNamespace(get_node_id=lambda: self.node))
        self.modules = {"ray": ray, "ray.util": types.SimpleNamespace(),
                        "ray.util.scheduling_strategies": strategy}

    def actor_on(self, node: str):
        call = types.SimpleNamespace(remote=lambda function: self.run(node, function, None))
        return types.SimpleNamespace(__ray_call__=call)

    def remote(self, function):
        def options(scheduling_strategy):
            return types.SimpleNamespace(
                remote=lambda *arguments: self.run(scheduling_strategy, function, *arguments))
        return types.SimpleNamespace(options=options)

    def run(self, node: str, function, *arguments):
        here, self.node = self.node, node
        self.ran.append((node, function.__name__))
        try:
            # Each node sees its own disk.
            if function.__name__ == "has_directory":
                return node in self.directories
            return function(*arguments)
        finally:
            self.node = here


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
            slime.follow(version == 1, settings, str(path), version)
            self.assertEqual([e.name for e in disk.iterdir()], [path.name])
            self.assertEqual(path.resolve(), self.receiver.directory.resolve())
        own = disk / "weight_v000003"  # as on the trainer's node
        self.save(self.weights, own)
        publisher.publish(self.weights.items())
        slime.follow(True, settings, str(own), 3)
        self.assertFalse(own.is_symlink())
        before = raw(load_file(own / "model.safetensors"))
        with self.assertRaisesRegex(deltawire.Error, "what some other run has left there"):
            slime.follow(False, settings, str(own), 3)
        self.assertEqual(raw(load_file(own / "model.safetensors")), before)

    def test_each_node_does_its_part_by_a_stand_in_for_ray(self):
        disk = self.cluster.root / f"disk-{self.model}"
        disk.mkdir()
        own = disk / "weight_v000001"
        self.save(self.weights, own)
        ray = RayStandIn(here="trainer", nodes=["engine", "head", "second", "trainer"],
                         directories={"engine": self.receiver.directory,
                                      "second": self.receiver.directory})
        engines = [ray.actor_on("engine")]
        with unittest.mock.patch.dict(sys.modules, ray.modules):
            with self.assertRaisesRegex(deltawire.Error, "what some other run has left there"):
                slime.publish(self.slime_args(), str(own), engines)  # the disk is theirs, too
            elsewhere = disk / "elsewhere" / own.name
            settings = slime.Settings.of(self.slime_args())
            linked = f"{elsewhere} is version 1"
            self.assertEqual(slime.on_nodes(engines, settings, str(elsewhere), 1),
                             {"engine": linked, "second": linked})
            ray.directories = {}
            self.assertEqual(slime.on_nodes([ray.actor_on("trainer")], settings, str(own), 1),
                             {"trainer": "the trainer's own checkpoint is there"})
        # The head has neither deltawire nor an engine.
        self.assertEqual({node for node, name in ray.ran if name == "follow"},
                         {"engine", "second", "trainer"})


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
