"""`statemix lm`: language models, from presets to text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from statemix.commands.check import check_positive
from statemix.commands.lm_train import LMTrainCommand, NGramStep, PrepareCommand


@dataclass(frozen=True)
class Presets:
    """List the models that have a name, with their parameters and states."""

    def run(self) -> None:
        from statemix.lm.command import print_presets

        print_presets()


@dataclass(frozen=True)
class Generate:
    """Write on from a prompt, a token at a time as it comes; the thousandth takes no longer than the first.

    Examples: `statemix lm generate runs/mine/final "Fellow citizens"`, `... --temperature 0` for the likeliest text.
    """

    directory: tyro.conf.Positional[Path]
    """A model's directory: config.json, model.safetensors, tokenizer.json, as training leaves it in final/."""
    prompt: tyro.conf.Positional[str] = ""
    """What to go on from; nothing begins a new text."""
    tokens: int = 200
    """Tokens to write, at most."""
    temperature: float = 0.8
    """0 takes the likeliest token; below 1 sharpens, above 1 flattens."""
    top_k: int = 0
    """Choose among the k likeliest tokens, 0 for all."""
    top_p: float = 0.95
    """Choose among the likeliest tokens that together have this probability."""
    seed: int = 0
    """Of the choices."""
    stop_at_end: bool = True
    """Stop where the model ends a text."""
    threads: int = 1
    """Threads torch may use."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers of your own."""

    def run(self) -> None:
        check_positive("tokens", self.tokens)
        check_positive("threads", self.threads)
        import torch

        from statemix.lm.command import print_generated
        from statemix.lm.generate import Sampling
        from statemix.runs.plugins import load_files

        torch.set_num_threads(self.threads)
        load_files(self.files)
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed)
        print_generated(
            self.directory, self.prompt, self.tokens, sampling, stop_at_end=self.stop_at_end
        )


@dataclass(frozen=True)
class LMEval:
    """Measure perplexity on texts by position, far beyond the training length, and bits per byte.

    The tokens of the texts are counted, not their ends, which training's own validation predicts too: its bits per byte are a little more.

    Examples: `statemix lm eval runs/mine/final data/mine`, `statemix lm eval runs/mine/final held_out.txt --length 8192`.
    """

    directory: tyro.conf.Positional[Path]
    """A model's directory, as training leaves it in final/."""
    texts: tyro.conf.Positional[tuple[Path, ...]]
    """Files of text, JSON lines or Parquet, or directories that `statemix lm prepare` wrote, whose held-out documents are taken."""
    field: str = "text"
    """What the text is called in JSON lines and Parquet."""
    length: int | None = None
    """Tokens of a stretch, each read from a fresh state; four times the training length if not given."""
    batch: int = 8
    """Stretches at a time."""
    threads: int = 1
    """Threads torch may use."""
    out: Path | None = None
    """Append what was measured to this file as a JSON line."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers of your own."""

    def run(self) -> None:
        check_positive("batch", self.batch)
        check_positive("threads", self.threads)
        if self.length is not None:
            check_positive("length", self.length)
        if not self.texts:
            raise SystemExit("statemix: lm eval needs at least one text file.")
        import torch

        from statemix.lm.command import print_perplexity
        from statemix.runs.plugins import load_files

        torch.set_num_threads(self.threads)
        load_files(self.files)
        print_perplexity(self.directory, self.texts, self.length, self.batch, self.out, self.field)


@dataclass(frozen=True)
class Export:
    """Write a model as a Hugging Face directory, for AutoModelForCausalLM, generate() and lm-eval.

    Load it with `import statemix.hf` first, or with trust_remote_code=True. Needs the extra: pip install 'statemix[hf]'.
    """

    directory: tyro.conf.Positional[Path]
    """A model's directory, as training leaves it in final/."""
    out: tyro.conf.Positional[Path]
    """The directory to write, which must not exist."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers of your own."""

    def run(self) -> None:
        from statemix.runs.plugins import load_files

        load_files(self.files)
        try:
            from statemix.hf.export import export_model
        except ImportError as error:
            raise SystemExit(f"statemix: {error}") from error
        from statemix.lm.checkpoint import load_model

        export_model(load_model(self.directory), self.out)
        print(f"written to {self.out}")


Step = (
    Annotated[Presets, tyro.conf.subcommand("presets")]
    | PrepareCommand
    | LMTrainCommand
    | NGramStep
    | Annotated[Generate, tyro.conf.subcommand("generate")]
    | Annotated[LMEval, tyro.conf.subcommand("eval")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)


@dataclass(frozen=True)
class LM:
    """Language models: choose one, train it, write with it, measure it, hand it to Hugging Face."""

    what: Annotated[tyro.conf.OmitSubcommandPrefixes[Step], tyro.conf.arg(name="")]

    def run(self) -> None:
        self.what.run()


LMCommand = Annotated[LM, tyro.conf.subcommand("lm")]
