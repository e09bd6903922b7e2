"""Two drawings on the demo's page: the automaton that was proved, and the example of arithmetic.

Each cell is a separate small figure, so that rows of them fit any width.
"""

import html
from collections.abc import Iterable

from statemix.demo.arithmetic import additions, load_example, multiplications
from statemix.demo.trained import Trained
from statemix.pages import note, section
from statemix.proof.cell import CELL_WIDTH, draw_cell, height_of, say_moves
from statemix.proof.moves import Moves
from statemix.proof.picture import CAPTION, panels_of
from statemix.proof.saved import SavedCertificate
from statemix.tasks.groups import elements

__all__ = ["arithmetic", "automaton", "show_cells"]

_PANELS = 2  # blocks that are drawn
_MULTIPLIES = (
    "In the first layer, “·” and then a digit permute four slots of a block exactly as "
    "multiplication by that digit, modulo 5, permutes the digits 1, 2, 3 and 4. Twice “· 2” is "
    "once “· 4”, and four times “· 2” changes nothing."
)
_ADDS = (
    "In the second layer, five slots are permuted by these {count} moves, the reflections of a "
    "pentagon. Two reflections make a rotation, and the five rotations of a pentagon are addition "
    "modulo 5."
)
_CHECK = "Check it from the weights: statemix certify --verify examples/models/mod_arith"


def automaton(model: Trained) -> str:
    """The certificate of a model, and what letters do to its blocks."""
    assert model.proof is not None
    things = int(model.proof.task.removeprefix("s"))
    names = ["".join(str(i + 1) for i in each) for each in elements("s", things)]
    panels = panels_of(model.proof.model, letters=names)
    swap = "".join(map(str, (2, 1, *range(3, things + 1))))
    parts = [
        f"<p>{html.escape(_claim(model.proof))}</p>",
        note(f"{' '.join(CAPTION)} Letters are permutations: {swap} swaps the first two things."),
    ]
    for panel in panels[:_PANELS]:
        parts += [f"<h3>{html.escape(panel.name)}</h3>", note(panel.summary)]
        parts.append(show_cells(panel.cells))
    return section(f"{model.label}: the certificate and its automaton", "".join(parts))


def _claim(proof: SavedCertificate) -> str:
    found = proof.certificate
    kept = sum(found.blocks)
    blocks = "One block carries" if kept == 1 else f"{kept} blocks carry"
    return (
        f"Proved right on every word of every length. {blocks} all that is needed. The proof "
        f"visits the {found.pairs:,} states that any word can reach; there the right answer leads "
        f"by at least {found.slack:.1f} logits, rounding errors in {found.dtype} deducted."
    )


def arithmetic() -> str:
    """Multiplication and addition, as a certified model of two layers has found them."""
    example = load_example("mod_arith")
    times = multiplications(example)
    plus = additions(example)
    parts = [
        "<p>A model with two layers learned to compute sums of products modulo 5, such as "
        "2 + 3 · 4 − 1. It is proved right at every length as well, in "
        f"{example.certificate.pairs:,} states. This is what it found.</p>",
        "<h3>Multiplication</h3>",
        f"<p>{_MULTIPLIES}</p>",
        show_cells((f"· {digit}", moves) for digit, moves in times.items()),
        "<h3>Addition</h3>",
        f"<p>{_ADDS.format(count=len(plus))}</p>",
        show_cells((f"move {i}", moves) for i, moves in enumerate(plus, 1)),
        note(_CHECK),
    ]
    return section("Multiplication and addition, found by two layers", "".join(parts))


def show_cells(cells: Iterable[tuple[str, Moves]]) -> str:
    """A figure for each letter, beside each other."""
    return f'<div class="cells">{"".join(_figure(*cell) for cell in cells)}</div>'


def _figure(label: str, moves: Moves) -> str:
    height = height_of(len(moves))
    described = html.escape(f"{label}: {say_moves(moves)}")
    return (
        f'<svg viewBox="0 0 {CELL_WIDTH} {height}" width="{CELL_WIDTH}" height="{height}" '
        f'role="img" aria-label="{described}">{draw_cell(0, 0, label, moves)}</svg>'
    )
