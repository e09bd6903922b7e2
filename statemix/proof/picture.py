"""A drawing of an automaton: where each slot of a block takes its value, for each letter.

Above the first layer, this also depends on the states below, so all cases are drawn that occur.

The SVG has no script and needs no network, and follows the reader's light or dark colours.
"""

import html
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from statemix.models import Tagger
from statemix.proof.blocks import live_blocks, mixers_of
from statemix.proof.cell import CELL, draw_cell, height_of, write
from statemix.proof.moves import Moves, group_of, moves_above, sources
from statemix.proof.step import check_provable
from statemix.tasks.automaton import Automaton

__all__ = ["CAPTION", "Panel", "draw_automaton", "panels_of"]

_BLOCKS = 8  # panels
_LETTERS = 12  # letters in a panel
_COLUMNS = 7  # cells in a row of a panel
_EDGE = 24
_LABEL = 12  # characters
CAPTION = (
    "Each box is a letter: the slots of the block before it, on the left, and after it.",
    "An arrow copies a slot. A ringed dot loads a new value. "
    "A hollow dot is a value that is dropped.",
)

_STYLE = """
svg { color: #1b1e23; font: 13px system-ui, sans-serif; color-scheme: light dark }
.paper { fill: #ffffff } text { fill: currentColor } .faint { fill: #63676f }
h1, .head { font-weight: 600 } .large { font-size: 17px; font-weight: 600 }
.cell { fill: #f4f5f7 } .lost { fill: none; stroke: #9a9ea6; stroke-width: 1.5 }
.load { fill: currentColor } .ring { fill: none; stroke: currentColor; stroke-width: 1.5 }
.arrow { fill: none; stroke-width: 2 }
.f0 { fill: #3a66d8 } .f1 { fill: #d98e04 } .f2 { fill: #e0523f } .f3 { fill: #2f9e4f }
.f4 { fill: #9455ea } .f5 { fill: #8f6146 } .f6 { fill: #1f9a96 } .f7 { fill: #db5a93 }
.a0 { stroke: #3a66d8 } .a1 { stroke: #d98e04 } .a2 { stroke: #e0523f } .a3 { stroke: #2f9e4f }
.a4 { stroke: #9455ea } .a5 { stroke: #8f6146 } .a6 { stroke: #1f9a96 } .a7 { stroke: #db5a93 }
@media (prefers-color-scheme: dark) {
  svg { color: #e7e9ed } .paper { fill: #15171c } .faint { fill: #a2a7b1 } .cell { fill: #1f2229 }
  .f0 { fill: #7d9df5 } .f4 { fill: #b78bf7 } .f5 { fill: #bd8f73 }
  .a0 { stroke: #7d9df5 } .a4 { stroke: #b78bf7 } .a5 { stroke: #bd8f73 }
}
"""


Cell = tuple[str, Moves]


class Panel(NamedTuple):
    """A block in the drawing: its name, a summary, and a cell for each letter or move."""

    name: str
    summary: str
    cells: list[Cell]


def draw_automaton(
    model: Tagger,
    task: str,
    automaton: Automaton | None = None,
    letters: Sequence[str] = (),
) -> str:
    """An SVG with a panel for each block that the readout sees, at most eight.

    Args:
        automaton: of the task; needed to draw layers above the first.
        letters: names of the letters; their numbers if there are none.
    """
    panels = panels_of(model, automaton, letters)
    parts = []
    y = _EDGE + 72
    for panel in panels[:_BLOCKS]:
        drawn, y = _draw_panel(panel, y)
        parts.append(drawn)
    if len(panels) > _BLOCKS:
        parts.append(write(_EDGE, y + 6, f"and {len(panels) - _BLOCKS} more blocks", "faint"))
        y += 30
    title = f"{task}: {_plural(len(panels), 'block')}"
    return _frame(title, _caption(len(panels)), "".join(parts), y)


def panels_of(
    model: Tagger, automaton: Automaton | None = None, letters: Sequence[str] = ()
) -> list[Panel]:
    """A panel for each block that the readout sees; the arguments are those of the drawing."""
    check_provable(model)
    panels = _first_layer(model, letters)
    if automaton is not None and len(model.blocks) > 1:
        panels += _upper_layers(model, automaton, letters)
    return panels


def _first_layer(model: Tagger, names: Sequence[str]) -> list[Panel]:
    """A name, a summary and a cell for each letter, for each block of the first layer."""
    live = live_blocks(mixers_of(model)[0])
    moves = sources(model)[:, live]
    letters = moves[: len(moves) - model.config.bos]
    of = "" if len(model.blocks) == 1 else " of layer 1"
    panels = []
    for block in range(letters.shape[1]):
        own = letters[:, block].tolist()
        cells = [] if not model.config.bos else [("start", tuple(moves[-1, block].tolist()))]
        cells += [(_letter(letter, names), tuple(own[letter])) for letter in _shown(len(own))]
        said = summary(own) + _left_out(len(own))
        panels.append(Panel(f"Block {block + 1}{of}", said, cells))
    return panels


def _letter(letter: int, names: Sequence[str]) -> str:
    return names[letter] if names else f"letter {letter}"


def _left_out(letters: int) -> str:
    return "" if letters <= _LETTERS else f" {letters - _LETTERS} letters are not drawn."


def _upper_layers(model: Tagger, automaton: Automaton, names: Sequence[str]) -> list[Panel]:
    """The same for the layers above, with a cell for each different move, the commonest first."""
    panels = []
    for (layer, block), moves in moves_above(model, automaton).items():
        commonest = sorted(moves, key=lambda own: -sum(moves[own].values()))
        cells = [(_when(moves[own], automaton.letters, names), own) for own in commonest]
        said = f"{_plural(len(cells), 'move')} occur. {group_of(commonest)}"
        panels.append(Panel(f"Block {block + 1} of layer {layer + 1}", said, cells[: 2 * _COLUMNS]))
    return panels


def _when(count: Counter[int], letters: int, names: Sequence[str]) -> str:
    """The letters that make a move, as many as there is room for."""
    if len(count) == letters:
        return "any letter"
    said = " ".join(names[letter] if names else str(letter) for letter in sorted(count))
    return said if len(said) <= _LABEL else f"{said[: _LABEL - 2]} …"


def _caption(blocks: int) -> tuple[str, str]:
    """Two lines that explain the drawing."""
    if not blocks:
        return "No block is kept:", "the answer depends on the last letter alone."
    return CAPTION


def _frame(title: str, caption: tuple[str, str], body: str, height: int) -> str:
    """The document: title, caption, panels."""
    width = 2 * _EDGE + _COLUMNS * CELL
    described = html.escape(" ".join(caption))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title desc">'
        f'<title id="title">{html.escape(title)}</title><desc id="desc">{described}</desc>'
        f'<style>{_STYLE}</style><rect class="paper" width="{width}" height="{height}" rx="8"/>'
        f"{write(_EDGE, _EDGE + 12, title, 'large')}"
        f"{write(_EDGE, _EDGE + 36, caption[0], 'faint')}"
        f"{write(_EDGE, _EDGE + 54, caption[1], 'faint')}{body}</svg>\n"
    )


def _draw_panel(panel: Panel, y: int) -> tuple[str, int]:
    """A block: its name and summary, and its cells; and where the next one begins."""
    name, said, cells = panel
    parts = [
        write(_EDGE, y + 24, name, "head"),
        write(_EDGE + 10 + 7 * len(name), y + 24, said, "faint"),
    ]
    height = height_of(len(cells[0][1]))
    y += 38
    for i, (label, moves) in enumerate(cells):
        row, column = divmod(i, _COLUMNS)
        parts.append(draw_cell(_EDGE + column * CELL, y + row * (height + 8), label, moves))
    y += -(-len(cells) // _COLUMNS) * (height + 8)
    return "".join(parts), y + 16


def _shown(letters: int) -> list[int]:
    """The letters to draw, evenly spread over all of them."""
    count = min(letters, _LETTERS)
    return [i * letters // count for i in range(count)]


def summary(letters: list[list[int]]) -> str:
    """What the letters do to a block, in words."""
    m = len(letters[0])
    permuting = sum(sorted(moves) == list(range(m)) for moves in letters)
    loading = sum(set(moves) == {m} for moves in letters)
    counts = {
        ("permutes", "permute"): permuting,
        ("loads all of", "load all of"): loading,
        ("copies some of", "copy some of"): len(letters) - permuting - loading,
    }
    said = [(verbs[n > 1], n) for verbs, n in counts.items() if n]
    slots = f"its {_plural(m, 'slot')}"
    if len(said) == 1:
        return f"Every letter {next(one for (one, _), n in counts.items() if n)} {slots}."
    listed = ", ".join(f"{n} {verb} them" for verb, n in said)
    return f"Of {len(letters)} letters, {listed.replace('them', slots, 1)}."


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
