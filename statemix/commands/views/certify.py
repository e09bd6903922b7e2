"""What `statemix certify` prints: what was proved about a model, or a word that it gets wrong."""

from pathlib import Path

import torch
from rich.progress import Progress, TaskID
from torch import nn

from statemix.commands.views.console import make_progress, say, warn
from statemix.commands.views.proof import WAYS, describe
from statemix.commands.views.train import warn_of_changes
from statemix.config.task import RunConfig
from statemix.layers import BDLRU
from statemix.proof import (
    Proof,
    prove,
    verify_certificate,
    write_proof,
)
from statemix.proof.long_words import run_long_words
from statemix.proof.saved import CERTIFICATE, SavedCertificate
from statemix.runs.layout import CERTIFICATES
from statemix.tasks import Task, find_task
from statemix.tasks.automaton import Automaton
from statemix.train.trained import load_trained

__all__ = ["print_long_words", "print_proof", "print_verification"]

_WORD = 60  # tokens of a word that are printed


def print_proof(directory: Path) -> bool:
    """Prove the run in `directory` and print the result; True if it is proved."""
    config, task, model = load_trained(directory)
    warn_of_changes(config, directory)
    automaton = _automaton_of(task)
    _check_hard(config, model)
    proof = _prove_with_bar(model, automaton)
    target = directory / CERTIFICATES
    if not proof.certificate.holds:
        _print_failure(config.task, proof, automaton)
        if target.exists():
            warn(f"{target} is from an earlier proof, of other weights.")
        return False
    write_proof(target, proof, config.task, config.task_options)
    say(describe(config.task, proof.certificate, proof.total))
    say(WAYS[proof.way])
    say(f"certificate, weights and a picture of the automaton: {target}")
    say(f"check it again: statemix certify --verify {target / CERTIFICATE}")
    return True


def print_verification(path: Path) -> SavedCertificate:
    """Prove again what a certificate claims, and print it; an error says what differs."""
    path = path / CERTIFICATE if path.is_dir() else path
    saved = verify_certificate(path)
    say(describe(saved.task, saved.certificate))
    say(f"verified: {path} holds for the weights next to it")
    return saved


def print_long_words(saved: SavedCertificate, sequences: int, length: int) -> bool:
    """Run random words, and print how many answers are wrong; True if none is."""
    automaton = _automaton_of(find_task(saved.task, saved.task_options))
    found = run_long_words(saved.model, automaton, sequences=sequences, length=length)
    wrong = "none is wrong" if not found.wrong else f"{found.wrong:,} are wrong"
    say(f"{sequences:,} random words of {length:,} tokens: {found.answers:,} answers, {wrong}")
    return not found.wrong


def _automaton_of(task: Task) -> Automaton:
    if task.automaton is None:
        raise ValueError(
            f"The task {task.name!r} has no automaton to compare with: no finite number of states "
            "answers it at every length. `statemix tasks` lists the tasks that have one."
        )
    return task.automaton


def _check_hard(config: RunConfig, model: nn.Module) -> None:
    """Raise an error if a run that hardens its gates ended before they were hard."""
    mixers = [module for module in model.modules() if isinstance(module, BDLRU)]
    if config.harden and any(mixer.gate != "hardmax" for mixer in mixers):
        raise ValueError(
            "The gates of this run are still soft: its best epoch was before the decay, in which "
            "they become hard. Train with more --epochs, or with larger blocks."
        )


def _prove_with_bar(model: nn.Module, automaton: Automaton) -> Proof:
    """`prove`, with a line that says what is being done."""
    with make_progress() as progress:
        line = progress.add_task("walking through all states", total=None)
        return prove(model, automaton, observe=lambda text: _show(progress, line, text))


def _show(progress: Progress, line: TaskID, text: str) -> None:
    progress.update(line, description=text)


def _print_failure(task: str, proof: Proof, automaton: Automaton) -> None:
    """Why a model is not proved, and a word on which it is wrong."""
    say(f"{task}: not proved. {proof.certificate.reason}")
    if proof.way != "trained":
        say(
            "This is about a smaller copy of the model, without the blocks that it can do "
            "without. No error of the trained model itself was found among its shortest words."
        )
    word = proof.certificate.counterexample
    if word is not None:
        _print_counterexample(proof.model, automaton, word)
    say(f"Try another seed, or larger blocks: `statemix tasks {task}` prints the smallest size.")


def _print_counterexample(model: nn.Module, automaton: Automaton, word: tuple[int, ...]) -> None:
    """Run the model in float32 on the shortest word that it gets wrong."""
    tokens = torch.tensor([word])
    with torch.no_grad():
        answer = int(model(tokens)[0][0, -1].argmax())
    right = int(automaton.solve(tokens.numpy())[0, -1])
    shown = " ".join(map(str, word[:_WORD]))
    more = f" … ({len(word):,} tokens)" if len(word) > _WORD else ""
    say(f"shortest such word: {shown}{more}")
    if answer == right:
        say(f"In float32 the model happens to be right there: {right}; two logits are equal.")
    else:
        say(f"In float32 the model answers {answer} after it; the right answer is {right}.")
