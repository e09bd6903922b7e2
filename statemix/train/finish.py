"""The end of a run: its selected weights are evaluated once, and the result is written."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from statemix.proof import Proof, prove, write_proof
from statemix.runs.layout import CERTIFICATES
from statemix.runs.result import write_result
from statemix.tasks import shared_inputs
from statemix.train.metrics import Accuracy, measure_accuracy
from statemix.train.state import EpochReport, Run, RunResult, harden, make_model, save

__all__ = ["finish"]

CURVE_POINTS = 50


def finish(run: Run, directory: Path) -> RunResult:
    """Evaluate the selected weights once, and write checkpoint and result."""
    save(run, directory)
    config = run.config
    chosen = make_model(config, run.task, run.length, attempt=0)
    chosen.load_state_dict(run.best)
    if run.counters.best_is_hard:
        harden(chosen)
    validation = measure_accuracy(chosen, run.data["validation"], run.task.classes)
    test = measure_accuracy(chosen, run.data["test"], run.task.classes)
    proof = _write_proof(run, chosen, directory)
    result = RunResult(
        id=config.id,
        steps=run.counters.step,
        epochs=len(run.reports),
        best_epoch=run.counters.best_epoch,
        restarts=run.counters.attempt,
        parameters=sum(p.numel() for p in run.model.parameters()),
        train=run.reports[run.counters.best_epoch].train,
        validation=_as_numbers(validation),
        test=_as_numbers(test),
        shared_inputs=shared_inputs(run.data),
        seconds=run.counters.seconds,
        cpu_seconds=run.counters.cpu_seconds,
        held=run.counters.ended if config.hold else None,
        curve=_curve(run.reports),
        certificate=None if proof is None else _summary(proof),
    )
    write_result(directory, result)
    return result


def _write_proof(run: Run, chosen: nn.Module, directory: Path) -> Proof | None:
    """Write the proof with which the run ended; it is repeated if the run was interrupted since."""
    if not (run.config.certify and run.counters.ended):
        return None
    assert run.task.automaton is not None
    proof = run.proof or prove(chosen.eval(), run.task.automaton)
    write_proof(directory / CERTIFICATES, proof, run.config.task, run.config.task_options)
    return proof


def _summary(proof: Proof) -> dict[str, Any]:
    """A proof as JSON."""
    found = proof.certificate
    return {
        **asdict(found),
        "blocks": list(found.blocks),
        "counterexample": None,  # it holds
        "way": proof.way,
        "total": list(proof.total),
    }


def _curve(reports: list[EpochReport]) -> list[list[float]]:
    """Steps and validation accuracies of evenly spaced epochs; the last one is among them."""
    every = math.ceil(len(reports) / CURVE_POINTS)
    chosen = reports[::-1][::every][::-1]
    return [[report.step, round(report.validation, 4)] for report in chosen]


def _as_numbers(accuracy: Accuracy) -> dict[str, float]:
    return {"token": accuracy.token, "macro": accuracy.macro, "sequence": accuracy.sequence}
