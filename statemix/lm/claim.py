"""A run's directory: of this run and no other, and at any time of one process alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from statemix.data.tokens import META
from statemix.lm.config import LMRunConfig
from statemix.lm.ranks import Ranks
from statemix.lm.result import CONFIG, METRICS, RESULT, read_config
from statemix.lm.saved import FINAL, check_free
from statemix.train.checkpoint import write_atomically
from statemix.train.lock import Busy, entered

CHECKPOINTS = "checkpoints"


@contextmanager
def claimed(directory: Path, config: LMRunConfig, ranks: Ranks) -> Iterator[None]:
    """Hold `directory` for the run; what the first rank finds against it is an error on every rank."""
    with ExitStack() as stack:
        objection = ranks.first(claim(directory, config, stack) if ranks.rank == 0 else "")
        if objection:
            raise ValueError(objection)
        yield


def claim(directory: Path, config: LMRunConfig, stack: ExitStack) -> str:
    """Lock the directory until `stack` is left, and put the config there; or say why not."""
    objection = objection_to(directory, config)
    if objection:
        return objection
    try:
        stack.enter_context(entered(directory))
    except Busy:
        return f"{directory} is being trained by another process. Wait for it, or choose another --out."
    if not (directory / CONFIG).is_file():
        write_atomically(directory / CONFIG, config.to_json().encode())
    return ""


def objection_to(directory: Path, config: LMRunConfig) -> str:
    """What tells that `directory` is not the run's and not free, empty if nothing does."""
    if (directory / CONFIG).is_file():
        try:
            known = read_config(directory)
        except ValueError as error:
            return str(error)
        if known != config:
            return f"{directory} holds another run (id {known.id}, this one is {config.id}). Choose another --out."
        return objection_to_final(directory / FINAL)
    if (directory / META).is_file():
        return f"{directory} holds a prepared text ({META}). Choose another --out."
    files = [directory / name for name in (METRICS, RESULT)]
    found = [
        path
        for path in (
            *files,
            *directory.glob(f"{CHECKPOINTS}/step-*"),
            *directory.glob(f"{FINAL}/*"),
        )
        if path.exists()
    ]
    if not found:
        return ""
    return f"{directory} has {found[0].relative_to(directory)}, but no {CONFIG} that tells which run it is of. Choose another --out."


def objection_to_final(final: Path) -> str:
    """Why a run could not leave its model in `final`; better said before the training than after it."""
    try:
        check_free(final, replace=True)
    except FileExistsError as error:
        return str(error)
    return ""
