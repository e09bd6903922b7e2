"""Sweeps: the cells of an experiment, the ledger of past runs, and engines that run the rest."""

from statemix.sweep.ledger import Entry, Ledger
from statemix.sweep.plan import Cell, grid, load_cells, load_places, load_scales, share
from statemix.sweep.run import SweepSummary, sweep
from statemix.sweep.select import Choice, choose

__all__ = [
    "Cell",
    "Choice",
    "Entry",
    "Ledger",
    "SweepSummary",
    "choose",
    "grid",
    "load_cells",
    "load_places",
    "load_scales",
    "share",
    "sweep",
]
