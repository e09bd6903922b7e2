"""Automata as plain data for JSON, and as a picture in the DOT language of Graphviz."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from statemix.tasks.automaton import NO_STEP, Automaton
from statemix.tasks.task import IGNORE

__all__ = ["from_json", "to_dot", "to_json"]


def to_json(automaton: Automaton) -> dict[str, Any]:
    """The automaton as lists and numbers, which `json.dumps` accepts."""
    return {
        "start": int(automaton.start),
        "step": automaton.step.tolist(),
        "answer": automaton.answer.tolist(),
    }


def from_json(data: dict[str, Any]) -> Automaton:
    """The automaton that `to_json` wrote."""
    expected = {"start", "step", "answer"}
    if set(data) != expected:
        raise ValueError(
            f"An automaton must have the fields {', '.join(sorted(expected))}, "
            f"got {', '.join(sorted(data)) or 'none'}."
        )
    step, answer = (np.array(data[name], dtype=np.int64) for name in ("step", "answer"))
    return Automaton(step, answer, data["start"])


def to_dot(
    automaton: Automaton,
    letters: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> str:
    """A drawing of the automaton in DOT: `dot -Tsvg` renders it.

    An edge is labelled with its letters, each followed by the answer, if one is asked: `a / 1`.
    Letters after which no word continues appear inside their state instead.

    Args:
        letters: the names of the letters, instead of their numbers.
        classes: the names of the answers, instead of their numbers.
    """
    ends, edges = _labels(automaton, letters, classes)
    lines = ["digraph automaton {", "  rankdir=LR;", '  start [shape=point, label=""];']
    for q in range(automaton.states):
        lines.append(f"  {q} [shape=circle, label={_quote([str(q), *ends[q]])}];")
    lines.append(f"  start -> {automaton.start};")
    for (source, target), labels in edges.items():
        lines.append(f"  {source} -> {target} [label={_quote(labels)}];")
    return "\n".join([*lines, "}"])


def _labels(
    automaton: Automaton, letters: Sequence[str] | None, classes: Sequence[str] | None
) -> tuple[dict[int, list[str]], dict[tuple[int, int], list[str]]]:
    """The labels inside states, by state, and those of edges, by source and target."""
    ends: dict[int, list[str]] = defaultdict(list)
    edges: dict[tuple[int, int], list[str]] = defaultdict(list)
    for q, letter in np.ndindex(automaton.step.shape):
        target, answer = int(automaton.step[q, letter]), int(automaton.answer[q, letter])
        text = str(letter) if letters is None else letters[letter]
        if answer != IGNORE:
            text += f" / {answer if classes is None else classes[answer]}"
        if target != NO_STEP:
            edges[q, target].append(text)
        elif answer != IGNORE:
            ends[q].append(text)
    return ends, edges


def _quote(lines: list[str]) -> str:
    """Lines of text as one quoted string of DOT."""
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
