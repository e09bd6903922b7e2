"""Lock a run's directory: it belongs to one run, and to one process at a time."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from statemix.config.lm import LMRunConfig
from statemix.data.tokens import META
from statemix.files.writing import remove_stale, write_atomically
from statemix.lm.ranks import Ranks
from statemix.lm.result import read_config
from statemix.lm.saved import check_free
from statemix.runs.layout import CHECKPOINTS, CONFIG, FINAL, METRICS, RESULT
from statemix.runs.lock import Busy, entered

__all__ = ["claimed"]


@contextmanager
def claimed(directory: Path, config: LMRunConfig, ranks: Ranks) -> Iterator[None]:
    """Lock `directory` for the run; an objection of the first rank is an error on every rank."""
    with ExitStack() as stack:
        objection = ranks.first(_claim(directory, config, stack) if ranks.rank == 0 else "")
        if objection:
            raise ValueError(objection)
        yield


def _claim(directory: Path, config: LMRunConfig, stack: ExitStack) -> str:
    """Lock the directory until `stack` closes, and write the config; or return an objection."""
    objection = _objection(directory, config)
    if objection:
        return objection
    try:
        stack.enter_context(entered(directory))
    except Busy:
        return (
            f"{directory} is being trained by another process. "
            "Wait for it, or choose another --out."
        )
    remove_stale(directory / CHECKPOINTS)
    if not (directory / CONFIG).is_file():
        write_atomically(directory / CONFIG, config.to_json().encode())
    return ""


def _objection(directory: Path, config: LMRunConfig) -> str:
    """Why this run cannot use `directory`; empty if it can."""
    if (directory / CONFIG).is_file():
        try:
            known = read_config(directory)
            check_free(directory / FINAL, replace=True)  # before training, not after it
        except (ValueError, FileExistsError) as error:
            return str(error)
        if known != config:
            return (
                f"{directory} holds another run (id {known.id}, this one is {config.id}). "
                "Choose another --out."
            )
        return ""
    if (directory / META).is_file():
        return f"{directory} holds a prepared text ({META}). Choose another --out."
    patterns = (METRICS, RESULT, f"{CHECKPOINTS}/step-*", f"{FINAL}/*")
    found = [path for pattern in patterns for path in directory.glob(pattern)]
    if not found:
        return ""
    return (
        f"{directory} has {found[0].relative_to(directory)}, but no {CONFIG} that says which run "
        "it belongs to. Choose another --out."
    )
