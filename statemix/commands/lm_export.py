"""`statemix lm export`: a trained language model for Hugging Face."""

from dataclasses import dataclass
from pathlib import Path

import tyro

__all__ = ["Export"]


@dataclass(frozen=True)
class Export:
    """Write a model as a Hugging Face directory, for AutoModelForCausalLM, generate() and lm-eval.

    To load it, `import statemix.hf` first, or pass trust_remote_code=True.
    Needs the extra `hf`.
    """

    directory: tyro.conf.Positional[Path]
    """The model's directory: final/ of a run."""
    out: tyro.conf.Positional[Path]
    """The directory to write; it must not exist."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""

    def run(self) -> None:
        from statemix.runs.plugins import load_files

        load_files(self.files)
        try:
            from statemix.hf.export import export_model
        except ImportError as error:
            raise SystemExit(f"statemix: {error}") from error
        from statemix.lm.saved import load_model

        export_model(load_model(self.directory), self.out)
        print(f"written to {self.out}")
