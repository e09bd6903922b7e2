"""The picture of the README and the table of settings are rendered from the ledger."""

import itertools
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import render  # noqa: E402

from statemix.sweep import Ledger  # noqa: E402


@pytest.fixture(scope="module")
def entries():
    return [e for e in Ledger(ROOT / "results" / "ledger.jsonl").read()[0] if e.status == "done"]


def test_the_picture_is_up_to_date(entries):
    assert render.picture(entries) == render.PICTURE.read_text()


def test_the_picture_is_readable(entries):
    """It parses, says what it shows, has all models, and its labels don't overlap."""
    text = render.picture(entries)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text
    labels = [each for each in root.iter(f"{space}text") if "name" in each.get("class", "")]
    assert {each.text for each in labels} == set(render.NAMES.values())
    heights = sorted(float(each.get("y")) for each in labels)
    assert all(b - a >= 32 for a, b in itertools.pairwise(heights))
    assert all(0 < y < render.HEIGHT for y in heights)


def test_the_claim_of_the_picture(entries):
    """Blocks of five hold at every length and in every seed; no other model holds."""
    curves = render.curves(entries)
    for row, (seconds, runs, curve) in curves.items():
        assert runs >= 1, row
        assert seconds > 0, row
        assert max(curve) == 65_536
        holds = min(min(values) for values in curve.values()) > 0.999
        assert holds == (row == "BD-LRU m5"), row


def test_the_table_has_a_row_for_each_task_and_layer(entries):
    lines = render.table(entries).splitlines()[2:]
    places = [tuple(line.split(" | ")[:2]) for line in lines]
    assert len(set(places)) == len(places)
    assert {"| parity 16 tokens answers=prefixes", "| s3", "| s5 16 tokens"} <= {
        p[0] for p in places
    }
    assert all(
        re.search(r"\| (0\.[7-9]|1\.0)\d*( ± \d\.\d{3})? \| \d+ \| \d+ \|$", x) for x in lines
    )


def test_only_the_table_is_replaced(entries):
    page = "before\n" + render.BEGIN + "stale\n" + render.END + "after\n"
    changed = render.with_table(page, entries)
    assert changed.startswith("before\n")
    assert changed.endswith("after\n")
    assert "stale" not in changed
    assert render.with_table(changed, entries) == changed
