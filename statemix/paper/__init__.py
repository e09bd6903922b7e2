"""The numbers of the paper's tables, and its models as configs, under the paper's names."""

from statemix.paper.rows import BASELINES, bdlru, block_sizes, hlru, mixer_of, with_row
from statemix.paper.values import PaperValue, read_values

__all__ = [
    "BASELINES",
    "PaperValue",
    "bdlru",
    "block_sizes",
    "hlru",
    "mixer_of",
    "read_values",
    "with_row",
]
