"""`statemix leaderboard`: standings of mixers in state tracking, and runs of more of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from statemix.commands.check import check_positive
from statemix.commands.train import read_options
from statemix.config.model import ChannelMixer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statemix.config.task import RunConfig
    from statemix.leaderboard import Contestant, Protocol

__all__ = ["Leaderboard"]


@dataclass(frozen=True)
class Leaderboard:
    """Compare mixers in state tracking, by a named protocol and on two tracks.

    Without --mixer or --entries, the standings in the ledger are printed, beside the published
    numbers. To enter a mixer of your own, register it in a file and run
    `statemix leaderboard --files my_mixer.py --mixer mine --options hidden=64`.

    Runs are on the open track: growing prefixes with their answers, restarts, a fixed number of
    steps, and the learning rate that is best on validation. --track published trains as published.
    """

    protocol: Literal["slice", "deltaproduct"] = "slice"
    """slice: parity, even pairs, cycle navigation and modular arithmetic. deltaproduct: S3, S4, A5
    and S5."""
    mixer: str | None = None
    """Run this mixer."""
    options: tuple[str, ...] = ()
    """Options of that mixer, as key=value."""
    channel_mixer: ChannelMixer = "swiglu"
    """The feed-forward layer after that mixer."""
    entries: tuple[str, ...] = ()
    """Run the missing cells of these built-in entries, given as patterns: 'BD-LRU*' LSTM."""
    track: Literal["open", "published"] = "open"
    """open: growing prefixes, and the best of two learning rates. published: the protocol's own
    training, up to 100,001 steps of new sequences for each run."""
    steps: int = 0
    """On the published track, train for this many steps (0: the protocol's number)."""
    tasks: tuple[str, ...] = ()
    """Run only these tasks."""
    rates: tuple[float, ...] = ()
    """Run only these learning rates (default: 0.02 and 0.003)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Also write the tables: a new .html page, or the regions of an existing .md document."""
    ledger: Path = Path("results/ledger.jsonl")
    """The file that results are appended to."""
    runs: Path = Path("runs")
    """Directory of all runs; a run has a subdirectory named by its id."""
    workers: int = 1
    """Number of runs at a time, with one thread each."""

    def run(self) -> None:
        check_positive("workers", self.workers)
        if self.options and self.mixer is None:
            raise SystemExit(
                "statemix: --options are those of --mixer. Give it, or leave them out."
            )
        from statemix.commands.views.leaderboard import print_boards, run_cells
        from statemix.leaderboard import Contestant, find_entries, find_protocol
        from statemix.runs.plugins import load_files

        load_files(self.files)
        protocol = find_protocol(self.protocol)
        contestants = find_entries(self.entries)
        if self.mixer is not None:
            options = read_options(self.options, "--options")
            contestants.append(Contestant(self.mixer, options, self.channel_mixer))
        configs = [config for one in contestants for config in self._cells(protocol, one)]
        complete = run_cells(configs, self.ledger, self.runs, self.files, self.workers)
        print_boards(protocol, self.ledger, self.out)
        if not complete:
            raise SystemExit(1)

    def _cells(self, protocol: "Protocol", contestant: "Contestant") -> "Iterator[RunConfig]":
        """The runs of a contestant on the chosen track."""
        from statemix.leaderboard import RATES, cells, published_cells

        if self.track == "published":
            if self.rates:
                raise SystemExit("statemix: the published track has one rate. Leave --rates out.")
            return published_cells(
                protocol, contestant, tasks=self.tasks, seeds=self.seeds, steps=self.steps
            )
        if self.steps:
            raise SystemExit(
                "statemix: --steps are those of --track published. Leave one of them out."
            )
        rates = self.rates or RATES
        return cells(protocol, contestant, tasks=self.tasks, rates=rates, seeds=self.seeds)
