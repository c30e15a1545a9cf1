"""deploy/kubernetes as kustomize renders it, and what follows from it for the pods."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil
import subprocess
import tomllib

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
OVERLAYS = ("sidecars", "sidecars-tls", "daemonset", "daemonset-tls")
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def kustomize() -> list[str] | None:
    """The command that renders a folder."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return None


def render(overlay: str) -> list[dict]:
    done = subprocess.run(
        [*kustomize(), str(ROOT / "overlays" / overlay)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{overlay}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def size(text: str) -> int:
    """Bytes of "31Gi", or of deltawire's "2GiB"."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)B?", text).groups()
    return int(number) * UNITS[unit]


@dataclasses.dataclass
class Pod:
    """A pod that a workload makes."""

    workload: str
    labels: dict
    spec: dict
    annotations: dict

    def containers(self) -> list[dict]:
        return self.spec.get("initContainers", []) + self.spec["containers"]

    def container(self, name: str) -> dict:
        return next(c for c in self.containers() if c["name"] == name)

    def daemon(self) -> dict | None:
        return next((c for c in self.containers() if c["name"].startswith("deltawire-")), None)

    def ports(self) -> set[int]:
        return {p["containerPort"] for c in self.containers() for p in c.get("ports", [])}

    def volume(self, name: str) -> dict:
        return next(v for v in self.spec["volumes"] if v["name"] == name)


class Rendered:
    """An overlay's objects."""

    def __init__(self, overlay: str):
        self.objects = render(overlay)
        self.pods = [
            Pod(
                o["metadata"]["name"], t["metadata"]["labels"], t["spec"],
                t["metadata"].get("annotations", {}),
            )
            for o in self.objects if (t := o.get("spec", {}).get("template"))
        ]  # fmt: skip

    def of(self, kind: str) -> list[dict]:
        return [o for o in self.objects if o["kind"] == kind]

    def pod(self, workload: str) -> Pod:
        return next(p for p in self.pods if p.workload == workload)

    def with_daemon(self, name: str) -> Pod:
        return next(p for p in self.pods if (d := p.daemon()) and d["name"] == name)

    def file(self, pod: Pod, path: str) -> str | None:
        """The content of a file below /etc/deltawire; "" of a Secret's, None if there is none."""
        wanted = str(pathlib.PurePosixPath("/etc/deltawire", path).relative_to("/etc/deltawire"))
        for source in pod.volume("deltawire")["projected"]["sources"]:
            if "configMap" in source:
                name = source["configMap"]["name"]
                data = next(m for m in self.of("ConfigMap") if m["metadata"]["name"] == name)
                if wanted in data["data"]:
                    return data["data"][wanted]
            elif any(i["path"] == wanted for i in source["secret"]["items"]):
                return ""
        return None

    def options(self, pod: Pod) -> dict:
        arguments = pod.daemon()["args"]
        return tomllib.loads(self.file(pod, arguments[arguments.index("--config") + 1]))


def matches(selector: dict, labels: dict) -> bool:
    assert set(selector) <= {"matchLabels"}, selector
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())


@dataclasses.dataclass
class Caller:
    """Somebody who opens a connection; its namespace has its own name as a label."""

    namespace: str
    labels: dict


def peer_is(peer: dict, caller: Caller, home: str) -> bool:
    assert set(peer) <= {"podSelector", "namespaceSelector"}, peer
    if "namespaceSelector" in peer:
        own = {"kubernetes.io/metadata.name": caller.namespace}
        if not matches(peer["namespaceSelector"], own):
            return False
    elif caller.namespace != home:
        return False
    return matches(peer.get("podSelector", {}), caller.labels)


def reaches(rendered: Rendered, caller: Caller, pod: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies let `caller` in, as Kubernetes adds them up."""
    policies = [
        p for p in rendered.of("NetworkPolicy") if matches(p["spec"]["podSelector"], pod.labels)
    ]
    if not policies:
        return True
    for policy in policies:
        home = policy["metadata"]["namespace"]
        for rule in policy["spec"].get("ingress", []):
            there = not rule.get("ports") or any(
                p["port"] <= port <= p.get("endPort", p["port"])
                and p.get("protocol", "TCP") == protocol
                for p in rule["ports"]
            )
            named = not rule.get("from") or any(peer_is(p, caller, home) for p in rule["from"])
            if there and named:
                return True
    return False
