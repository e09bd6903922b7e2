"""A small part of the suite of faults (`make test-faults`), and how it adds up its parts."""

import faulthandler
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import results
from faults.runner import Kind, Outcome, Tally, note, run_kind

TESTS = Path(__file__).parent


@pytest.mark.timeout(900)  # it takes 20 s, but much longer beside other programs
def test_a_small_part_of_the_suite():
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "faults", "--small"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


WAYS = ("fine", "wrong", "dies", "fine", "raises", "hangs", "fine", "polls", "wrong")


def test_the_page_shows_the_counts_of_the_last_full_run():
    sys.path.insert(0, str(TESTS.parent / "docs"))
    import render_faults

    page = render_faults.PAGE.read_text()
    assert page == render_faults.with_table(page, render_faults.COUNTS.read_text())


def act(rng: random.Random, folder: Path) -> Outcome:
    """The case number n does what WAYS[n] says; its number follows from its random numbers."""
    first = rng.random()
    way = next(w for n, w in enumerate(WAYS) if random.Random(f"example 0 {n}").random() == first)
    if way == "raises":
        raise KeyError("a mistake")
    if way == "dies":
        faulthandler.disable()  # its dump in the output of pytest would look like a failure
        os.kill(os.getpid(), signal.SIGSEGV)
    if way == "hangs":
        note(folder, "this one waits")
        time.sleep(600)
    while way == "polls":
        time.sleep(0.01)
    return Outcome(way, "it is wrong" if way == "wrong" else "")


def test_deaths_and_hangs_are_counted_and_the_other_cases_go_on():
    kind = Kind("example", "examples", 1, act, seconds=2)
    tally = run_kind(kind, range(len(WAYS)), seed=0, jobs=2)
    assert tally.cases == 9
    assert dict(tally.labels) == {
        "fine": 3,
        "wrong": 2,
        "crash": 1,
        "error in the suite": 1,
        "hang": 2,
    }
    assert len(tally.failures) == 6
    assert any("this one waits: took more than 2 s" in failure for failure in tally.failures)
    assert any("ended the process, SIGSEGV" in failure for failure in tally.failures)
    assert all("--kind example --case" in failure for failure in tally.failures)


def part(number, *, kind="files", parts=2, cases=10, failed=0):
    tally = Tally(cases, failures=["x"] * failed, seconds=1.0)
    tally.labels["refused"] = cases
    return results.part_of(kind, (number, parts), 1, 0, tally, "abc")


def test_parts_add_up_and_replace_their_predecessors(tmp_path):
    path = tmp_path / "faults.json"
    for each in (part(1, failed=1), part(2, cases=5), part(1), part(1, kind="kills", cases=3)):
        results.add(path, each)
    parts = results.load(path)
    found = results.totals(parts)
    assert (found["files"].cases, found["files"].failed) == (15, 0)
    assert found["files"].labels == {"refused": 15}
    assert found["kills"].cases == 3
    assert results.finished(parts, "files", 2, 2, 1, 0)
    assert not results.finished(parts, "files", 2, 2, 20, 0)
    results.add(path, part(1, parts=4))  # another division begins again
    assert results.totals(results.load(path))["files"].cases == 10
