"""What a verdict reads: means and shares of the measured places, and what these rest on."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from statemix.report.basis import percent, share_of
from statemix.report.gather import Measured, Place, result_of
from statemix.report.language import LanguageRun

__all__ = ["Evidence"]


@dataclass
class Evidence:
    """The measured places, and which of them a rule has read."""

    places: dict[tuple[str, str, str], Place]
    language: Sequence[LanguageRun]
    used: list[tuple[str, Measured]] = field(default_factory=list)
    """The column and the runs of each."""

    def mean(self, experiment: str, row: str, column: str) -> float:
        """Our mean at a place, or NaN if it has not been run."""
        place = self.places.get((experiment, row, column))
        if place is None or place.best is None:
            return math.nan
        self.used.append((column, place.best))
        return place.best.choice.mean

    def alike(self, experiment: str, rows: Sequence[str], column: str) -> dict[str, float]:
        """Our means of several rows in one recipe: of those that all have, the best on average."""
        places = [self.places.get((experiment, row, column)) for row in rows]
        by_recipe = [{m.recipe: m for m in place.measured} if place else {} for place in places]
        shared = [recipe for recipe in by_recipe[0] if all(recipe in each for each in by_recipe)]
        if not shared:
            return dict.fromkeys(rows, math.nan)
        recipe = max(
            shared, key=lambda r: statistics.mean(each[r].choice.validation for each in by_recipe)
        )
        self.used += [(column, each[recipe]) for each in by_recipe]
        means = [each[recipe].choice.mean for each in by_recipe]
        return dict(zip(rows, means, strict=True))

    def share(self, row: str, name: str) -> float:
        """A measured share of eigenvalues."""
        self.mean("fig_eigenvalues", row, "S5-100k")
        place = self.places.get(("fig_eigenvalues", row, "S5-100k"))
        if place is None or place.best is None:
            return math.nan
        return float(result_of(place.best.chosen)["measured"][name])

    @property
    def seeds(self) -> list[int]:
        """The numbers of seeds of what was read, in order."""
        return sorted(measured.choice.seeds for _, measured in self.used)

    def basis(self) -> str:
        """Seeds, width and training of what was read."""
        runs = [(column, entry) for column, measured in self.used for entry in measured.entries]
        if not runs:
            return "seeds in brackets"
        widths = sorted({entry.config["model"]["width"] for _, entry in runs})
        steps = statistics.median(result_of(entry)["steps"] for _, entry in runs)
        shares = [s for column, entry in runs if (s := share_of(entry, column)) is not None]
        training = f", {percent(statistics.median(shares))} of the paper's" if shares else ""
        seeds = _range(self.seeds)
        return f"n {seeds}, width {_range(widths)}, median {steps:,.0f} steps{training}"


def _range(values: Sequence[int]) -> str:
    return f"{values[0]}" if values[0] == values[-1] else f"{values[0]}–{values[-1]}"
