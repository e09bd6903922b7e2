"""`statemix lm generate`: text from a trained language model."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["Generate"]


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

        from statemix.commands.views.lm_generate import print_generated
        from statemix.lm.generate import Sampling
        from statemix.runs.plugins import load_files

        torch.set_num_threads(self.threads)
        load_files(self.files)
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed)
        print_generated(
            self.directory, self.prompt, self.tokens, sampling, stop_at_end=self.stop_at_end
        )
