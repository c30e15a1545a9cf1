"""slime's hook over real daemons, with a stand-in for Ray. integrations_frameworks_test.py has the
real one.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import types
import unittest
import unittest.mock

import support

support.use_trainer_python()
from integrations_rig import LIMIT_S, Case, changed, raw  # noqa: E402  # or a skip

import deltawire  # noqa: E402
from deltawire.integrations import slime  # noqa: E402
from deltawire.integrations._directory import Expected  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


class RayStandIn:
    """NOT Ray: its tasks run here at once, on the node that they are sent to by name. `disks`: for a
    node with a disk of its own, where a path of the test lies on it."""

    def __init__(self, here: str, nodes: list[str], directories: dict[str, pathlib.Path],
                 disks: dict[str, tuple[str, str]] | None = None):
        self.node, self.directories, self.disks = here, directories, disks or {}
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
            own, there = self.disks.get(node, ("", ""))
            if not own:
                return function(*arguments)
            result = function(*renamed(arguments, own, there))
            return dict(renamed(list(result.items()), there, own)) if isinstance(result, dict) else result
        finally:
            self.node = here


def renamed(value, old: str, new: str):
    """The value with other paths, in lists and tuples, too."""
    if isinstance(value, str):
        return value.replace(old, new)
    return type(value)(renamed(v, old, new) for v in value) if isinstance(value, (list, tuple)) else value


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
            published = Expected.of(publisher.publish(self.weights.items()))
            path = disk / f"weight_v{version:06d}"
            slime.follow(version == 1, settings, str(path), published)
            self.assertEqual([e.name for e in disk.iterdir()], [path.name])
            self.assertEqual(path.resolve(), self.receiver.directory.resolve())
        own = disk / "weight_v000003"  # as on the trainer's node
        self.save(self.weights, own)
        published = Expected.of(publisher.publish(self.weights.items()))
        slime.follow(True, settings, str(own), published)
        self.assertFalse(own.is_symlink())
        before = raw(load_file(own / "model.safetensors"))
        with self.assertRaisesRegex(deltawire.Error, "what some other run has left there"):
            slime.follow(False, settings, str(own), published)
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
            self.assertEqual(slime.on_nodes(engines, settings, str(elsewhere), self.newest()),
                             {"engine": linked, "second": linked})
            ray.directories = {}
            self.assertEqual(slime.on_nodes([ray.actor_on("trainer")], settings, str(own),
                                            self.newest()),
                             {"trainer": "the trainer's own checkpoint is there"})
        # The head has neither deltawire nor an engine.
        self.assertEqual({node for node, name in ray.ran if name == "follow"},
                         {"engine", "second", "trainer"})

    def shares(self, version: int) -> tuple[pathlib.Path, pathlib.Path]:
        """Two training nodes' disks with what slime has written: the first has the index."""
        names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        halves = dict(list(self.weights.items())[::2]), dict(list(self.weights.items())[1::2])
        roots = [self.cluster.root / f"disk-{self.model}-{node}" for node in "ab"]
        for root, name, half in zip(roots, names, halves):
            folder = root / f"weight_v{version:06d}"
            folder.mkdir(parents=True)
            save_file(half, folder / name)
        (roots[0] / f"weight_v{version:06d}" / "model.safetensors.index.json").write_text(json.dumps(
            {"metadata": {}, "weight_map": {n: name for name, half in zip(names, halves)
                                            for n in half}}))
        return roots[0], roots[1]

    def test_shares_on_two_training_nodes_are_one_version(self):
        """Engines are on the training nodes, too: there the share gives way to a link."""
        for version in (10, 11):  # beyond what an earlier run has left
            self.weights = changed(self.weights, version)
            mine, theirs = self.shares(version)
            own = mine / f"weight_v{version:06d}"
            ray = RayStandIn(here="a", nodes=["a", "b", "head"], directories={},
                             disks={"b": (str(mine), str(theirs))})
            engines = [ray.actor_on("a"), ray.actor_on("b")]
            with unittest.mock.patch.dict(sys.modules, ray.modules), \
                    unittest.mock.patch.object(slime, "_PIECE", 1000):
                slime.publish(self.slime_args(), str(own), engines)
            self.assert_receiver_has(self.weights, version)
            there = theirs / own.name
            self.assertEqual(there.resolve(), self.receiver.directory.resolve())
            got = {}
            for file in own.glob("*.safetensors"):
                got |= load_file(file)
            self.assertEqual(raw(got), raw(self.weights))

    def two_nodes(self, mine: pathlib.Path, theirs: pathlib.Path) -> RayStandIn:
        return RayStandIn(here="a", nodes=["a", "b"], directories={},
                          disks={"b": (str(mine), str(theirs))})

    def test_only_what_was_read_is_removed_from_another_node(self):
        """Its folder has another job's file, and a share that changes while it is read."""
        mine, theirs = self.shares(10)
        own, other = mine / "weight_v000010", theirs / "weight_v000010"
        share = other / "model-00002-of-00002.safetensors"
        (other / "notes.txt").write_text("another job's")
        (other / "sub").mkdir()
        ray = self.two_nodes(mine, theirs)
        with unittest.mock.patch.dict(sys.modules, ray.modules):
            slime.complete(str(own))
            self.assertEqual(sorted(p.name for p in other.iterdir()), ["notes.txt", "sub"])
            there = share.name
            (own / there).replace(share)  # once more, and this time it is replaced meanwhile
            replace = slime.os.replace

            def replaced(source, target):
                share.with_suffix(".new").write_bytes(b"newer")
                replace(share.with_suffix(".new"), share)
                replace(source, target)

            with unittest.mock.patch.object(slime.os, "replace", replaced):
                slime.complete(str(own))
        self.assertEqual(share.read_bytes(), b"newer")

    def test_a_link_is_no_share_of_another_node(self):
        """An earlier run has left a link to the receiver's directory under the same name."""
        mine, theirs = self.shares(10)
        own, other = mine / "weight_v000010", theirs / "weight_v000010"
        kept = theirs / "receiver"
        other.rename(kept)
        other.symlink_to(kept)
        ray = self.two_nodes(mine, theirs)
        with unittest.mock.patch.dict(sys.modules, ray.modules), \
                self.assertRaisesRegex(deltawire.Error, "no other of Ray's nodes"):
            slime.complete(str(own))
        self.assertTrue((kept / "model-00002-of-00002.safetensors").exists())

    def test_a_share_that_no_node_or_two_nodes_have_is_refused(self):
        mine, theirs = self.shares(10)
        own = mine / "weight_v000010"
        ray = RayStandIn(here="a", nodes=["a", "b", "c"], directories={},
                         disks={"b": (str(mine), str(theirs)), "c": (str(mine), str(theirs))})
        with unittest.mock.patch.dict(sys.modules, ray.modules):
            with self.assertRaisesRegex(deltawire.Error, "is on 2 others: remove .*weight_v000010"):
                slime.publish(self.slime_args(), str(own), [])
            ray.disks = {}
            with self.assertRaisesRegex(deltawire.Error, "no other of Ray's nodes.*mode bridge"):
                slime.publish(self.slime_args(), str(own), [])

    def test_an_empty_folder_of_a_training_node_gives_way_to_a_link(self):
        publisher = Publisher(**self.arguments)
        publisher.open()
        published = Expected.of(publisher.publish(self.weights.items()))
        path = self.cluster.root / f"disk-{self.model}" / "weight_v000001"
        path.mkdir(parents=True)
        slime.follow(False, slime.Settings.of(self.slime_args()), str(path), published)
        self.assertEqual(path.resolve(), self.receiver.directory.resolve())


if __name__ == "__main__":
    unittest.main()
