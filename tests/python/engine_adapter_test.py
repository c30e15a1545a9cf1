"""deltawire.engine.adapter: its folders of links, and what it asks of a server that stands in for
vLLM. tests/engines has the real one."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import support

support.need("deltawire")

from deltawire.engine import adapter  # noqa: E402


class Server(http.server.BaseHTTPRequestHandler):
    """Says yes, and keeps what it was asked."""

    asked: list = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


class AdapterTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.directory, self.links = self.root / "d", self.root / "links"
        self.directory.mkdir()
        for name in ("model.safetensors", "adapter_config.json", ".deltawire.state"):
            (self.directory / name).write_text(name)

    def serve(self, version: int) -> subprocess.CompletedProcess:
        environment = os.environ | {"DELTAWIRE_MODEL": "tuned", "DELTAWIRE_VERSION": str(version),
                                    "DELTAWIRE_DIRECTORY": str(self.directory)}
        return subprocess.run(
            [sys.executable, "-m", "deltawire.engine.adapter", self.url, "--links", self.links],
            env=environment, capture_output=True, text=True, timeout=60, check=False)

    def test_each_version_has_a_folder_and_old_ones_go_also_where_versions_were_left_out(self):
        server = self.enterContext(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server))
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever).start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        for version in (3, 10, 11, 1010):
            done = self.serve(version)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            folder = self.links / "tuned" / f"v{version}"
            self.assertEqual(Server.asked[-1], ("/v1/load_lora_adapter", {
                "lora_name": "tuned", "lora_path": str(folder), "load_inplace": True}))
            self.assertEqual({f.name: f.read_text() for f in folder.iterdir()}, {
                "adapter_model.safetensors": "model.safetensors",
                "adapter_config.json": "adapter_config.json"})
        folders = self.links / "tuned"
        self.assertEqual({f.name for f in folders.iterdir()}, {"v3", "v10", "v11", "v1010"})
        with mock.patch.object(adapter, "_KEPT", 2):
            adapter.forget(folders, 1010)  # by their count, since numbers may leave much out
        self.assertEqual({f.name for f in folders.iterdir()}, {"v10", "v11", "v1010"})

    def test_the_usual_folder_is_this_user_s(self):
        folder = self.links / "tuned" / "v7"
        for _ in range(2):
            adapter.own_links(self.links, folder)
        mode = lambda path: path.stat().st_mode & 0o777  # noqa: E731
        way = (self.links, folder.parent, folder)
        self.assertEqual([mode(path) for path in way], [0o700] * 3)
        # As an older version has left them under umask 002.
        for path in way:
            path.chmod(0o775)
        adapter.link(self.directory, folder)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            adapter.own_links(self.links, folder)
        self.assertEqual([mode(path) for path in way], [0o755] * 3)
        self.assertEqual({f.name for f in folder.iterdir()},
                         {"adapter_model.safetensors", "adapter_config.json"})
        self.assertEqual(said.getvalue().count("closed to them now"), 3)
        self.assertIn(f"{self.links} could be written by others than this user (mode 0775)",
                      said.getvalue())

    def test_a_name_may_have_levels(self):
        folder = self.links / "org" / "tuned" / "v7"
        adapter.own_links(self.links, folder)
        way = (self.links, folder.parent.parent, folder.parent, folder)
        self.assertEqual([path.stat().st_mode & 0o777 for path in way], [0o700] * 4)

    def test_what_another_user_may_have_put_there_is_refused(self):
        folder = self.links / "tuned" / "v7"
        for way, why in ((self.links, "links"), (folder.parent, "tuned"), (folder, "v7")):
            way.parent.mkdir(exist_ok=True)
            way.symlink_to(self.directory)
            with self.assertRaisesRegex(RuntimeError, f"{why} is no folder .*give --links another"):
                adapter.own_links(self.links, folder)
            way.unlink()
            way.write_text("a file")
            with self.assertRaisesRegex(RuntimeError, f"{why} is no folder"):
                adapter.own_links(self.links, folder)
            way.unlink()
        adapter.own_links(self.links, folder)
        uid = os.getuid()
        with mock.patch("os.getuid", lambda: uid + 1), self.assertRaisesRegex(
                RuntimeError, f"{self.links} is of another user .{uid}., who would choose"):
            adapter.own_links(self.links, folder)
        if uid == 0:
            (folder / "adapter_model.bin").write_text("planted")
            os.chown(folder / "adapter_model.bin", 12345, -1)
            with self.assertRaisesRegex(RuntimeError, "adapter_model.bin is of another user"):
                adapter.own_links(self.links, folder)


if __name__ == "__main__":
    unittest.main()
