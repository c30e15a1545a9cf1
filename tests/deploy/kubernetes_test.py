"""deploy/kubernetes: what kustomize makes of it, by Kubernetes' own schemas and by what it promises.

    kubernetes_test.py CASE...      without cases: all

No cluster is here, so nothing is applied to one. The daemons run here with the options and the
configuration that the manifests give them, and are asked for their health as a kubelet asks.
"""

from __future__ import annotations

import functools
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

import skipping  # noqa: E402

try:
    import kubernetes_validate
    import yaml
except ImportError as error:
    skipping.leave(f"{error} (tests/deploy/requirements.txt)")

import grpc_health  # noqa: E402
from daemons import DEADLINE_S, free_port, programs, spawn  # noqa: E402
from manifests import (  # noqa: E402
    OVERLAYS, ROOT, Caller, Pod, Rendered, kustomize, matches, reaches, size,
)  # fmt: skip

OLDEST = "1.29"  # the first with sidecars that need no switch
DAEMONS = ("deltawire-sender", "deltawire-receiver")


def named_files(folder: pathlib.Path) -> set[pathlib.Path]:
    """What a kustomization refers to."""
    made = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = [*made.get("resources", []), *made.get("components", [])]
    found += [p["path"] for p in made.get("patches", []) if "path" in p]
    for generator in made.get("configMapGenerator", []):
        found += [name.rpartition("=")[2] for name in generator["files"]]
    return {(folder / name).resolve() for name in found}


class Files(unittest.TestCase):
    def test_each_file_is_named_once_and_each_name_is_a_file(self):
        folders = {p.parent for p in ROOT.rglob("kustomization.yaml")}
        self.assertEqual(len(folders), 2 + len(OVERLAYS))
        named = set().union(*(named_files(f) for f in folders))
        for path in named:
            target = path / "kustomization.yaml" if path.is_dir() else path
            self.assertTrue(target.is_file(), path)
        there = {p for p in ROOT.rglob("*") if p.is_file()}
        others = {f / "kustomization.yaml" for f in folders} | {ROOT / "README.md"}
        self.assertEqual(there - named - others, set())


def of_each_overlay(test):
    """The test takes an overlay's name and objects, and runs for all of them."""

    @functools.wraps(test)
    def runs(self):
        for overlay, rendered in self.rendered.items():
            with self.subTest(overlay):
                test(self, overlay, rendered)

    return runs


class Overlays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if kustomize() is None:
            raise unittest.SkipTest("neither kustomize nor kubectl is here; not rendered")
        cls.rendered = {overlay: Rendered(overlay) for overlay in OVERLAYS}

    @of_each_overlay
    def test_kubernetes_own_schemas_have_nothing_to_say(self, _, rendered):
        versions = [OLDEST, kubernetes_validate.latest_version()]
        self.assertGreater(len(rendered.objects), 8)
        for made in rendered.objects:
            for version in versions:
                kubernetes_validate.validate(made, version, strict=True)

    def test_a_wrong_field_would_be_found(self):
        wrong = json.loads(json.dumps(self.rendered["sidecars"].of("StatefulSet")[0]))
        wrong["spec"]["template"]["spec"]["initContainers"][0]["startupProbe"]["grcp"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, OLDEST, strict=True)

    @of_each_overlay
    def test_pods_are_confined(self, overlay, rendered):
        for pod in rendered.pods:
            self.assertIs(pod.spec["automountServiceAccountToken"], False)
            whole = pod.spec["securityContext"]
            self.assertEqual(whole["seccompProfile"], {"type": "RuntimeDefault"})
            for container in pod.containers():
                self.check_container(overlay, whole, container)

    def check_container(self, overlay: str, whole: dict, container: dict):
        own = container["securityContext"]
        self.assertIs(own["allowPrivilegeEscalation"], False)
        self.assertEqual(own["capabilities"]["drop"], ["ALL"])
        if container["name"] == "own-directory":  # gives the node's directory to the daemon
            self.assertTrue(overlay.startswith("daemonset"))
            self.assertEqual(own["capabilities"]["add"], ["CHOWN"])
            return
        self.assertNotIn("add", own["capabilities"])
        self.assertIs(own.get("runAsNonRoot", whole.get("runAsNonRoot")), True)
        if container["name"] not in ("trainer", "engine"):
            self.assertIs(own["readOnlyRootFilesystem"], True)
            self.assertEqual(own.get("runAsUser", whole.get("runAsUser")), 10700)

    @of_each_overlay
    def test_names_lead_somewhere(self, _, rendered):
        for service in rendered.of("Service"):
            spec = service["spec"]
            pods = [p for p in rendered.pods if matches({"matchLabels": spec["selector"]}, p.labels)]
            self.assertEqual(len(pods), 1, service["metadata"]["name"])
            self.assertLessEqual({p["port"] for p in spec["ports"]}, pods[0].ports())
        trainer = rendered.of("StatefulSet")[0]
        options = rendered.options(rendered.with_daemon("deltawire-receiver"))
        name, service = trainer["metadata"]["name"], trainer["spec"]["serviceName"]
        self.assertEqual(options["sender"], [f"{name}-0.{service}:7700"])
        self.assertIn(service, [s["metadata"]["name"] for s in rendered.of("Service")])
        for budget in rendered.of("PodDisruptionBudget"):
            selector = budget["spec"]["selector"]
            self.assertTrue(any(matches(selector, p.labels) for p in rendered.pods))

    @of_each_overlay
    def test_daemons_listen_where_they_are_asked(self, _, rendered):
        for name in DAEMONS:
            pod = rendered.with_daemon(name)
            options, daemon = rendered.options(pod), pod.daemon()
            keys = ("control-listen", "bulk-listen", "metrics-listen")
            ports = [int(options[k].rpartition(":")[2]) for k in keys if k in options]
            self.assertEqual(ports, [p["containerPort"] for p in daemon["ports"]])
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                how = daemon[probe].get("grpc") or daemon[probe]["tcpSocket"]
                self.assertEqual(how["port"], ports[0])
            self.assertEqual(pod.annotations["prometheus.io/port"], str(ports[-1]))
            self.assertEqual(options["threads"], int(daemon["resources"]["requests"]["cpu"]))

    def test_memory_is_enough_for_what_is_kept(self):
        model = 15 * 2**30
        rendered = self.rendered["sidecars"]
        for name, kept in (("deltawire-sender", "2GiB"), ("deltawire-receiver", "384MiB")):
            pod = rendered.with_daemon(name)
            volume = pod.volume("weights")["emptyDir"]
            self.assertEqual(volume["medium"], "Memory")
            held = size(volume["sizeLimit"])
            self.assertGreaterEqual(held, 2 * model + 2**28)
            resources = pod.daemon()["resources"]
            self.assertEqual(resources["limits"]["memory"], resources["requests"]["memory"])
            kept = rendered.options(pod).get("delta-log", kept)
            self.assertGreaterEqual(
                size(resources["limits"]["memory"]), held + size(kept) + 2**30, name
            )

    @of_each_overlay
    def test_both_sides_have_one_directory_and_the_engine_cannot_write(self, _, rendered):
        for pod in rendered.pods:
            for container in pod.containers():
                for mount in container["volumeMounts"]:
                    if mount["name"] != "weights":
                        self.assertIs(mount["readOnly"], True)
                        continue
                    self.assertEqual(mount["mountPath"], "/weights")
                    reads = container["name"] in ("engine", "first-version")
                    self.assertEqual(mount.get("readOnly", False), reads)
        self.assertEqual(rendered.pod("engine").spec["securityContext"]["fsGroup"], 10700)
        with_nodes = self.rendered["daemonset"]
        there = [with_nodes.pod(w).volume("weights") for w in ("engine", "deltawire-receiver")]
        self.assertEqual(there[0], there[1])
        self.assertNotIn("emptyDir", there[0])

    def test_the_daemons_are_up_before_those_whom_they_serve(self):
        rendered = self.rendered["sidecars"]
        for workload, order in (
            ("trainer", ["deltawire-sender", "trainer"]),
            ("engine", ["deltawire-receiver", "first-version", "engine"]),
        ):
            pod = rendered.pod(workload)
            self.assertEqual([c["name"] for c in pod.containers()], order)
            self.assertEqual(pod.daemon()["restartPolicy"], "Always")
        engine = self.rendered["daemonset"].pod("engine")
        self.assertEqual([c["name"] for c in engine.containers()], ["first-version", "engine"])

    @of_each_overlay
    def test_only_those_who_need_it_reach_a_daemon(self, _, rendered):
        trainer = rendered.pod("trainer")
        receiver = rendered.with_daemon("deltawire-receiver")
        callers = {
            "receiver": Caller("rl", receiver.labels),
            "rank": Caller("rl", trainer.labels),
            "orchestrator": Caller("orchestrator", {}),
            "monitoring": Caller("monitoring", {}),
            "neighbour": Caller("rl", {"app.kubernetes.io/name": "other"}),
            # The right label in another namespace is nobody's.
            "stranger": Caller("elsewhere", receiver.labels),
        }
        allowed = {
            (trainer.workload, 7700): {"receiver", "orchestrator"},
            (trainer.workload, 7701): {"receiver"},
            (trainer.workload, 9700): {"monitoring"},
            (trainer.workload, 29500): {"rank"},  # torch's rendezvous
            (receiver.workload, 7710): {"orchestrator"},
            (receiver.workload, 9700): {"monitoring"},
        }
        for (workload, port), wanted in allowed.items():
            pod = rendered.pod(workload)
            found = {n for n, c in callers.items() if reaches(rendered, c, pod, port)}
            self.assertEqual(found, wanted, f"{workload}:{port}")
        engine = rendered.pod("engine")
        for name, caller in callers.items():
            self.assertTrue(reaches(rendered, caller, engine, 8000), name)

    @of_each_overlay
    def test_with_tls_nothing_is_plain_and_every_file_is_mounted(self, overlay, rendered):
        for name in DAEMONS:
            pod = rendered.with_daemon(name)
            arguments = pod.daemon()["args"]
            secure = overlay.endswith("-tls")
            self.assertEqual({"--credentials", "--principals"} <= set(arguments), secure)
            self.assertEqual("grpc" in pod.daemon()["livenessProbe"], not secure)
            for path in [a for a in arguments if a.startswith("/")]:
                self.assertIsNotNone(rendered.file(pod, path), path)
            if secure:
                self.check_credentials(rendered, pod)
        plain, secure = (self.rendered[o].with_daemon(DAEMONS[1]) for o in OVERLAYS[2:])
        engine = slice(2, 4)
        self.assertEqual(plain.daemon()["args"][engine], secure.daemon()["args"][engine])

    def check_credentials(self, rendered: Rendered, pod: Pod):
        arguments = pod.daemon()["args"]
        given = {
            option: tomllib.loads(rendered.file(pod, arguments[arguments.index(option) + 1]))
            for option in ("--credentials", "--principals")
        }
        self.assertEqual(set(given["--credentials"]), {"ca", "certificate", "key"})
        paths = list(given["--credentials"].values())
        paths += [p["token-file"] for p in given["--principals"]["principal"] if "token-file" in p]
        for path in paths:
            self.assertEqual(rendered.file(pod, path), "", path)


class Running(unittest.TestCase):
    """The daemons themselves, with what an overlay gives them."""

    def render(self, overlay: str):
        if kustomize() is None:
            self.skipTest("neither kustomize nor kubectl is here; not rendered")
        self.rendered = Rendered(overlay)
        shm = pathlib.Path("/dev/shm")
        folder = tempfile.TemporaryDirectory(
            prefix="deltawire-kubernetes-", dir=shm if shm.is_dir() else None
        )
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def start(self, name: str, **overrides: object) -> int:
        """The port that its probes ask, of this machine's loopback."""
        pod = self.rendered.with_daemon(name)
        # What a pod has in /etc/deltawire; Secrets' files are there already.
        etc = self.root / name
        etc.mkdir(exist_ok=True)
        arguments = list(pod.daemon()["args"])
        for i, argument in enumerate(arguments):
            if argument.startswith("/"):
                path = etc / pathlib.PurePosixPath(argument).name
                path.write_text(self.rendered.file(pod, argument))
                arguments[i] = str(path)
        port = free_port()
        options = {"control-listen": f"127.0.0.1:{port}", "metrics-listen": "", **overrides}
        for key, value in options.items():
            arguments += [f"--{key}", str(value)]
        self.log = open(self.root / f"{name}.log", "w")  # noqa: SIM115
        self.addCleanup(self.log.close)
        child = spawn([str(programs() / name), *arguments], stdout=self.log, stderr=self.log)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        end = time.monotonic() + DEADLINE_S
        while not self.answers(port):
            if child.poll() is not None or time.monotonic() > end:
                self.fail((self.root / f"{name}.log").read_text())
            time.sleep(0.02)
        return port

    def answers(self, port: int) -> bool:
        """What the probes ask."""
        if "grpc" in self.rendered.with_daemon(DAEMONS[0]).daemon()["startupProbe"]:
            return grpc_health.serving("127.0.0.1", port)
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return False
        return True

    def start_pair(self) -> tuple[int, int]:
        """Their control ports. The group "deltawire" is the image's, so another takes its place."""
        group = pathlib.Path("/etc/group").read_text().split(":", 1)[0]
        sent = self.start(
            "deltawire-sender", **{"data-dir": self.root / "s", "bulk-listen": "127.0.0.1:0"}
        )
        here = {"data-dir": self.root / "r", "file-group": group, "sender": f"127.0.0.1:{sent}"}
        return sent, self.start("deltawire-receiver", **here)

    def publish(self):
        model = self.root / "model"
        model.mkdir()
        header = json.dumps({"t": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(64)
        (model / "model.safetensors").write_bytes(content)
        self.tool("publish", model, "--model", "policy", "--version", "1",
                  "--socket", self.root / "s" / "trainer.sock")  # fmt: skip
        # What the container first-version waits for.
        end = time.monotonic() + DEADLINE_S
        while not (self.root / "r" / "policy" / "model.safetensors").exists():
            logs = "".join(p.read_text() for p in self.root.glob("*.log"))
            self.assertLess(time.monotonic(), end, logs)
            time.sleep(0.02)

    def tool(self, *command: object, wanted: int = 0) -> str:
        done = subprocess.run(
            [str(c) for c in (programs() / "deltawire", *command)], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, wanted, done.stdout + done.stderr)
        return done.stdout + done.stderr


class Daemons(Running):
    def test_they_are_healthy_and_the_model_comes_to_its_name(self):
        self.render("sidecars")
        receiver = self.rendered.with_daemon("deltawire-receiver")
        self.assertEqual(self.rendered.options(receiver)["file-group"], "deltawire")
        self.start_pair()
        self.publish()

    def test_nobody_is_not_healthy(self):
        self.assertFalse(grpc_health.serving("127.0.0.1", free_port()))


class Tls(Running):
    """With the component "tls", and Secrets that `deltawire certs` has made."""

    def setUp(self):
        super().setUp()
        said = subprocess.run(
            [programs() / DAEMONS[0], "--help"], capture_output=True, text=True, check=True
        ).stdout
        if "--principals" not in said:
            self.skipTest("these daemons have no --principals; the component was not run")
        self.render("sidecars-tls")
        keys = self.root / "keys"
        self.tool("certs", keys, "deltawire-sender=trainer-0.deltawire-sender,127.0.0.1",
                  "deltawire-receiver:receiver=deltawire-receiver,127.0.0.1",
                  "orchestrator:operator", "--token")  # fmt: skip
        self.orchestrator = keys / "orchestrator"
        for name in DAEMONS:
            for folder in ("tls", "tokens"):
                (self.root / name / folder).mkdir(parents=True)
            for source, target in (
                ("ca.pem", "tls/ca.crt"), (f"{name}/certificate.pem", "tls/tls.crt"),
                (f"{name}/key.pem", "tls/tls.key"), ("orchestrator/token", "tokens/orchestrator"),
            ):  # fmt: skip
                shutil.copy(keys / source, self.root / name / target)
                (self.root / name / target).chmod(0o440)

    def test_a_version_travels_and_strangers_learn_nothing(self):
        ports = self.start_pair()
        self.publish()
        credentials = self.root / "orchestrator.toml"  # a token, and no certificate
        credentials.write_text(
            f'ca = "{self.root}/keys/ca.pem"\ntoken-file = "{self.orchestrator}/token"\n'
        )
        stranger = self.root / "stranger.toml"
        stranger.write_text(f'ca = "{self.root}/keys/ca.pem"\n')
        for port, kind in zip(ports, ("--sender", "--receiver"), strict=True):
            self.assertFalse(grpc_health.serving("127.0.0.1", port))  # it is not plain
            at = (kind, f"127.0.0.1:{port}")
            said = self.tool("status", *at, "--credentials", credentials)
            self.assertIn("policy", said)
            refused = self.tool("status", *at, "--credentials", stranger, wanted=1)
            self.assertNotIn("policy", refused)


if __name__ == "__main__":
    skipping.main()
