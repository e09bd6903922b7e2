"""`statemix lm train`: the options of a language-model run."""

from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from statemix.commands.check import check_positive
from statemix.commands.options import given_options, option_fields
from statemix.commands.train import Tracker, read_options
from statemix.config.lm import Execution, LMRunConfig
from statemix.config.model import LMConfig

__all__ = ["LMTrain"]


@dataclass(frozen=True)
class _LMTrainOptions:
    """Options of `statemix lm train` that are not fields of a config."""

    data: tyro.conf.Positional[Path]
    """A directory that `statemix lm prepare` wrote."""
    out: Path | None = None
    """Directory of the run; runs/lm/<name and id> if not given."""
    preset: str = "2m-bdlru-m4"
    """Model sizes by name: see `statemix lm presets`. The vocabulary is the data's."""
    options: tuple[str, ...] = ()
    """Options of the mixer, as key=value."""
    mixers: tuple[str, ...] = ()
    """Mixers of consecutive layers, repeated over the depth, such as `bdlru bdlru
    attention:heads=8,window=64`; the name of --mixer has --options. (default: the preset's)"""
    minutes: float | None = None
    """Instead of --steps: train for as many steps as this machine can run in this many minutes."""
    peak_tflops: float = 0.0
    """Peak TFLOP/s of a rank, for the utilisation (0: time a matrix product)."""
    threads: int = 1
    """Number of threads that torch may use on each rank."""
    compare_ngram: bool = False
    """For comparison, also train Kneser–Ney models of order 5 on tokens and bytes of the text."""
    track: Tracker = "none"
    """Also send metrics to this experiment tracker."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""

    def run(self) -> None:
        check_positive("threads", self.threads)
        if self.minutes is not None and not self.minutes > 0:
            raise SystemExit(f"statemix: --minutes must be above zero, got {self.minutes}.")
        execution = self.execution()
        from statemix.commands.views.lm_train import train_with_progress
        from statemix.data import open_data
        from statemix.runs.plugins import load_files

        load_files(self.files)
        data = open_data(self.data)
        train_with_progress(
            self.run_config(data),
            execution,
            data,
            self.out,
            minutes=self.minutes,
            threads=self.threads,
            tracker=self.track,
            compare_ngram=self.compare_ngram,
        )

    def run_config(self, data: Any) -> LMRunConfig:
        """The config that the options describe."""
        from statemix.lm.step import digest

        given = given_options(self, LMRunConfig)
        del given["data"]
        return LMRunConfig(self._model_config(data.meta.vocab), digest(data), **given)

    def execution(self) -> Execution:
        """The execution options."""
        return Execution(**given_options(self, Execution), peak_flops=1e12 * self.peak_tflops)

    def _model_config(self, vocab: int) -> LMConfig:
        """The preset, with the sizes that the options change."""
        from statemix.models.presets import find_preset

        preset = find_preset(self.preset)
        given = given_options(self, LMConfig)
        given["mixers"] = tuple(_read_mixer(text) for text in self.mixers)
        if not given["mixers"] and "mixer" not in given:
            del given["mixers"]
        same_mixer = given.get("mixer", preset.mixer) == preset.mixer
        kept = preset.options if same_mixer else {}
        given["options"] = {**kept, **read_options(self.options, "--options")}
        return replace(preset, vocab=vocab, **given)


def _read_mixer(text: str) -> str | dict[str, Any]:
    """A mixer of the pattern: its name, alone or with options after a colon."""
    name, colon, options = text.partition(":")
    if not colon:
        return name
    return {"mixer": name, **read_options(tuple(options.split(",")), "--mixers")}


LMTrain: Any = make_dataclass(
    "LMTrain",
    [
        *option_fields(LMConfig, ("vocab", "options", "mixers"), default="the preset's"),
        *option_fields(LMRunConfig, ("model", "data", "version")),
        *option_fields(Execution, ("peak_flops",)),
    ],
    bases=(_LMTrainOptions,),
    frozen=True,
    namespace={
        "__doc__": """Train a language model on prepared text, in one process or many.

    Examples: `statemix lm train data/sotu --tie --minutes 10 --compare-ngram`,
    `torchrun --nproc-per-node 8 -m statemix lm train data/edu --preset 212m-bdlru-m4
    --parallel fsdp --bf16 --length 2048 --batch 256`.
    Interrupted runs resume from their last checkpoint, even with another number of ranks.
    """
    },
)
