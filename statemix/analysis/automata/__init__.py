"""Automata of tasks: the smallest equivalent one, its pictures, and the blocks that carry it."""

from statemix.analysis.automata.block import BlockSize, smallest_block
from statemix.analysis.automata.export import from_json, to_dot, to_json
from statemix.analysis.automata.extract import extract
from statemix.analysis.automata.minimal import minimise

__all__ = [
    "BlockSize",
    "extract",
    "from_json",
    "minimise",
    "smallest_block",
    "to_dot",
    "to_json",
]
