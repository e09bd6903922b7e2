"""The numbers of the paper's tables, and its models as configs, under the paper's names."""

from statemix.paper.published import (
    EPOCHS,
    HIDDEN,
    SEQUENCES,
    WIDTH,
    published_models,
    published_runs,
)
from statemix.paper.rows import BASELINES, bdlru, block_sizes, hlru, mixer_of, with_row
from statemix.paper.values import PaperValue, read_values

__all__ = [
    "BASELINES",
    "EPOCHS",
    "HIDDEN",
    "SEQUENCES",
    "WIDTH",
    "PaperValue",
    "bdlru",
    "block_sizes",
    "hlru",
    "mixer_of",
    "published_models",
    "published_runs",
    "read_values",
    "with_row",
]
