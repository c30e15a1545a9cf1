"""The metrics of a running pair, and what is built on them: alert rules and the dashboard.

Every name in a rule or a panel must be one that the daemons expose; the rules have tests of their
own, by Prometheus's promtool.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve()
DEPLOY = HERE.parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "deltawire.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "deltawire.json"
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402
from daemons import programs  # noqa: E402
from scrapes import STAGES, scrape_pair, series  # noqa: E402

NAME = re.compile(r"\b(?:deltawire_(?:sender|receiver)|process)_[a-z_]+\b")
# Of 100 receivers on one Prometheus, each with a model and an engine.
MOST_SERIES = 180


def expressions(dashboard: dict) -> list[str]:
    found = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
    return found + [
        v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"
    ]


class Pair(unittest.TestCase):
    """What both daemons answer when they have moved a version."""

    @classmethod
    def setUpClass(cls):
        cls.text = scrape_pair(programs())
        cls.names = {re.split(r"[{ ]", s)[0] for text in cls.text.values() for s in series(text)}


class Metrics(Pair):
    def test_every_name_in_a_rule_is_exposed(self):
        wanted = set(NAME.findall(RULES.read_text()))
        self.assertGreater(len(wanted), 8)
        self.assertEqual(wanted - self.names, set())

    def test_every_name_in_a_panel_is_exposed(self):
        dashboard = json.loads(DASHBOARD.read_text())
        found = expressions(dashboard)
        self.assertGreater(len(found), 20)
        for expression in found:
            names = NAME.findall(expression)
            self.assertTrue(names, expression)
            self.assertEqual(set(names) - self.names, set(), expression)
        ids = [p["id"] for p in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_every_stage_in_a_panel_is_one(self):
        known = {stage for of in STAGES.values() for stages in of.values() for stage in stages}
        named = set()
        for expression in expressions(json.loads(DASHBOARD.read_text())):
            for stages in re.findall(r'stage=~?"([a-z|]+)"', expression):
                named |= set(stages.split("|"))
        self.assertGreater(len(named), 10)
        self.assertEqual(named - known, set())

    def test_every_stage_is_in_the_docs(self):
        page = (DEPLOY.parent / "docs" / "operations.md").read_text()
        for stage in [s for of in STAGES.values() for stages in of.values() for s in stages]:
            self.assertIn(f"| `{stage}` |", page)

    def test_a_scrape_is_small(self):
        for name, text in self.text.items():
            print(f"{name}: {len(series(text))} series for one model", flush=True)
            self.assertLess(len(series(text)), MOST_SERIES, f"{name}:\n{text}")

    def test_the_docs_say_how_many_series_there_are(self):
        page = " ".join((DEPLOY.parent / "docs" / "operations.md").read_text().split())
        sentence = (
            r"A sender exposes (\d+) series for one model\. A receiver exposes (\d+), and for each "
            r"engine (\d+) more and (\d+) for each of the engine's stages: 100 receivers with a model "
            r"and an engine of three stages each make ([\d,]+)\."
        )
        found = re.search(sentence, page)
        self.assertIsNotNone(found, "docs/operations.md does not say it in the words looked for here")
        sender, receiver, engine, stage, fleet = (int(n.replace(",", "")) for n in found.groups())
        # The page counts with three codecs, so that a further one leaves it as it is.
        codecs = set(re.findall(r'codec="(\w+)"', self.text["sender"])) - {"raw"}
        self.assertIn("each further codec adds 3 on either side", page)
        more = 3 * (len(codecs) - 3)
        self.assertEqual(len(series(self.text["sender"])), sender + more)
        self.assertEqual(len(series(self.text["receiver"])), receiver + engine + stage + more)
        self.assertEqual(fleet, 100 * (receiver + engine + 3 * stage))


class Promtool(Pair):
    def promtool(self, *command: object, given: str | None = None) -> None:
        tool = shutil.which("promtool")
        if tool is None:
            self.skipTest("no promtool on this machine")
        done = subprocess.run(
            [tool, *command], capture_output=True, text=True, input=given, check=False,
            cwd=RULES.parent,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(given and done.stdout + done.stderr or "", "")

    def test_promtool_finds_nothing_in_the_metrics(self):
        for text in self.text.values():
            self.promtool("check", "metrics", given=text)

    def test_promtool_runs_the_rules(self):
        self.promtool("check", "rules", RULES)
        self.promtool("test", "rules", RULES.with_suffix(".test.yml"))


if __name__ == "__main__":
    if programs() is None or not os.access(programs(), os.X_OK):
        sys.exit("DELTAWIRE_BIN_DIR names no programs")
    skipping.main()
