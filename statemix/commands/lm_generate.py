"""`statemix lm generate`: text from a trained language model."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["Generate"]


@dataclass(frozen=True)
class Generate:
    """Continue a prompt token by token; every token takes the same time.

    Examples: `statemix lm generate runs/mine/final "Fellow citizens"`, and with `--temperature 0`
    for greedy decoding.
    """

    directory: tyro.conf.Positional[Path]
    """The model's directory: final/ of a run."""
    prompt: tyro.conf.Positional[str] = ""
    """The text to continue; without it, a new text starts."""
    tokens: int = 200
    """Largest number of tokens to generate."""
    temperature: float = 0.8
    """0 takes the most likely token; below 1 sharpens the distribution, above 1 flattens it."""
    top_k: int = 0
    """Sample from the k most likely tokens (0: all)."""
    top_p: float = 0.95
    """Sample from the most likely tokens whose probabilities add up to this."""
    seed: int = 0
    """Seed of the random numbers."""
    stop_at_end: bool = True
    """Stop at the end-of-text token."""
    threads: int = 1
    """Number of threads that torch may use."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""

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
