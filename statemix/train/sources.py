"""The files of a user that define a run's mixer and task, recorded so that changes are noticed."""

import json
from pathlib import Path

from statemix.config.lm import LMRunConfig
from statemix.config.task import RunConfig
from statemix.files.json_files import read_object
from statemix.files.writing import write_atomically
from statemix.layers import MIXERS
from statemix.runs.layout import CHECKPOINT, FILES, RESULT
from statemix.runs.plugins import hash_sources
from statemix.tasks.task import find_maker

__all__ = ["changed_sources", "check_sources", "sources_of"]


def sources_of(config: RunConfig | LMRunConfig) -> dict[str, str]:
    """The user's files that define the mixer and the task of a run, with a hash of each."""
    mixers = [MIXERS[config.model.mixer]] if config.model.mixer in MIXERS else []
    tasks = [find_maker(config.task)] if isinstance(config, RunConfig) else []
    return hash_sources([*mixers, *tasks])


def changed_sources(config: RunConfig, directory: Path) -> list[str]:
    """The files among them that changed since the run in `directory` started."""
    path = directory / FILES
    advice = "Delete it if the files that define the mixer and the task have not changed."
    recorded = read_object(path, advice) if path.exists() else {}
    current = sources_of(config)
    return sorted(name for name in recorded if recorded[name] != current.get(name))


def check_sources(config: RunConfig, directory: Path, *, resume: bool) -> None:
    """Record the files of a new run; raise if those of a run to resume have changed."""
    if not resume or not any((directory / name).exists() for name in (CHECKPOINT, RESULT)):
        sources = sources_of(config)
        if sources:
            write_atomically(directory / FILES, json.dumps(sources).encode())
        return
    changed = changed_sources(config, directory)
    if changed:
        raise ValueError(
            f"{', '.join(changed)} changed since the run {directory} started. "
            "Train it again with --no-resume, or give another directory as --runs to keep both."
        )
