"""Published numbers as data, each with its source and version."""

import csv
from dataclasses import dataclass
from importlib import resources

__all__ = ["SOURCES", "PublishedValue", "read_published"]

SOURCES = {
    "SLiCE": "arXiv 2505.17761, tables 2 and 4",
    "PD-SSM": "arXiv 2509.22284, table of state tracking",
}


@dataclass(frozen=True)
class PublishedValue:
    """A mean accuracy and its standard deviation over seeds, if it was printed."""

    protocol: str
    mixer: str
    task: str
    accuracy: float
    sd: float | None
    source: str


def read_published(protocol: str) -> list[PublishedValue]:
    """The values of a protocol; where two papers print one, both are here, the newer first."""
    with resources.files("statemix.leaderboard").joinpath("published.csv").open() as file:
        values = [
            PublishedValue(
                line["protocol"],
                line["mixer"],
                line["task"],
                float(line["accuracy"]),
                float(line["sd"]) if line["sd"] else None,
                line["source"],
            )
            for line in csv.DictReader(file)
        ]
    return [value for value in values if value.protocol == protocol]
