"""The demo's page: one picture, what it shows, a proof with its automaton, and eigenvalues.

The page is a single file that needs no network.
"""

import html
from pathlib import Path
from typing import Any

from statemix.demo.drawings import arithmetic, automaton
from statemix.demo.trained import LENGTHS, Trained
from statemix.files.writing import write_atomically
from statemix.pages import (
    ACCURACY,
    Axis,
    Chart,
    Figure,
    Point,
    Series,
    make_document,
    section,
    show_figure,
)

__all__ = ["write_page"]

_FIRST, _LAST = LENGTHS[0], LENGTHS[-1]
_TITLE = "What mixing buys that width cannot"
_LEAD = (
    "Each model reads permutations of three things, one by one, and must say after each of them "
    f"what their product is. It learns this on {_FIRST} tokens. Does it still know after {_LAST:,}?"
)
_M = (
    "States come in blocks of m. At each step a block is multiplied by an m × m matrix that the "
    "token chooses, so its m states mix. All models here have {states} states: a larger m means "
    "fewer blocks, not more states. With m = 1 every state is alone, as in Mamba and other "
    "diagonal models."
)
_LSTM = (
    "An LSTM mixes all of its states, but through a non-linear function: it must be computed one "
    "step after the other, and small errors of the state grow. BD-LRU is linear in its state, so "
    "it can be computed in parallel over time. Compare the time to train, below."
)
_PROVED = (
    "A plot ends somewhere, a proof does not. The gates of the model with m = 3 became hard: at "
    "each step every state copies another one or loads a value. The model is then a finite "
    "automaton, and can be compared with the task on every word of every length."
)
_EIGENVALUES = (
    "The matrix of a block has m eigenvalues. For m = 1 they lie between 0 and 1: a state is kept "
    "or forgotten. From m = 2 on they can be negative, which flips a sign, and from m = 3 on "
    "complex, which rotates. Permutations of three things need both, in one block. Step through a "
    "sequence and watch them."
)
_PLANE = """
<div class="controls"><label>model <select id="plane-model"></select></label>
<label>time <input id="plane-step" type="range" min="0" value="1"></label>
<output id="plane-name"></output></div>
<svg id="plane" viewBox="0 0 320 320" width="320" height="320" role="img"></svg>
<p id="plane-words" class="note"></p>
"""


def write_page(path: Path, models: list[Trained], seed: int) -> None:
    """Write the page of these models atomically."""
    figures = [_lengths(models, seed), _times(models, seed)]
    planes = [_plane(model) for model in models if model.plane is not None]
    body = [
        f'<h1>{_TITLE}</h1><p class="lead">{_LEAD}</p>',
        show_figure(figures[0]),
        _cards(models),
        section("Accuracy beside the time to train", show_figure(figures[1]) + _table(models)),
        *(automaton(model) for model in models if model.proof is not None),
        section("Eigenvalues, step by step", f"<p>{_EIGENVALUES}</p>{_PLANE}"),
        arithmetic(),
    ]
    data = {"planes": planes}
    document = make_document(f"statemix: {_TITLE}", "".join(body), figures, data, ("plane.js",))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, document.encode())


def _lengths(models: list[Trained], seed: int) -> Figure:
    """Accuracy against length."""
    ticks = tuple((length, f"{length:,}") for length in LENGTHS)
    x = Axis("tokens in the test sequences", log=True, ticks=ticks, low=_FIRST, high=_LAST)
    series = tuple(
        Series(_with_time(model), tuple(Point(T, share) for T, share in model.accuracy.items()))
        for model in models
    )
    caption = (
        "Share of right answers at all steps of 16 new sequences of each length. One run of each "
        f"model (n = 1, seed {seed}), trained on sequences of {_FIRST} tokens with the same "
        "curriculum when this page was written; seconds are the CPU time of its training. A guess "
        "is right once in six times."
    )
    return Figure("length", "Accuracy against length", caption, (Chart("", x, ACCURACY, series),))


def _with_time(model: Trained) -> str:
    """The name of a model with the time to train it."""
    proved = ", proved" if model.proof is not None else ""
    return f"{model.label}: {model.cpu_seconds:.0f} s{proved}"


def _times(models: list[Trained], seed: int) -> Figure:
    """Accuracy at the longest sequences against the time to train."""
    x = Axis("CPU seconds of training", low=0)
    series = tuple(
        Series(model.label, (Point(model.cpu_seconds, model.accuracy[_LAST]),), line=False)
        for model in models
    )
    caption = (
        f"One run of each model (n = 1, seed {seed}) on one core. The first model ends when it is "
        "proved, and its time includes restarts; the others end when they make no more mistakes on "
        f"{_FIRST} tokens, or after 1,000 steps (Mamba-2: 500)."
    )
    title = f"Accuracy at {_LAST:,} tokens"
    return Figure("time", title, caption, (Chart("", x, ACCURACY, series),))


def _cards(models: list[Trained]) -> str:
    """What m is, why not an LSTM, and what is proved."""
    said = {
        "What is m?": _M.format(states=models[0].states),
        "Why not just an LSTM?": _LSTM,
    }
    if any(model.proof is not None for model in models):
        said["What is proved?"] = _PROVED
    cards = "".join(
        f'<div class="card"><strong>{html.escape(title)}</strong><p>{html.escape(text)}</p></div>'
        for title, text in said.items()
    )
    return f'<div class="cards">{cards}</div>'


def _table(models: list[Trained]) -> str:
    """A row for each model."""
    columns = ("", f"{_FIRST} tokens", f"{_LAST:,}", "CPU time", "parameters")
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(model.label)}</th><td>{model.accuracy[_FIRST]:.3f}</td>'
        f"<td>{model.accuracy[_LAST]:.3f}</td><td>{model.cpu_seconds:.0f} s</td>"
        f"<td>{model.parameters:,}</td></tr>"
        for model in models
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _plane(model: Trained) -> dict[str, Any]:
    """The eigenvalues of a model as the page steps through them."""
    assert model.plane is not None
    steps = [
        ("before the first token" if t == 0 else f"token {t}", [_digits(z) for z in values])
        for t, values in enumerate(model.plane.values)
    ]
    words = (
        f"{model.label}: {100 * model.plane.negative:.0f} % of all eigenvalues are negative, "
        f"{100 * model.plane.complex:.0f} % complex."
    )
    return {"name": model.label, "steps": steps, "words": words}


def _digits(z: complex) -> tuple[float, float]:
    return round(z.real, 3), round(z.imag, 3)
