"""deltawire.control, as an orchestrator uses it, against real daemons: in plaintext, by tokens and
certificates that change while a client lives, and where a daemon goes and comes back.
"""

from __future__ import annotations

import array
import asyncio
import gc
import inspect
import json
import math
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import support
from daemons import DEADLINE_S, Daemons, free_port, programs, run, until

deltawire = support.need("deltawire")
from deltawire import aio  # noqa: E402
from deltawire.control import Receiver, Sender  # noqa: E402

OPERATOR, OBSERVER = "me:operator", "looker:observer"


class Fleet(Daemons):
    """A sender, a receiver of "policy", and a trainer beside the sender. With `principals` both ask
    who calls; with `tls` they speak TLS; the keys are of `deltawire certs`."""

    def __init__(self, *, tls: bool = False, principals: bool = False,
                 only_certificates: bool = False):
        shm = pathlib.Path("/dev/shm")
        self._dir = tempfile.TemporaryDirectory(prefix="deltawire-control-",
                                                dir=shm if shm.is_dir() else None)
        super().__init__(pathlib.Path(self._dir.name))
        self.keys = self.root / "keys"
        asking = {"trainer": [], "rollout": []}
        if principals:
            self.make_keys(self.keys)
            file = self.keys / "principals.toml"
            if only_certificates:
                file.write_text("require-certificate = true\n" + file.read_text())
            for name, options in asking.items():
                shown = self.keys / name / "credentials.toml" if tls else self.token_only(name)
                options += ["--principals", str(file), "--credentials", str(shown)]
        self.sender = self.start_sender(self.root / "s", *asking["trainer"])
        self.receiver = self.start_receiver(
            [self.sender], "policy", self.root / "r", *asking["rollout"]
        ).address
        self._trainer = deltawire.WeightManager(self.root / "s", model="policy")

    def make_keys(self, directory: pathlib.Path) -> None:
        run(programs() / "deltawire", "certs", directory, "--token", "trainer:trainer=127.0.0.1",
            "rollout:receiver=127.0.0.1", OPERATOR, OBSERVER)  # fmt: skip

    def token_only(self, name: str, *lines: str) -> str:
        """Credentials of `name` that show its token alone, plaintext without further lines."""
        file = self.keys / name / f"token{len(lines)}.toml"
        file.write_text("".join(line + "\n" for line in ("token-file = 'token'", *lines)))
        return str(file)

    def publish(self, version: int) -> None:
        weights = {"w": array.array("f", [version] * 64), "step": array.array("q", [version])}
        self._trainer.offload(weights.items(), version).wait()

    def end_trainer(self) -> None:
        del self._trainer
        gc.collect()

    def close(self) -> None:
        super().close()
        self._dir.cleanup()


def refusal(call) -> tuple[str, str]:
    """The code and the words of what `call` raises; two empty ones where it raises nothing."""
    try:
        call()
    except deltawire.Error as error:
        return error.code, str(error)
    return "", ""


class PlainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = cls.enterClassContext(Fleet())
        for version in (1, 2):
            cls.fleet.publish(version)
        with Receiver(cls.fleet.receiver) as receiver:
            receiver.wait(2, timeout=DEADLINE_S)

    def setUp(self):
        self.sender = self.enterContext(Sender(self.fleet.sender))
        self.receiver = self.enterContext(Receiver(self.fleet.receiver))

    def test_the_daemons_states_are_those_that_the_tool_prints(self):
        self.assertEqual(self.sender.model(), "policy")
        printed = json.loads(run(programs() / "deltawire", "status", "--json", "--sender",
                                 self.fleet.sender, "--receiver", self.fleet.receiver))  # fmt: skip
        for daemon, side in ((self.sender, "sender"), (self.receiver, "receiver")):
            told, (model,) = daemon.status(), daemon.status()["models"]
            self.assertLessEqual(set(told), set(printed[side]))
            (other,) = printed[side]["models"]
            self.assertLessEqual(set(model), set(other))
            self.assertEqual(model["newest"], other["newest"])
        (receiver,) = self.sender.receivers()
        self.assertEqual(receiver["committed"], self.receiver.status()["models"][0]["committed"])
        self.assertEqual({c["name"] for c in self.sender.changes()["models"][0]["changes"]},
                         {"w", "step"})

    def test_a_watch_ends_where_its_reader_has_seen_enough(self):
        seen = []
        with self.sender.watch() as published:
            seen.append(next(published)["id"]["version"])
            self.fleet.publish(seen[0] + 1)
            for news in published:
                seen.append(news["id"]["version"])
                if seen[-1] > seen[0]:
                    break
        self.assertEqual(seen, [seen[0], seen[0] + 1])
        reached = self.receiver.wait(seen[-1], timeout=DEADLINE_S)
        self.assertGreaterEqual(reached["id"]["version"], seen[-1])
        self.assertEqual(reached["directory"], str(self.fleet.root / "r"))
        last = self.sender.wait_committed(seen[-1], timeout=DEADLINE_S)
        self.assertEqual((last["attached"], last["committed"]), (1, 1))

    def test_a_receiver_is_directed(self):
        self.receiver.pause()
        newest = self.sender.status()["models"][0]["newest"]["id"]["version"]
        self.fleet.publish(newest + 1)
        self.assertEqual(self.receiver.status()["models"][0]["phase"], "paused")
        done = self.receiver.sync(timeout=DEADLINE_S)
        self.assertEqual((done["phase"], done["target"]["version"]), ("committed", newest + 1))
        newest += 2
        self.fleet.publish(newest)
        member = [self.sender.receivers()[0]["receiver_id"]]
        with self.assertRaisesRegex(deltawire.AbandonedError, "no member has committed: .*paused"):
            self.sender.sync(member, group="one", timeout=DEADLINE_S)
        self.receiver.resume()
        result = self.sender.sync(member, group="one", timeout=DEADLINE_S)
        self.assertTrue(result["group"]["committed"])
        self.assertEqual(result["group"]["target"]["version"], newest)
        self.assertEqual(self.receiver.verify(timeout=DEADLINE_S)["bad_chunks"], 0)
        result = self.sender.sync(timeout=DEADLINE_S)
        self.assertEqual([r["phase"] for r in result["receivers"]], ["committed"])
        self.assertIsNone(result["group"])
        # A rollback uses a number again, of which the receiver holds a later one.
        self.receiver.pause()
        back = self.sender.rollback(newest - 1)
        self.assertTrue(back["rollback"])
        until(lambda: self.receiver.status()["models"][0]["newest"]["epoch"] == back["id"]["epoch"],
              "the receiver has heard of it")
        for epoch in (0, back["id"]["epoch"]):
            with self.assertRaisesRegex(deltawire.DeadlineError, f"committed: {newest}, "):
                self.receiver.wait(newest - 1, epoch=epoch, timeout=0.5)
        self.receiver.resume()
        done = self.receiver.wait(newest - 1, epoch=back["id"]["epoch"], timeout=DEADLINE_S)
        self.assertEqual(done["id"]["root"], back["id"]["root"])
        state = until(lambda: (m := self.receiver.status()["models"][0])["committed"]["root"]
                      == back["id"]["root"] and m, "the rollback is committed")  # fmt: skip
        self.assertEqual(state["committed"]["epoch"], back["id"]["epoch"])
        self.fleet.publish(newest + 1)  # the others go by the newest

    def test_answers_are_typed_and_mappings_too(self):
        status = self.receiver.status()
        told = self.receiver.call("GetStatus")
        self.assertEqual(status.models[0].committed.lineage, told["models"][0]["committed"]["lineage"])
        model = self.sender.status().models[0]
        self.assertIsInstance(model.newest.id, deltawire.control.Identity)
        self.assertEqual(model.newest.id, model["newest"]["id"])
        self.assertEqual(json.loads(json.dumps(status.as_dict())).keys(), told.keys())
        self.assertEqual(status.models[0].as_dict().keys(), told["models"][0].keys())
        self.assertEqual(len({model.newest.id, model.newest.id}), 1)
        newer = deltawire.control.Identity.of({"version": 3, "colour": "red"})
        self.assertEqual((newer.version, newer.lineage, newer["colour"]), (3, "", "red"))
        self.assertRaises(KeyError, lambda: newer["shape"])
        for kind, text in ((int, "version"), (str, "root"), (str, "attempt")):
            self.assertIsInstance(model.newest.id[text], kind)

    def test_the_answers_classes_are_the_messages(self):
        maker = pathlib.Path(__file__).parents[2] / "python" / "make_answers.py"
        want = run(sys.executable, "-B", maker)
        self.assertEqual(want, (maker.parent / "deltawire" / "_answers.py").read_text("utf-8"))

    def test_an_event_loop_waits_and_watches(self):
        async def directs():
            async with (aio.Sender(self.fleet.sender) as sender,
                        aio.Receiver(self.fleet.receiver) as receiver):
                newest = (await sender.status()).models[0].newest.id.version
                many = [asyncio.create_task(receiver.wait(newest + 1)) for _ in range(40)]
                async with await sender.watch() as published:
                    seen = [(await anext(published)).id.version]
                    await asyncio.to_thread(self.fleet.publish, newest + 1)
                    async for news in published:
                        seen.append(news.id.version)
                        break
                self.assertEqual(seen, [newest, newest + 1])
                for told in await asyncio.gather(*many):
                    self.assertEqual(told.id.version, newest + 1)
                self.assertEqual((await sender.wait_committed(newest + 1)).attached, 1)
                asked = {"model": await sender.model(), "version": newest + 1, "at_least": 1}
                async with await sender.stream("WaitCommitted", asked) as updates:
                    self.assertEqual([u["committed"] async for u in updates][-1], 1)
                    with self.assertRaises(StopAsyncIteration):  # a stream that has ended
                        await anext(updates)
                with self.assertRaises(deltawire.DeadlineError):
                    await receiver.wait(10**6, timeout=0.3)
                with self.assertRaisesRegex(deltawire.Error, "no version"):
                    await receiver.wait(-1)
                for call in (sender.wait_committed(10**6), receiver.wait(10**6)):
                    waits = asyncio.create_task(call)
                    await asyncio.sleep(0.1)  # either way it ends
                    waits.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await waits
                async with await receiver.watch() as commits:
                    await anext(commits)
                    waits = asyncio.create_task(anext(commits))
                    await asyncio.sleep(0)
                    commits.cancel()
                    with self.assertRaises((deltawire.Error, StopAsyncIteration)):
                        await waits

        asyncio.run(asyncio.wait_for(directs(), DEADLINE_S))

    def test_refusals_are_the_daemons_and_say_what_to_do(self):
        code, why = refusal(lambda: Sender(self.fleet.sender, model="other").rollback(1))
        self.assertEqual(code, "NOT_FOUND")
        self.assertTrue(why.startswith(f"sender {self.fleet.sender}: "), why)
        self.assertIn("other", why)
        self.assertEqual(refusal(lambda: self.receiver.call("Sync", {"modle": "policy"}))[0],
                         "INVALID_ARGUMENT")
        with self.assertRaisesRegex(deltawire.RefusedError, "engine"):
            next(self.receiver.watch_served())
        with self.assertRaises(deltawire.DeadlineError) as late:
            self.sender.wait_committed(10**6, at_least=3, timeout=0.5)
        self.assertRegex(str(late.exception), r"not done in time .*: 0 of 1 attached "
                         "receivers are at version 1000000, and 3 are waited for")
        with self.assertRaises(deltawire.DeadlineError) as late:
            self.receiver.wait(10**6, timeout=0.3)
        self.assertRegex(str(late.exception), r"not done in time .*: policy: committed: \d+, the "
                         rf"newest of {self.fleet.sender}: \d+, phase \w+$")
        with self.assertRaisesRegex(deltawire.Error, "HOST:PORT"):
            Sender("nowhere")
        self.sender.close()
        self.assertRaises(ValueError, self.sender.status)

    def test_a_watch_that_is_left_ends_for_who_waits_in_another_thread(self):
        watch = self.receiver.watch()
        next(watch)
        waits = threading.Thread(target=lambda: refusal(lambda: list(watch)))
        with watch:
            waits.start()
        waits.join(DEADLINE_S / 2)
        self.assertFalse(waits.is_alive())

    def test_a_reader_may_be_slow(self):
        # A daemon cuts a connection whose pings are unanswered after 5 and 3 seconds.
        with self.receiver.watch() as watch, self.sender.watch() as published:
            held, newest = next(watch), next(published)
            time.sleep(10)
            self.assertEqual(self.receiver.status()["models"][0]["committed"], held["id"])
            self.fleet.publish(newest["id"]["version"] + 1)
            self.assertEqual(next(published)["id"]["version"], newest["id"]["version"] + 1)
            self.assertEqual(next(watch)["id"]["version"], newest["id"]["version"] + 1)

    def test_what_is_no_list_of_ids_is_said(self):
        with self.assertRaisesRegex(ValueError, r"receivers=\['rollout-0'\]"):
            self.sender.sync("rollout-0")
        self.sender.wait_committed(1, timeout=math.inf)

    def test_a_wait_ends_by_a_cancel_or_a_signal(self):
        with self.sender.watch() as published:
            next(published)
            threading.Thread(target=published.cancel).start()
            self.assertEqual(refusal(lambda: [*published])[0], "CANCELLED")
        with self.sender.watch() as published:
            next(published)
            main = threading.main_thread().ident
            with self.assertRaises(KeyboardInterrupt):
                threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT)).start()
                next(published)

    def test_a_ctrl_c_is_seen_while_it_connects(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
            receiver = Receiver(f"127.0.0.1:{silent.getsockname()[1]}", timeout=DEADLINE_S)
            timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
            timer.start()
            begun = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                receiver.status()
            self.assertLess(time.monotonic() - begun, DEADLINE_S / 10)

    def test_many_threads_share_a_client(self):
        with ThreadPoolExecutor(8) as pool:
            names = [*pool.map(lambda _: self.sender.status()["models"][0]["model"], range(64))]
        self.assertEqual(names, ["policy"] * 64)

    def test_each_method_for_orchestrators_has_one_here(self):
        for kind, service in ((Sender, "SenderService"), (Receiver, "ReceiverService")):
            with self.assertRaises(deltawire.Error) as unknown:
                (self.sender if kind is Sender else self.receiver).call("Nothing")
            self.assertIn(f"{service} has no method", str(unknown.exception))
            mirrored = aio.Sender if kind is Sender else aio.Receiver
            public = {n for c in kind.__mro__[:2] for n in vars(c) if not n.startswith("_")}
            self.assertLessEqual(public, set(dir(mirrored)))
            names = str(unknown.exception).rpartition("it has ")[2].split(", ")
            source = "".join(inspect.getsource(c) for c in kind.__mro__[:2])
            self.assertGreaterEqual(len(names), 6)
            self.assertEqual([n for n in names if f'"{n}"' not in source], [])


class UnregisterTest(unittest.TestCase):
    def test_a_model_is_unregistered_when_its_trainer_has_gone(self):
        with Fleet() as fleet, Sender(fleet.sender) as sender, Receiver(fleet.receiver) as receiver:
            fleet.publish(1)
            receiver.wait(1, timeout=DEADLINE_S)
            watch = sender.watch()
            next(watch)
            until(lambda: "is alive" in refusal(lambda: sender.unregister("policy"))[1],
                  "the trainer is known")
            code, why = refusal(lambda: sender.unregister("policy"))
            self.assertEqual(code, "FAILED_PRECONDITION")
            self.assertIn("rank 0 (", why)
            self.assertEqual(refusal(lambda: sender.unregister("polcy"))[0], "NOT_FOUND")
            fleet.end_trainer()
            done = until(lambda: not refusal(lambda: sender.unregister("policy"))[0],
                         "it is unregistered")
            self.assertTrue(done)
            self.assertEqual(sender.status().models, ())
            self.assertFalse((fleet.root / "s" / "policy").exists())
            self.assertIn("was unregistered", refusal(lambda: next(watch))[1])
            held = receiver.status()["models"][0]["committed"]
            self.assertEqual(held["version"], 1)
            self.assertEqual(receiver.verify(timeout=DEADLINE_S)["bad_chunks"], 0)


class Alone(Daemons):
    """A receiver without a sender, which answers for itself."""

    def start(self, port: int) -> None:
        child = self._start("deltawire-receiver", "--sender", f"127.0.0.1:{free_port()}", "--model",
                            f"policy={self.root / 'r'}", "--control-listen", f"127.0.0.1:{port}")
        self._await(child, port)


class GoneTest(unittest.TestCase):
    def test_a_daemon_that_is_gone_is_named_and_found_again(self):
        port = free_port()
        address = f"127.0.0.1:{port}"
        receiver = self.enterContext(Receiver(address))
        with self.assertRaises(deltawire.UnavailableError) as gone:
            receiver.status()
        self.assertEqual(str(gone.exception), f"receiver {address}: nothing listens there (connection "
                         "refused); start deltawire-receiver there, or check the address")
        root = self.enterContext(tempfile.TemporaryDirectory())
        daemons = self.enterContext(Alone(pathlib.Path(root)))
        daemons.start(port)
        watch = receiver.watch()
        self.assertEqual(receiver.model(), "policy")
        daemons.kill("deltawire-receiver")
        self.assertRaises(deltawire.UnavailableError, next, watch)
        self.assertRaises(deltawire.UnavailableError, receiver.status)
        daemons.start(port)
        self.assertEqual(receiver.status()["models"][0]["model"], "policy")


class TokenTest(unittest.TestCase):
    """In plaintext over loopback."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = cls.enterClassContext(Fleet(principals=True))
        cls.fleet.publish(1)
        cls.fleet.publish(2)

    def test_a_role_opens_what_it_opens(self):
        me = Sender(self.fleet.sender, credentials=self.fleet.token_only("me"))
        looker = Sender(self.fleet.sender, credentials=self.fleet.token_only("looker"))
        self.assertEqual(looker.model(), "policy")
        code, why = refusal(lambda: looker.rollback(1))
        self.assertEqual((code, why), (
            "PERMISSION_DENIED", f"sender {self.fleet.sender}: looker may not call "
            "/deltawire.v1.SenderService/Rollback: that takes the role operator, and looker has "
            "observer"))  # fmt: skip
        self.assertEqual(me.rollback(1)["id"]["epoch"], 2)
        nobody = Sender(self.fleet.sender)
        self.assertEqual(refusal(nobody.status)[0], "PERMISSION_DENIED")

    def test_a_token_stays_on_this_machine(self):
        far = Sender("10.0.0.1:7700", credentials=self.fleet.token_only("me"))
        code, why = refusal(far.status)
        self.assertEqual(code, "INVALID_ARGUMENT")
        self.assertIn("would travel to 10.0.0.1:7700 in plaintext; give the file a `ca`", why)

    def test_a_token_that_others_may_read_is_refused(self):
        file = self.fleet.keys / "looker" / "open"
        file.write_text("a-token-that-everybody-may-read\n")
        file.chmod(0o644)
        credentials = file.with_suffix(".toml")
        credentials.write_text("token-file = 'open'\n")
        self.assertIn("chmod 600", refusal(lambda: Sender(":1", credentials=credentials))[1])


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = cls.enterClassContext(Fleet(tls=True, principals=True))
        cls.fleet.publish(1)

    def both(self, credentials: str) -> tuple[Sender, Receiver]:
        return (Sender(self.fleet.sender, model="policy", credentials=credentials),
                Receiver(self.fleet.receiver, model="policy", credentials=credentials))

    def test_a_token_opens_both_daemons(self):
        sender, receiver = self.both(self.fleet.token_only("me", "ca = 'ca.pem'"))
        self.assertIn("TLS 1.3", sender.status()["security"])
        self.assertGreaterEqual(receiver.wait(1, timeout=DEADLINE_S)["id"]["version"], 1)
        self.assertEqual(sender.sync(timeout=DEADLINE_S)["receivers"][0]["phase"], "committed")

    def test_who_believes_nobody_or_somebody_else_is_told(self):
        code, why = refusal(Sender(self.fleet.sender).status)
        self.assertEqual(code, "UNAVAILABLE")
        self.assertIn("its port speaks TLS, and this side has no keys; pass credentials", why)
        self.fleet.make_keys(self.fleet.root / "others")
        other = self.fleet.root / "others" / "me" / "credentials.toml"
        code, why = refusal(Sender(self.fleet.sender, credentials=other).status)
        self.assertIn("is not believed: it is of another authority than those in `ca`", why)

    def test_a_token_is_replaced_while_a_client_lives(self):
        old = self.fleet.keys / "old"
        shutil.copytree(self.fleet.keys / "me", old)
        living, _ = self.both(self.fleet.token_only("me", "ca = 'ca.pem'"))
        (old / "alone.toml").write_text("ca = 'ca.pem'\ntoken-file = 'token'\n")
        stale, _ = self.both(str(old / "alone.toml"))
        self.assertEqual(stale.model(), living.model())
        watch = living.watch()
        next(watch)
        # The daemons read the same file, by which they know the principal.
        fresh = self.fleet.keys / "me" / "token.new"
        fresh.write_text("another-token-of-the-operator\n")
        fresh.chmod(0o600)
        fresh.rename(self.fleet.keys / "me" / "token")
        until(lambda: refusal(stale.status)[0] == "UNAUTHENTICATED", "the old token is refused")
        self.assertEqual(refusal(stale.status)[1],
                         f"sender {self.fleet.sender}: the token is of no principal here")
        until(lambda: not refusal(living.status)[0], "the new token is shown")
        self.fleet.publish(2)
        self.assertEqual(next(watch)["id"]["version"], 2)  # it goes on with what it began with


class CertificateTest(unittest.TestCase):
    """TLS on both ends: who has no certificate gets no connection."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = cls.enterClassContext(Fleet(tls=True, principals=True, only_certificates=True))
        cls.fleet.publish(1)

    def certificate_only(self, name: str) -> pathlib.Path:
        """Credentials of `name` without its token."""
        file = self.fleet.keys / name / "certificate.toml"
        file.write_text("ca = 'ca.pem'\ncertificate = 'certificate.pem'\nkey = 'key.pem'\n")
        return file

    def test_a_certificate_is_replaced_while_a_client_lives(self):
        code, why = refusal(Sender(self.fleet.sender, credentials=self.fleet.token_only(
            "me", "ca = 'ca.pem'")).status)  # fmt: skip
        self.assertEqual(code, "UNAVAILABLE", why)
        sender = Sender(self.fleet.sender, credentials=self.certificate_only("me"))
        sender.wait_committed(timeout=DEADLINE_S)
        self.assertEqual(len(sender.sync(timeout=DEADLINE_S)["receivers"]), 1)
        # The new one is another principal's, so that it shows whose is shown.
        for file in ("certificate.pem", "key.pem"):
            shutil.copy(self.fleet.keys / "looker" / file, self.fleet.keys / "me" / f"{file}.new")
            (self.fleet.keys / "me" / f"{file}.new").rename(self.fleet.keys / "me" / file)
        until(lambda: "looker has observer" in refusal(lambda: sender.sync(timeout=DEADLINE_S))[1],
              "the new certificate is shown")  # fmt: skip
        self.assertEqual(sender.model(), "policy")


if __name__ == "__main__":
    unittest.main()
