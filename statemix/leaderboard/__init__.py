"""Leaderboards of state tracking: protocols, published numbers, and runs of any mixer."""

from statemix.leaderboard.cells import (
    ENTRIES,
    RATES,
    Contestant,
    cells,
    find_entries,
    published_cells,
)
from statemix.leaderboard.protocols import PROTOCOLS, Protocol, find_protocol

__all__ = [
    "ENTRIES",
    "PROTOCOLS",
    "RATES",
    "Contestant",
    "Protocol",
    "cells",
    "find_entries",
    "find_protocol",
    "published_cells",
]
