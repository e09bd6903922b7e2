"""A cell of the drawing of an automaton: what one letter does to the slots of a block."""

import html

from statemix.proof.moves import Moves

__all__ = ["CELL", "CELL_WIDTH", "draw_cell", "height_of", "say_moves", "write"]

CELL = 104  # distance between cells
CELL_WIDTH = 96
_COLOURS = 8
_SLOT = 22  # distance between slots
_SPAN = 56  # distance between the columns before and after


def height_of(slots: int) -> int:
    """The height of a cell."""
    return _SLOT * slots + 34


def draw_cell(x: int, y: int, label: str, moves: Moves) -> str:
    """A letter: dots before and after, and arrows for copies."""
    m = len(moves)
    left = x + (CELL_WIDTH - _SPAN) // 2
    heights = [y + 34 + _SLOT * i for i in range(m)]
    dots = [_before(left, heights[j], j, j in moves) for j in range(m)]
    dots += [
        _loaded(left + _SPAN, heights[i]) if j == m else _copied(left, heights[j], heights[i], j)
        for i, j in enumerate(moves)
    ]
    box = f'<rect class="cell" x="{x}" y="{y}" width="{CELL_WIDTH}" height="{height_of(m)}"'
    return (
        f'<g><title>{html.escape(label)}: {say_moves(moves)}</title>{box} rx="6"/>'
        f"{write(x + 8, y + 17, label, '')}{''.join(dots)}</g>"
    )


def say_moves(moves: Moves) -> str:
    """The moves of all slots in words."""
    m = len(moves)
    return "; ".join(
        f"slot {i + 1} " + ("loads a value" if j == m else f"copies slot {j + 1}")
        for i, j in enumerate(moves)
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


def write(x: int, y: int, text: str, style: str) -> str:
    """A line of text."""
    return f'<text class="{style}" x="{x}" y="{y}">{html.escape(text)}</text>'
