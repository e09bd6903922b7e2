"""`statemix train`, `eval` and `inspect`: one run, from config to numbers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from statemix.commands.check import check_positive

SIZES = {"bdlru": ("n_blocks", "block_size"), "hlru": ("n_channels", "order")}  # what --blocks and --block-size are called there
Tracker = Literal["none", "wandb", "tensorboard", "trackio"]


def read_options(pairs: tuple[str, ...], flag: str) -> dict[str, Any]:
    """key=value pairs; values are JSON where they can be read as such, else text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise SystemExit(f"statemix: {flag} takes key=value, got {pair!r}.")
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text
    return options


@dataclass(frozen=True)
class Train:
    """Train a model around a mixer on a task, and report its accuracy on sequences it has not seen.

    Examples: `statemix train s3 --block-size 3`, `statemix train parity --mixer hlru --block-size 2`,
    `statemix train s5 --mixer lstm --options hidden=64`. A run that was interrupted goes on where it stood.
    """

    task: tyro.conf.Positional[str]
    """compress, copy, recall, s2 .. s6, a3 .. a6, z2 .. z999, parity, cycle_nav, mod_arith, mod_arith_brackets."""
    mixer: str = "bdlru"
    """bdlru, hlru, lstm, conv, lru, mamba, mamba2, deltanet, gated_deltanet, deltaproduct, or one of your own."""
    blocks: int = 32
    """Blocks n of bdlru, channels of hlru."""
    block_size: int = 4
    """Block size m of bdlru, order of hlru."""
    options: tuple[str, ...] = ()
    """Further options of the mixer, as key=value."""
    task_options: tuple[str, ...] = ()
    """Options of the task, as key=value."""
    length: int | None = None
    """Length of training sequences; the task's own if not given."""
    examples: int = 10_000
    """Training sequences."""
    width: int = 64
    """Width of the model."""
    layers: int = 1
    """Layers of the model."""
    channel_mixer: Literal["swiglu", "mlp", "none"] = "swiglu"
    """What stands between the mixers."""
    bos: bool = True
    """Begin sequences with a token of its own, at which a state can become the identity."""
    lr: float = 3e-3
    """Where the cosine begins."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """muon makes updates of matrices inside blocks orthogonal: far fewer steps to recall, copy or compress. adamw: as in the paper."""
    matrix_lr: float = 0.02
    """Where the cosine of these matrices begins, with muon."""
    batch: int = 128
    """Sequences a step."""
    epochs: int = 50
    """Passes over the training sequences, at most."""
    clip: float = 1.0
    """Largest norm of a gradient, 0 for any."""
    warmup: int = 0
    """Steps of linear warm-up."""
    curriculum: tuple[int, ...] = ()
    """Lengths of prefixes to begin with, each until its last position is learnt: 2 3 4 6 9 13 for S5."""
    stage_steps: int = 0
    """Take the next prefix after so many steps at the latest, 0 for when it is learnt."""
    restart_after: int = 0
    """Begin anew with other weights if a stage of the curriculum takes more steps than this, 0 for never."""
    decay: int = 0
    """Keep lr constant until whole sequences are learnt, then let it go down in so many steps and end; 0 for a cosine."""
    sharpen: float = 1.0
    """Factor by which gates grow in every step of the decay: 1.005 makes a solution hold at a hundred times the length."""
    preset: Literal["none", "tracking"] = "none"
    """tracking: curriculum, restarts, decay, sharpening and their lr, set for you; `statemix train s5 --block-size 5 --preset tracking`."""
    protocol: Literal["honest", "paper"] = "honest"
    """honest: chosen on validation, reported on test. paper: as published, chosen on test, no BOS, no early stop (with --epochs 200)."""
    seed: int = 0
    """Everything random follows from it."""
    threads: int = 1
    """Threads torch may use."""
    runs: Path = Path("runs")
    """Where runs are kept, each in a directory named by its config."""
    resume: bool = True
    """Go on from the run's checkpoint, if there is one."""
    track: Tracker = "none"
    """Send metrics to a tracker too."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers or tasks of your own."""

    def run(self) -> None:
        for option in ("blocks", "block_size", "examples", "width", "layers", "batch", "epochs", "threads"):
            check_positive(option, getattr(self, option))
        from statemix.train.command import run_training
        from statemix.train.plugins import load_files

        load_files(self.files)
        run_training(self.run_config(), self.runs, threads=self.threads, resume=self.resume, tracker=self.track)

    def run_config(self) -> Any:
        """The `RunConfig` that these options describe."""
        from statemix.models import ModelConfig
        from statemix.train import RunConfig, paper_protocol, tracking_preset

        sizes = dict(zip(SIZES[self.mixer], (self.blocks, self.block_size), strict=True)) if self.mixer in SIZES else {}
        options = sizes | read_options(self.options, "--options")
        config = RunConfig(
            self.task,
            ModelConfig(self.mixer, options, self.width, self.layers, self.channel_mixer, self.bos),
            read_options(self.task_options, "--task-options"),
            self.length,
            self.examples,
            lr=self.lr,
            batch=self.batch,
            epochs=self.epochs,
            clip=self.clip,
            warmup=self.warmup,
            curriculum=self.curriculum,
            stage_steps=self.stage_steps,
            restart_after=self.restart_after,
            decay=self.decay,
            sharpen=self.sharpen,
            seed=self.seed,
            optimiser=self.optimiser,
            matrix_lr=self.matrix_lr,
        )
        if self.preset == "tracking":
            config = tracking_preset(config)
        return paper_protocol(config) if self.protocol == "paper" else config


@dataclass(frozen=True)
class Eval:
    """Measure a trained run at other lengths, far beyond those it was trained at, and by position."""

    directory: tyro.conf.Positional[Path]
    """A run's directory, as `statemix train` printed it."""
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    """Lengths of fresh test sequences."""
    examples: int = 256
    """Sequences of each length."""
    seed: int = 1_000
    """Of the fresh sequences."""
    out: Path | None = None
    """Append accuracies to this file as JSON lines, by position too."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers or tasks of your own."""

    def run(self) -> None:
        check_positive("examples", self.examples)
        check_positive("lengths", self.lengths)
        from statemix.train.command import print_evaluation
        from statemix.train.plugins import load_files

        load_files(self.files)
        print_evaluation(self.directory, self.lengths, self.examples, self.seed, self.out)


@dataclass(frozen=True)
class Inspect:
    """Show what a run is, how it went, and the eigenvalues of its trained transitions."""

    directory: tyro.conf.Positional[Path]
    """A run's directory."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers or tasks of your own."""

    def run(self) -> None:
        from statemix.analysis.inspect import print_inspection
        from statemix.train.plugins import load_files

        load_files(self.files)
        print_inspection(self.directory)


TrainCommand = Annotated[Train, tyro.conf.subcommand("train")]
EvalCommand = Annotated[Eval, tyro.conf.subcommand("eval")]
InspectCommand = Annotated[Inspect, tyro.conf.subcommand("inspect")]
