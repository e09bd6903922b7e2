"""`statemix lm train`: the options of a language-model run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from statemix.commands.check import check_positive
from statemix.commands.train import Tracker, read_options


@dataclass(frozen=True)
class LMTrain:
    """Train a language model on prepared text, in one process or many.

    Examples: `statemix lm train data/sotu --tie --minutes 10 --compare-ngram`,
    `torchrun --nproc-per-node 8 -m statemix lm train data/edu --preset 212m-bdlru-m4 --parallel fsdp --bf16 --length 2048 --batch 256`.
    A run that was interrupted goes on where it stood, on another number of ranks too.
    """

    data: tyro.conf.Positional[Path]
    """A directory that `statemix lm prepare` wrote."""
    out: Path | None = None
    """The run's directory; runs/lm/ and an id if not given."""
    preset: str = "2m-bdlru-m4"
    """Sizes of the model, by name: see `statemix lm presets`. The vocabulary is the data's."""
    mixer: str | None = None
    """Another mixer: bdlru, hlru, lstm, conv, lru, mamba, mamba2, deltanet, gated_deltanet, deltaproduct, or your own; see --options."""
    options: tuple[str, ...] = ()
    """Options of the mixer, as key=value."""
    width: int | None = None
    """Another width."""
    layers: int | None = None
    """Another number of layers."""
    tie: bool = False
    """One matrix for embedding and head."""
    length: int = 256
    """Tokens of a sequence."""
    batch: int = 8
    """Sequences of a step, over all ranks."""
    steps: int = 1000
    """Steps of the optimiser."""
    minutes: float | None = None
    """As many steps as fit into so many minutes on this machine, by the time that the first few take, instead of --steps."""
    lr: float = 4e-3
    """Where the cosine begins, after the warm-up."""
    min_lr: float = 1e-5
    """Where it ends."""
    warmup: float = 0.05
    """Share of the steps in which the learning rate rises from zero."""
    optimiser: Literal["muon", "adamw"] = "muon"
    """muon makes updates of matrices inside blocks orthogonal: fewer steps to the same loss, each a bit longer. adamw: as in the paper."""
    matrix_lr: float = 0.02
    """The learning rate of those matrices, where the others have --lr."""
    weight_decay: float = 0.1
    """Of matrices; biases and norms have none."""
    clip: float = 1.0
    """Largest norm of a gradient, 0 for any."""
    reset: bool = True
    """Begin every document with a fresh state; --no-reset lets states go from one to the next."""
    bf16: bool = False
    """Compute in bfloat16; weights, states and sums stay in float32."""
    seed: int = 0
    """Everything random follows from it."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """What ranks hold: ddp, the whole model each; fsdp, a share of it (FSDP2)."""
    context: int = 1
    """Ranks that share each sequence."""
    accumulate: int = 1
    """Parts that a rank's batch is computed in."""
    compile: bool = False
    """Let torch.compile fuse each block."""
    checkpointing: bool = False
    """Compute blocks again in the backward pass: less memory, a third more time."""
    save_every: int = 200
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints that are kept."""
    validate_every: int = 0
    """Steps between validations, 0 for one at the end."""
    validation_tokens: int = 0
    """Tokens to validate on, 0 for all that are held out."""
    timeout: float = 50.0
    """Seconds after which a rank that waits for another gives up."""
    peak_tflops: float = 0.0
    """Of a rank, for utilisation; a matrix product is timed if 0."""
    threads: int = 1
    """Threads torch may use, on each rank."""
    compare_ngram: bool = False
    """Train Kneser–Ney models of order 5 on the same text too, over its tokens and over its bytes, and print theirs beside."""
    track: Tracker = "none"
    """Send metrics to a tracker too."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers of your own."""

    def run(self) -> None:
        for option in (
            "length",
            "batch",
            "steps",
            "context",
            "accumulate",
            "save_every",
            "keep",
            "threads",
        ):
            check_positive(option, getattr(self, option))
        if self.minutes is not None and not self.minutes > 0:
            raise SystemExit(f"statemix: --minutes must be above zero, got {self.minutes}.")
        from statemix.commands.views.lm_train import train_with_progress
        from statemix.data import open_data
        from statemix.train.plugins import load_files

        load_files(self.files)
        data = open_data(self.data)
        train_with_progress(
            self.run_config(data),
            self.execution(),
            data,
            self.out,
            minutes=self.minutes,
            threads=self.threads,
            tracker=self.track,
            compare_ngram=self.compare_ngram,
        )

    def run_config(self, data: Any) -> Any:
        """The `LMRunConfig` that these options describe."""
        from statemix.lm.config import LMRunConfig
        from statemix.lm.trainer import digest

        return LMRunConfig(
            self.model_config(data.meta.vocab, read_options(self.options, "--options")),
            digest(data),
            self.length,
            self.batch,
            self.steps,
            self.lr,
            self.min_lr,
            self.warmup,
            self.weight_decay,
            clip=self.clip,
            reset=self.reset,
            bf16=self.bf16,
            seed=self.seed,
            optimiser=self.optimiser,
            matrix_lr=self.matrix_lr,
        )

    def execution(self) -> Any:
        """The `Execution` that these options describe."""
        from statemix.lm.config import Execution

        return Execution(
            self.parallel,
            self.context,
            self.accumulate,
            self.compile,
            self.checkpointing,
            self.save_every,
            self.keep,
            self.validate_every,
            self.validation_tokens,
            self.timeout,
            1e12 * self.peak_tflops,
        )

    def model_config(self, vocab: int, options: dict[str, Any]) -> Any:
        """The `LMConfig` that these options describe."""
        from dataclasses import replace

        from statemix.models.presets import find_preset

        preset = find_preset(self.preset)
        mixer = preset.mixer if self.mixer is None else self.mixer
        kept = preset.options if mixer == preset.mixer else {}
        sizes = {
            name: value
            for name, value in (("width", self.width), ("layers", self.layers))
            if value is not None
        }
        return replace(
            preset, vocab=vocab, mixer=mixer, options={**kept, **options}, tie=self.tie, **sizes
        )
