"""`statemix certify`: prove that a trained model is right on every word of every length."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from statemix.commands.check import check_positive

__all__ = ["Certify"]


@dataclass(frozen=True)
class Certify:
    """Prove that a trained model is right on every word of every length, or find a wrong answer.

    A model whose gates only copy is a finite automaton. The blocks that it can do without are
    removed. Then all states that any word can reach are visited, and each answer is compared with
    the task's, with a bound on rounding errors in float32. If gates or logits are too close, or the
    model has several layers, what is left is trained further first.

    The proved model, its certificate and a picture of the automaton are written to certificate/ in
    the run's directory. The exit code is 0 if the model is proved, else 1. docs/howto/certify.md
    says what is assumed.

    `--preset tracking` of `statemix train` ends with such a proof. Examples:
    `statemix certify runs/<id>`, and to check the files again, from the weights alone,
    `statemix certify --verify runs/<id>/certificate/certificate.json`.
    """

    directory: Annotated[
        tyro.conf.Positional[Path | None],
        tyro.conf.arg(metavar="RUN", help_behavior_hint=""),
    ] = None
    """The run's directory, as printed by `statemix train`."""
    verify: Annotated[Path | None, tyro.conf.arg(metavar="CERTIFICATE", help_behavior_hint="")] = (
        None
    )
    """Instead, check this certificate.json against the weights next to it."""
    words: int | None = None
    """With --verify, also run this many random words in float32, and compare all answers."""
    length: int = 65_536
    """Tokens of each of these words."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own tasks."""

    def run(self) -> None:
        if (self.directory is None) == (self.verify is None):
            raise SystemExit(
                "statemix: certify takes either the directory of a run, or a certificate with "
                "--verify. Try: statemix certify runs/<id>"
            )
        if self.words is not None and self.verify is None:
            raise SystemExit(
                "statemix: --words needs a certificate. Try: statemix certify --verify "
                "runs/<id>/certificate/certificate.json --words 256"
            )
        check_positive("words", 1 if self.words is None else self.words)
        check_positive("length", self.length)
        from statemix.commands.views.certify import (
            print_long_words,
            print_proof,
            print_verification,
        )
        from statemix.runs.plugins import load_files

        load_files(self.files)
        if self.verify is not None:
            saved = print_verification(self.verify)
            if self.words is not None and not print_long_words(saved, self.words, self.length):
                raise SystemExit(1)
        elif self.directory is not None and not print_proof(self.directory):
            raise SystemExit(1)
