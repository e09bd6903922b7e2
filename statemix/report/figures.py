"""The report's figures that are drawn from the ledger of tasks: titles, captions and charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statemix.pages import Chart, Figure
from statemix.report.basis import what_was_run
from statemix.report.charts import (
    by_examples,
    by_length,
    by_parameters,
    by_recipe,
    by_seed,
    by_size,
    by_states,
)
from statemix.report.gather import Place
from statemix.report.names import size_of
from statemix.report.spectra import on_the_plane
from statemix.report.tradeoff import best_by_size, by_cost

__all__ = ["make_figures"]


@dataclass(frozen=True)
class _Plan:
    """A figure: its title, what it shows, its experiments, and how its charts are made."""

    title: str
    shows: str
    experiments: tuple[str, ...]
    draw: Callable[[Sequence[Place]], tuple[Chart, ...]]
    spread: str = "bars: ± one standard deviation"
    wanted: Callable[[Place], bool] = lambda place: True


_RANGE = "lines: the median seed, bars and shading: from the worst to the best seed"
_FIGURES = {
    "fig_cost": _Plan(
        "Accuracy against operations (the paper's figure 1 C)",
        "Mean accuracy over recall, copying, compression and permutations, against floating-point "
        "operations of one recurrent step by the paper's formulas. Filled: ours. Rings: the "
        "paper's accuracy, drawn at our number of operations, because the paper does not give its "
        "own.",
        ("table_mad", "table_groups"),
        by_cost,
        "their spread is in the tables",
    ),
    "fig_best": _Plan(
        "Best accuracy by m (the paper's figure 1 D)",
        "The same means against block size m (BD-LRU) and order m (H-LRU). Filled: ours. Rings and "
        "dashed lines: the paper's.",
        ("table_mad", "table_groups"),
        best_by_size,
        "their spread is in the tables",
    ),
    "fig_mad": _Plan(
        "Recall, copying and compression by m",
        "Accuracy on each task against block size and order.",
        ("table_mad",),
        by_size,
        wanted=lambda place: size_of(place.row) is not None,
    ),
    "fig_groups": _Plan(
        "Products of permutations by m",
        "Accuracy at sixteen tokens against block size and order.",
        ("table_groups",),
        by_size,
        wanted=lambda place: size_of(place.row) is not None,
    ),
    "fig_chomsky": _Plan(
        "Regular languages and modular arithmetic by m",
        "Accuracy on words of 1 to 40 letters, the lengths of training.",
        ("table_chomsky",),
        by_size,
        wanted=lambda place: "length" not in place.column,
    ),
    "fig_normalisation": _Plan(
        "Normalisation of the gates (the paper's figure 2)",
        "Compression of 16 tokens with 64 states and four gate functions, trained with Muon.",
        ("fig_normalisation",),
        by_size,
        wanted=lambda place: "AdamW" not in place.column,
    ),
    "fig_normalisation_adamw": _Plan(
        "Normalisation of the gates, AdamW",
        "Compression of 8 tokens with 64 states and four gate functions, trained with AdamW.",
        ("fig_normalisation",),
        by_size,
        wanted=lambda place: "AdamW" in place.column,
    ),
    "fig_scaling": _Plan(
        "Number of states",
        "Compression of 16 tokens and selective copying, against the number of states.",
        ("fig_scaling",),
        by_states,
    ),
    "fig_selectivity": _Plan(
        "Selectivity of the gates",
        "Compression of 8 tokens with gates that depend on all channels of the input, on one, or "
        "on none.",
        ("fig_selectivity",),
        by_size,
    ),
    "fig_selectivity_parameters": _Plan(
        "Selectivity of the gates, by parameters",
        "The same runs, and baselines, against the number of parameters.",
        ("fig_selectivity",),
        by_parameters,
    ),
    "fig_start": _Plan(
        "Start of the gates",
        "Compression of 16 tokens and selective copying, with one factor of the start changed at a "
        "time.",
        ("fig_start",),
        by_recipe,
    ),
    "fig_sample_efficiency": _Plan(
        "Number of training sequences",
        "Products of permutations at sixteen tokens, against the number of training sequences.",
        ("fig_sample_efficiency",),
        by_examples,
    ),
    "fig_length": _Plan(
        "Length of the test sequences",
        "Models trained on products of sixteen permutations, tested on longer ones.",
        ("fig_length",),
        by_length,
        _RANGE,
    ),
    "fig_tracking_length": _Plan(
        "Reliable state tracking, by length",
        "Products in S5 with the preset `sharpened`, and the preset without each of its parts.",
        ("tracking_s5",),
        by_length,
        _RANGE,
    ),
    "fig_tracking_seeds": _Plan(
        "Reliable state tracking, by seed",
        "The same runs at sixteen tokens.",
        ("tracking_s5",),
        by_seed,
        "each dot is a run",
    ),
    "fig_depth": _Plan(
        "Depth instead of block size",
        "Products of permutations with one, two and three layers, trained at sixteen tokens. ",
        ("fig_depth",),
        by_length,
        _RANGE,
    ),
    "fig_signed_gates": _Plan(
        "Signed gates",
        "Softmax gates beside signed ones (tanh, linear) at sixteen tokens.",
        ("signed_gates",),
        by_seed,
        "each dot is a run",
    ),
    "fig_seeds": _Plan(
        "Spread over seeds",
        "Products in S3 with and without a first token that marks the beginning (BOS).",
        ("fig_seeds",),
        by_seed,
        "each dot is a run",
    ),
    "fig_eigenvalues": _Plan(
        "Eigenvalues of trained transitions on S5 (the paper's figure 3)",
        "Eigenvalues of sixteen blocks at all time steps.",
        ("fig_eigenvalues",),
        on_the_plane,
    ),
}


def make_figures(places: Sequence[Place]) -> list[Figure]:
    """Each figure that has a measured place."""
    figures = []
    for name, plan in _FIGURES.items():
        own = [
            place
            for place in places
            if place.experiment in plan.experiments and place.measured and plan.wanted(place)
        ]
        charts = tuple(chart for chart in plan.draw(own) if chart.series) if own else ()
        if charts:
            caption = f"{plan.shows} {what_was_run(own, plan.spread)}"
            figures.append(Figure(name, plan.title, caption, charts))
    return figures
