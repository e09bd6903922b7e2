"""`statemix train`: the options of one run."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from statemix.commands.check import check_positive

SIZES = {
    "bdlru": ("n_blocks", "block_size"),
    "hlru": ("n_channels", "order"),
}  # what --blocks and --block-size are called there
DEFAULTS: dict[str, Any] = {"lr": 3e-3, "clip": 1.0}  # where RunConfig has others
AIDS = ("warmup", "curriculum", "restart_after", "decay", "sharpen", "hold", "matrix_lr")
Tracker = Literal["none", "wandb", "tensorboard", "trackio"]


def read_options(pairs: tuple[str, ...], flag: str) -> dict[str, Any]:
    """key=value pairs; values are JSON where they can be read as such, True and False as in Python, else text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise SystemExit(f"statemix: {flag} takes key=value, got {pair!r}.")
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = {"True": True, "False": False}.get(text, text)
    return options


@dataclass(frozen=True)
class Train:
    """Train a model around a mixer on a task, and report its accuracy on sequences it has not seen.

    Examples: `statemix train s3 --block-size 3`, `statemix train parity --block-size 2`,
    `statemix train recall --blocks 64 --optimiser muon --batch 32`, `statemix train s3 --mixer lstm --options hidden=64`,
    `statemix train s5 --block-size 5 --examples 100000 --preset tracking`. A run that was interrupted goes on where it stood.
    """

    task: tyro.conf.Positional[str]
    """compress, copy, recall, s2 .. s6, a3 .. a6, z2 .. z999, parity, cycle_nav, mod_arith, mod_arith_brackets."""
    mixer: str = "bdlru"
    """bdlru, hlru, lstm, conv, lru, mamba, mamba2, deltanet, gated_deltanet, deltaproduct, or one of your own."""
    blocks: int | None = None
    """Blocks n of bdlru, channels of hlru: 32 if not given."""
    block_size: int | None = None
    """Block size m of bdlru, order of hlru: 4 if not given."""
    options: tuple[str, ...] = ()
    """Further options of the mixer, as key=value; docs/suite.md lists them."""
    task_options: tuple[str, ...] = ()
    """Options of the task, as key=value; docs/suite.md lists them."""
    length: int | None = None
    """Length of training sequences; the task's own if not given."""
    examples: int = 10_000
    """Training sequences."""
    width: int = 64
    """Width of the model."""
    layers: int = 1
    """Layers of the model."""
    channel_mixer: Literal["swiglu", "mlp", "none"] | None = None
    """What stands between the mixers: swiglu if not given, none with the preset."""
    bos: bool = True
    """Begin sequences with a token of its own, at which a state can become the identity."""
    lr: float | None = None
    """Where the cosine begins: 3e-3 if not given, 2e-2 with the preset."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """muon makes updates of matrices inside blocks orthogonal: far fewer steps to recall, copy or compress. adamw: as in the paper."""
    matrix_lr: float | None = None
    """Where the cosine of these matrices begins, with muon: 0.02 if not given."""
    weight_decay: float = 0.0
    """By how much of the rate weights shrink in each step. 0: as in the paper's code."""
    batch: int = 128
    """Sequences a step."""
    epochs: int = 50
    """Passes over the training sequences, at most."""
    clip: float | None = None
    """Largest norm of a gradient, 0 for any: 1 if not given."""
    warmup: int | None = None
    """Steps of linear warm-up: none if not given, 100 with the preset."""
    curriculum: tuple[int, ...] | None = None
    """Lengths of prefixes to begin with, each until its last position is learnt: 2 3 4 6 9 13 for S5."""
    stage_steps: int = 0
    """Take the next prefix after so many steps at the latest, 0 for when it is learnt."""
    restart_after: int | None = None
    """Begin anew with other weights if a stage of the curriculum takes more steps than this, 0 for never."""
    decay: int | None = None
    """Keep lr constant until whole sequences are learnt, then let it go down in so many steps and end; 0 for a cosine."""
    sharpen: float | None = None
    """Factor by which gates grow in every step of the decay: 1.005 makes a solution hold at a hundred times the length."""
    hold: int | None = None
    """Begin anew if, when the decay ends, any of many fresh sequences of this length, never trained on, ends wrong; 0 to end anyhow."""
    preset: Literal["none", "tracking"] = "none"
    """tracking: curriculum, restarts, decay, sharpening, hold and their lr, set for you, but for what you set yourself."""
    protocol: Literal["honest", "paper"] = "honest"
    """honest: chosen on validation, reported on test. paper: as published, chosen on test, no BOS, no aids (with --epochs 200)."""
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
        for option in (
            "blocks",
            "block_size",
            "examples",
            "width",
            "layers",
            "batch",
            "epochs",
            "threads",
        ):
            if getattr(self, option) is not None:
                check_positive(option, getattr(self, option))
        from statemix.commands.views.train import run_training
        from statemix.train.plugins import load_files

        load_files(self.files)
        run_training(
            self.run_config(),
            self.runs,
            threads=self.threads,
            resume=self.resume,
            tracker=self.track,
        )

    def run_config(self) -> Any:
        """The `RunConfig` that these options describe: what is given stands over a preset, and that over the defaults."""
        from statemix.models import ModelConfig
        from statemix.train import RunConfig, paper_protocol, tracking_preset

        self.check_choices()
        given = {
            name: getattr(self, name)
            for name in (*DEFAULTS, *AIDS)
            if getattr(self, name) is not None
        }
        model = ModelConfig(
            self.mixer,
            self.mixer_options(),
            self.width,
            self.layers,
            self.channel_mixer or "swiglu",
            self.bos,
        )
        task_options = read_options(self.task_options, "--task-options")
        config = RunConfig(self.task, model, task_options, self.length, self.examples, **DEFAULTS)
        if self.preset == "tracking":
            config = tracking_preset(config)
            model = replace(
                config.model,
                bos=self.bos,
                channel_mixer=self.channel_mixer or config.model.channel_mixer,
            )
            config = replace(config, model=model)
        config = replace(config, **given)
        if self.protocol == "paper":
            config = paper_protocol(config)
        sizes = replace(
            config,
            batch=self.batch,
            epochs=self.epochs,
            stage_steps=self.stage_steps,
            seed=self.seed,
        )
        return replace(sizes, optimiser=self.optimiser, weight_decay=self.weight_decay)

    def mixer_options(self) -> dict[str, Any]:
        """--blocks and --block-size, by the names that the mixer has for them, and --options."""
        sizes = dict(
            zip(SIZES.get(self.mixer, ()), (self.blocks or 32, self.block_size or 4), strict=False)
        )
        return sizes | read_options(self.options, "--options")

    def check_choices(self) -> None:
        """Say so where an option would be passed over."""
        own_sizes = [name for name in ("blocks", "block_size") if getattr(self, name) is not None]
        if own_sizes and self.mixer not in SIZES:
            raise SystemExit(
                f"statemix: {flags(own_sizes)} are sizes of {', '.join(SIZES)}; give those of {self.mixer!r} with --options."
            )
        if self.matrix_lr is not None and self.optimiser != "muon":
            raise SystemExit(
                "statemix: --matrix-lr is a rate of --optimiser muon. Add that, or leave it out."
            )
        if self.protocol == "paper":
            aids = [
                name
                for name in ("clip", *AIDS)
                if getattr(self, name) is not None and name != "matrix_lr"
            ]
            others = {"preset": self.preset == "tracking", "optimiser": self.optimiser == "muon"}
            others |= {"stage_steps": self.stage_steps > 0, "weight_decay": self.weight_decay != 0}
            aids += [name for name, is_set in others.items() if is_set]
            if aids:
                raise SystemExit(
                    f"statemix: --protocol paper trains without {flags(aids)}. Leave one of them out."
                )


def flags(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
