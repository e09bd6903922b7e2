"""The files of a proof: weights, certificate, and a drawing of the automaton."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statemix.files.writing import write_atomically
from statemix.proof.picture import draw_automaton
from statemix.proof.prove import Proof
from statemix.proof.saved import save_certificate
from statemix.tasks import find_task

__all__ = ["PICTURE", "write_proof"]

PICTURE = "automaton.svg"


def write_proof(
    directory: Path, proof: Proof, task: str, task_options: Mapping[str, Any] | None = None
) -> Path:
    """Write a proof that holds to `directory`; return the path of its certificate."""
    path = save_certificate(directory, proof.model, proof.certificate, task, task_options)
    own = find_task(task, task_options)
    picture = draw_automaton(proof.model, task, own.automaton, own.letters)
    write_atomically(path.with_name(PICTURE), picture.encode())
    return path
