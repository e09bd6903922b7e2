"""The accuracies printed in the paper's tables, as data."""

import csv
from dataclasses import dataclass
from importlib import resources

__all__ = ["PaperValue", "read_values"]


@dataclass(frozen=True)
class PaperValue:
    """One number of a table; `printed` is False if it is commented out in the paper's source."""

    table: str
    row: str
    column: str
    accuracy: float
    printed: bool = True


TABLES = {  # LaTeX label: name of the experiment
    "tab:mad_results_ext": "table_mad",
    "tab:s_results_ext": "table_groups",
    "tab:ch_results": "table_chomsky",
    "tab:ch_results (commented out in the source)": "table_chomsky",
}


def read_values() -> list[PaperValue]:
    """Read all values, in the paper's order."""
    with resources.files("statemix.paper").joinpath("values.csv").open() as file:
        return [
            PaperValue(
                TABLES[line["table"]],
                line["model"],
                line["task"],
                float(line["accuracy"]),
                "commented out" not in line["table"],
            )
            for line in csv.DictReader(file)
        ]
