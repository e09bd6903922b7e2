"""A drawing of a one-layer automaton: where each slot of a block takes its value, for each letter.

The SVG has no script and needs no network, and follows the reader's light or dark colours.
"""

import html
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from statemix.models import Tagger
from statemix.models.tagger import Block
from statemix.proof.blocks import live_blocks, mixers_of
from statemix.proof.step import check_provable

__all__ = ["draw_automaton", "sources"]

_BLOCKS = 8  # panels
_LETTERS = 12  # letters in a panel
_COLUMNS = 7  # cells in a row of a panel
_CELL = 104  # width of a cell
_SLOT = 22  # distance between slots
_SPAN = 56  # distance between the columns before and after
_EDGE = 24
_COLOURS = 8

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


@torch.no_grad()
def sources(model: Tagger) -> Int[Tensor, "V n m"]:
    """Which slot 0 .. m − 1 each slot copies when a token is read, or m if it loads a value."""
    mixer = mixers_of(model)[0]
    norm = cast(Block, model.blocks[0]).mixer_norm
    x = nn.functional.layer_norm(
        model.embedding.weight.double(),
        norm.normalized_shape,
        norm.weight.double(),
        norm.bias.double(),
        norm.eps,
    )
    W_g = cast(nn.Linear, mixer.W_g)
    raw = x @ W_g.weight.double().T + W_g.bias.double()
    return raw.unflatten(1, mixer.gate_shape).argmax(-1)


def draw_automaton(model: Tagger, task: str) -> str:
    """An SVG with a panel for each block that the readout sees, at most eight."""
    check_provable(model)
    live = live_blocks(mixers_of(model)[0])
    moves = sources(model)[:, live]
    start = moves[-1] if model.config.bos else None
    letters = moves[: len(moves) - model.config.bos]
    blocks = letters.shape[1]
    parts = []
    y = _EDGE + 72
    for block in range(min(blocks, _BLOCKS)):
        of_block = None if start is None else start[block].tolist()
        panel, y = _panel(letters[:, block].tolist(), of_block, f"Block {block + 1}", y)
        parts.append(panel)
    if blocks > _BLOCKS:
        parts.append(_text(_EDGE, y + 6, f"and {blocks - _BLOCKS} more blocks", "faint"))
        y += 30
    return _frame(f"{task}: {_plural(blocks, 'block')}", _caption(blocks), "".join(parts), y)


def _caption(blocks: int) -> tuple[str, str]:
    """Two lines that explain the drawing."""
    if not blocks:
        return "No block is kept:", "the answer depends on the last letter alone."
    return (
        "Each box is a letter: the slots of the block before it, on the left, and after it.",
        "An arrow copies a slot. A ringed dot loads a new value. "
        "A hollow dot is a value that is dropped.",
    )


def _frame(title: str, caption: tuple[str, str], body: str, height: int) -> str:
    """The document: title, caption, panels."""
    width = 2 * _EDGE + _COLUMNS * _CELL
    described = html.escape(" ".join(caption))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title desc">'
        f'<title id="title">{html.escape(title)}</title><desc id="desc">{described}</desc>'
        f'<style>{_STYLE}</style><rect class="paper" width="{width}" height="{height}" rx="8"/>'
        f"{_text(_EDGE, _EDGE + 12, title, 'large')}"
        f"{_text(_EDGE, _EDGE + 36, caption[0], 'faint')}"
        f"{_text(_EDGE, _EDGE + 54, caption[1], 'faint')}{body}</svg>\n"
    )


def _panel(letters: list[list[int]], start: list[int] | None, name: str, y: int) -> tuple[str, int]:
    """A block: its name and summary, and a cell for each letter; and where the next one begins."""
    shown = _shown(len(letters))
    cells = [] if start is None else [("start", start)]
    cells += [(f"letter {letter}", letters[letter]) for letter in shown]
    parts = [
        _text(_EDGE, y + 24, name, "head"),
        _text(_EDGE + 70, y + 24, summary(letters), "faint"),
    ]
    height = _SLOT * len(letters[0]) + 34
    y += 38
    for i, (label, moves) in enumerate(cells):
        row, column = divmod(i, _COLUMNS)
        parts.append(_cell(_EDGE + column * _CELL, y + row * (height + 8), label, moves))
    y += -(-len(cells) // _COLUMNS) * (height + 8)
    if len(shown) < len(letters):
        more = f"and {len(letters) - len(shown)} more letters"
        parts.append(_text(_EDGE, y + 14, more, "faint"))
        y += 20
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


def _cell(x: int, y: int, label: str, moves: list[int]) -> str:
    """A letter: dots before and after, and arrows for copies."""
    m = len(moves)
    left = x + (_CELL - 8 - _SPAN) // 2
    heights = [y + 34 + _SLOT * i for i in range(m)]
    dots = [_before(left, heights[j], j, j in moves) for j in range(m)]
    dots += [
        _loaded(left + _SPAN, heights[i]) if j == m else _copied(left, heights[j], heights[i], j)
        for i, j in enumerate(moves)
    ]
    said = "; ".join(
        f"slot {i + 1} " + ("loads a value" if j == m else f"copies slot {j + 1}")
        for i, j in enumerate(moves)
    )
    box = f'<rect class="cell" x="{x}" y="{y}" width="{_CELL - 8}" height="{_SLOT * m + 34}"'
    return (
        f'<g><title>{label}: {said}</title>{box} rx="6"/>'
        f"{_text(x + 8, y + 17, label, '')}{''.join(dots)}</g>"
    )


def _before(x: int, y: int, slot: int, used: bool) -> str:
    """The dot of a slot before the letter; hollow if its value is dropped."""
    style = f"f{slot % _COLOURS}" if used else "lost"
    return f'<circle class="{style}" cx="{x}" cy="{y}" r="{4.5 if used else 3.8}"/>'


def _copied(x: int, y_from: int, y_to: int, slot: int) -> str:
    """An arrow from a slot to another, and the dot at its end."""
    end = x + _SPAN
    bend = _SPAN // 2
    tip = end - 6
    colour = slot % _COLOURS
    return (
        f'<path class="arrow a{colour}" d="M{x + 5} {y_from}C{x + bend} {y_from} '
        f'{end - bend} {y_to} {tip - 5} {y_to}"/>'
        f'<path class="f{colour}" d="M{tip} {y_to}l-7 -4v8z"/>'
        f'<circle class="f{colour}" cx="{end}" cy="{y_to}" r="4.5"/>'
    )


def _loaded(x: int, y: int) -> str:
    """The dot of a slot that loads a value."""
    return (
        f'<circle class="load" cx="{x}" cy="{y}" r="3.5"/>'
        f'<circle class="ring" cx="{x}" cy="{y}" r="6.5"/>'
    )


def _text(x: int, y: int, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{html.escape(text)}</text>'


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
