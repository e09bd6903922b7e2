"""`statemix tasks`: the table, single tasks, and drawings."""

import re

import pytest

from statemix.cli import main
from statemix.tasks import TASKS


def rows(printed):
    """The cells of each row by its task."""
    found = (re.split(r"\s{2,}", line.strip()) for line in printed.splitlines())
    return {cells[0]: cells[1:] for cells in found}


def test_the_table_lists_all_tasks(capsys):
    main(["tasks"])
    printed = capsys.readouterr().out
    table = rows(printed)
    assert set(TASKS) - {"group"} <= set(table)
    assert table["task"] == ["vocabulary", "classes", "answers", "states", "block"]
    assert table["s5"] == ["120", "120", "every step", "120", "5"]
    assert table["s6"] == ["720", "720", "every step", "720", "skipped"]
    assert table["even_pairs"] == ["3", "2", "once", "5", "2"]
    assert table["mod_arith"] == ["9", "5", "once", "50", "25"]
    assert table["recall"] == ["16", "16", "several"]
    assert "d12" in table
    assert "largest power of a prime" in printed


def test_named_tasks_take_options(capsys):
    main(["tasks", "parity", "cycle_nav", "--task-options", "answers=prefixes"])
    table = rows(capsys.readouterr().out)
    assert table["parity"] == ["3", "2", "every step", "2", "2"]
    assert "mod_arith" not in table
    main(["tasks", "random_automaton", "--task-options", "states=40", "letters=3"])
    assert re.fullmatch(r"at least \d+", rows(capsys.readouterr().out)["random_automaton"][-1])
    main(["tasks", "permutation_reset", "--task-options", "states=40"])
    assert rows(capsys.readouterr().out)["permutation_reset"][-1] == "31 to 40"


def test_dot_prints_the_minimised_automaton(capsys):
    main(["tasks", "--dot", "even_pairs"])
    printed = capsys.readouterr().out
    assert printed.startswith("digraph automaton {")
    assert printed.count("->") == 1 + 5 * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dot", "copy"], "The task 'copy' has no automaton to draw"),
        (["--dot", "parity", "s3"], "--dot draws one task"),
        (["--task-options", "size=3"], "--task-options need the name of a task"),
        (["s5x"], "Unknown task 's5x'"),
    ],
)
def test_errors(arguments, message):
    names = [each for each in arguments[2:] if arguments[0] == "--dot"]
    with pytest.raises(SystemExit, match=re.escape(message)):
        main(["tasks", *names, *arguments[: len(arguments) - len(names)]])


def test_the_help_explains_the_columns(capsys):
    with pytest.raises(SystemExit) as end:
        main(["tasks", "--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    for word in (
        "vocabulary",
        "states",
        "block",
        "--dot",
        "docs/explanation/automata.md",
        "Examples",
    ):
        assert word in printed
