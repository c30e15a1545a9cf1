"""TRL's transfer over real daemons, and how a vLLM server is spoken to. The server is a stand-in;
tests/engines has the real one, and integrations_frameworks_test.py TRL's own classes.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import threading
import unittest
import unittest.mock

import support

support.use_trainer_python()
from integrations_rig import LIMIT_S, Case, Engine, changed, raw  # noqa: E402  # or a skip
from vllm_server_stand_in import ServerStandIn  # noqa: E402

import deltawire  # noqa: E402
from deltawire.integrations import trl  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402
from deltawire.integrations._vllm_http import VllmServer  # noqa: E402


class TrlTest(Case):
    ATTACH = ["attach", "/update_weight_version", "/reset_prefix_cache", "/reset_encoder_cache",
              "/resume"]
    UPDATE = ["prepare", "/pause", "apply", "prove", "/update_weight_version",
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
        transfer = self.start(receiver=self.receiver.address)
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
        self.server.refuse = "prepare"
        with self.assertRaisesRegex(deltawire.Error, "prepare: refused by the test"):
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
        self.server.refuse = "apply"
        with self.assertRaises(deltawire.Error):
            self.sync(transfer)
        transfer.destroy()
        self.assertTrue(self.server.paused)
        self.assertNotIn("/resume", self.server.calls)

    def test_an_update_that_broke_off_does_not_stand_in_the_way_of_the_next(self):
        transfer = self.start()
        self.sync(transfer)
        for seed, path in enumerate(("/pause", "apply", "prove", "/update_weight_version"), 2):
            with self.subTest(path):
                self.weights = changed(self.weights, seed)
                self.server.refuse = path
                with self.assertRaisesRegex(deltawire.Error, "refused by the test"):
                    self.sync(transfer)
                self.server.refuse = ""
                self.sync(transfer)
                self.assertFalse(self.server.paused)

    def test_a_trainer_that_follows_one_that_died_in_an_update(self):
        transfer = self.start()
        self.sync(transfer)
        self.weights = changed(self.weights, 2)
        self.server.refuse = "/update_weight_version"
        with self.assertRaisesRegex(deltawire.Error, "refused by the test"):
            self.sync(transfer)
        self.server.refuse = ""
        self.assertTrue(self.server.paused)
        follower = trl.WeightTransfer(self.server.url, self.receiver.directory, **self.arguments)
        self.addCleanup(follower.destroy)
        follower.init_weight_transfer()
        # Its first step needs answers of the server.
        self.assertFalse(self.server.paused)
        self.assertEqual(follower.version, 2)
        self.assert_engine_has(self.weights)
        self.weights = changed(self.weights, 3)
        self.sync(follower)

    def test_a_server_that_takes_no_deltas_in_place_reads_the_directory(self):
        transfer = self.start(attach_options={"second_instance": True})
        self.server.why_not = "this model cannot be updated in place: it packs its weights"
        with self.assertLogs("deltawire.integrations.trl", "WARNING") as logged:
            self.sync(transfer)
        self.assertIn("it packs its weights; it reads the directory", logged.output[0])
        for version in (2, 3):
            self.server.calls.clear()
            self.weights = changed(self.weights, version)
            self.sync(transfer)
            self.assertEqual(self.server.calls[:3], ["/pause", "reload", "/update_weight_version"])

    def test_an_attach_is_given_its_options(self):
        transfer = self.start(attach_options={"second_instance": True, "check_every": 8})
        self.sync(transfer)
        self.weights = changed(self.weights, 2)
        self.server.client = None
        VllmServer(self.server.url, attach_options={"loader_tensors": True}).attach(
            str(self.receiver.directory))
        self.assertEqual(self.server.options["loader_tensors"], True)
        with self.assertRaisesRegex(deltawire.Error, "attach_options has plan; there are"):
            VllmServer(self.server.url, attach_options={"plan": True})

    def test_a_server_without_the_plug_in_is_not_called(self):
        transfer = self.start()
        self.server.plugged = False
        with self.assertRaisesRegex(deltawire.Error, "has no deltawire plug-in"):
            self.sync(transfer)

    def test_an_answer_of_another_call_is_not_believed(self):
        transfer = self.start()
        self.sync(transfer)
        self.server.stale.append({"nonce": "another", "rank": 0, "ranks": 1, "ok": True})
        with self.assertRaisesRegex(deltawire.Error, "out of step"):
            self.sync(transfer)

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
        # Written anew in place, too: cut first, or readable by all for a moment.
        for seed, (breaks, why) in enumerate((
                (lambda: key_file.write_text(""), "is not one line"),
                (lambda: key_file.chmod(0o644), "holds a secret"),
                (key_file.unlink, "No such file or directory"))):
            breaks()
            with self.assertLogs("deltawire._server_access", "WARNING") as logged:
                self.sync(transfer)
            self.assertEqual(len(logged.output), 1, logged.output)
            self.assertIn(f"{key_file} cannot be used (", logged.output[0])
            self.assertIn(why, logged.output[0])
            self.weights = changed(self.weights, seed + 2)
            if key_file.exists():
                key_file.write_text("the-key\n")
                key_file.chmod(0o600)
                self.sync(transfer)
                self.weights = changed(self.weights, seed + 12)
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
        transfer = self.start(receiver="127.0.0.1:9", timeout=5.0)
        with self.assertRaisesRegex(deltawire.DeadlineError, "did not commit version 1: .*start "
                                    "deltawire-receiver there"):
            self.sync(transfer)

    def test_a_receiver_that_cannot_be_reached_is_asked_again(self):
        hung_up = []

        def serve(listening):
            while len(hung_up) < 3:
                listening.accept()[0].close()
                hung_up.append(True)
            while len(hung_up) == 3:
                one = listening.accept()[0]
                host, port = self.receiver.address.split(":")
                other = socket.create_connection((host, int(port)))
                for a, b in ((one, other), (other, one)):
                    threading.Thread(target=forward, args=(a, b), daemon=True).start()

        def forward(a, b):
            with a, contextlib.suppress(OSError):  # either end may close
                while data := a.recv(1 << 16):
                    b.sendall(data)

        listening = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        transfer = self.start(receiver=f"127.0.0.1:{listening.getsockname()[1]}")
        self.sync(transfer)
        self.assertEqual((transfer.version, len(hung_up)), (1, 3))

    def test_a_receiver_that_refuses_is_not_asked_again(self):
        other = self.cluster.start_receiver([self.cluster.control], "other",
                                            self.cluster.root / f"other-{self.model}")
        transfer = self.start(receiver=other.address)
        with self.assertRaisesRegex(deltawire.Error, "did not commit version 1: .*no model") as said:
            self.sync(transfer)
        self.assertNotIsInstance(said.exception, deltawire.DeadlineError)

    def test_a_receiver_that_says_nothing_is_given_up(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            transfer = self.start(receiver=f"127.0.0.1:{silent.getsockname()[1]}", timeout=1.0)
            with self.assertRaisesRegex(deltawire.DeadlineError, "did not commit version 1"):
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


if __name__ == "__main__":
    unittest.main()
