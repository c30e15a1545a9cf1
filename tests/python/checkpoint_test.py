"""`hf_dir`: directories that are not whole, files that a sender refuses, and names in the local cache
of the Hugging Face Hub. Without torch, numpy and safetensors."""

from __future__ import annotations

import array
import json
import os
import pathlib
import tempfile
import unittest
from unittest import mock

import support

deltawire = support.need("deltawire")
from deltawire.integrations._publisher import Publisher  # noqa: E402

WEIGHTS = {"a": array.array("f", [1, 2, 3]), "b": array.array("f", [4])}
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def save(path: pathlib.Path, names: str) -> None:
    """Some of WEIGHTS as a file of safetensors."""
    entries, data = {}, b""
    for name in names:
        begin, data = len(data), data + WEIGHTS[name].tobytes()
        entries[name] = {"dtype": "F32", "shape": [len(WEIGHTS[name])],
                         "data_offsets": [begin, len(data)]}
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


class CheckpointTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = self.root / "base"
        self.folder.mkdir()
        (self.folder / "config.json").write_text('{"made": "here"}')
        self.model = self.id().rsplit(".", 1)[-1]

    def register(self, hf_dir) -> deltawire.WeightManager:
        manager = deltawire.WeightManager(self.cluster.endpoint, self.model)
        manager.register(WEIGHTS, hf_dir=hf_dir)
        return manager

    def refused(self, hf_dir, *words: str) -> None:
        """By the plain API, and by what frameworks' hooks use."""
        ways = (lambda: self.register(hf_dir),
                lambda: Publisher(self.cluster.endpoint, self.model, hf_dir).open())
        for way in ways:
            with self.assertRaises(deltawire.CheckpointError) as said:
                way()
            for word in words:
                self.assertIn(word, str(said.exception))
            self.assertEqual(said.exception.code, "FAILED_PRECONDITION")

    def test_a_directory_that_is_not_whole_is_refused(self):
        save(self.folder / SHARDS[0], "a")
        self.refused(self.folder, "1 of the 2 files", "save_pretrained")
        (self.folder / INDEX).write_text(
            json.dumps({"weight_map": dict(zip(WEIGHTS, SHARDS, strict=True))}))
        self.refused(self.folder, "1 of its 2 weight files", SHARDS[1], "snapshot_download")
        last = self.folder / SHARDS[1]
        last.write_text("version https://git-lfs.github.com/spec/v1\n")
        self.refused(self.folder, SHARDS[1], "git lfs pull")
        save(last, "b")
        whole = last.stat().st_size
        for size, words in ((whole - 1, f"{whole - 1} of its {whole} bytes"),
                            (20, "12 of the"), (4, "of its header"), (0, "is empty")):
            os.truncate(last, size)
            self.refused(self.folder, SHARDS[1], words, "save_pretrained")
        save(last, "b")
        self.register(self.folder)

    def test_small_files_alone_are_enough(self):
        (self.folder / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0]}}))
        self.register(self.folder).offload(WEIGHTS, 1).wait()
        self.cluster.content(self.model)
        self.assertEqual(self.cluster.side_file("config.json", self.model), '{"made": "here"}')

    def test_code_is_refused_in_pythons_words(self):
        save(self.folder / "model.safetensors", "ab")
        (self.folder / "modeling_mine.py").touch()
        self.refused(self.folder, "modeling_mine.py is code", "give hf_dir a directory without *.py")
        links = self.root / "links"
        links.mkdir()
        for file in self.folder.glob("*[!.py]"):
            (links / file.name).symlink_to(file)
        self.register(links)

    def test_a_path_that_leads_nowhere_is_said(self):
        self.refused(self.root / "nowhere", "is no directory")
        self.refused("", "is no directory")
        self.refused(self.folder / "config.json", "is a file")

    def test_a_name_is_found_in_the_local_cache(self):
        hub = self.root / "home" / "hub"
        model = hub / "models--org--tiny"
        snapshot, blobs = model / "snapshots" / "c0ffee", model / "blobs"
        for directory in (snapshot, blobs, model / "refs"):
            directory.mkdir(parents=True)
        save(blobs / "1", "ab")
        (blobs / "2").write_text('{"made": "there"}')
        for blob, name in (("1", "model.safetensors"), ("2", "config.json")):
            (snapshot / name).symlink_to(blobs / blob)
        older = model / "snapshots" / "older"
        for names in ({"HF_HUB_CACHE": str(hub)}, {"HF_HOME": str(hub.parent)}):
            unset = {"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": ""}
            with mock.patch.dict(os.environ, {**unset, **names}):
                self.refused("org/other", 'snapshot_download("org/other")', str(hub))
                (model / "refs" / "main").unlink(missing_ok=True)
                self.register("org/tiny")  # the only revision
                older.mkdir()
                self.refused("org/tiny", "snapshot_download")
                (model / "refs" / "main").write_text("c0ffee")
                manager = self.register("org/tiny")
            older.rmdir()
        manager.offload(WEIGHTS, 1).wait()
        self.assertEqual(set(self.cluster.content(self.model)), set(WEIGHTS))
        self.assertEqual(self.cluster.side_file("config.json", self.model), '{"made": "there"}')


if __name__ == "__main__":
    unittest.main()
