"""Distributed checkpoints: all ranks write one together in the background; any number can read it.

    checkpoints/step-00000200/         safetensors files with weights and moments, and state.json,
                                       which has their hashes
    checkpoints/step-00000200.part     a checkpoint that is being written, which readers ignore

`Store.save` copies the tensors and returns; a thread writes the copy while training continues. When
every rank has written its share, the directory gets its final name, and only the newest few
checkpoints are kept. Nothing is pickled.
"""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from statemix.config.fields import NON_NEGATIVE
from statemix.files.json_files import Damaged, read_as
from statemix.files.tensors import dtypes_in, hash_of_file
from statemix.files.writing import write_atomically

__all__ = ["SavedState", "Store"]

_STATE = "state.json"
_PART = ".part"
_WEIGHTS = ".safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW; matrices that Muon updates have only the first


def _tensors_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and moments by name: the full tensors, or this rank's shards."""
    tensors = {}
    matrices = {p for group in optimiser.param_groups if group["matrices"] for p in group["params"]}
    for name, p in model.named_parameters():
        state = optimiser.state[p]
        for moment in _MOMENTS[:1] if p in matrices else _MOMENTS:
            if moment not in state:
                state[moment] = torch.zeros_like(p)
                state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            tensors[f"{moment}.{name}"] = state[moment]
        tensors[f"model.{name}"] = p.detach()
    return tensors


@dataclass(frozen=True)
class SavedState:
    """The file state.json; checkpoints of the first versions have no hashes of their files."""

    step: Annotated[int, NON_NEGATIVE]
    seconds: Annotated[float, NON_NEGATIVE]
    config: str | None = None
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class Store:
    """The checkpoints of a run."""

    directory: Path
    group: dist.ProcessGroup
    keep: int
    writing: Future[None] | None = None

    def _last(self) -> Path | None:
        """The newest complete checkpoint."""
        found = (path for path in self.directory.glob("step-*") if path.suffix != _PART)
        return max((path for path in found if (path / _STATE).is_file()), default=None)

    def newest(self) -> Path | None:
        """The newest complete checkpoint that the first rank finds."""
        seen = [self._last()]
        if seen[0] is not None and dist.get_rank() == 0:
            self._prune()  # a killed run may have left more
        dist.broadcast_object_list(seen, src=0, group=self.group)
        return seen[0]

    def save(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Start to write a checkpoint; return when all tensors have been copied."""
        self.wait()
        path = self.directory / f"step-{state['step']:08d}"
        part = path.with_suffix(_PART)
        if dist.get_rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
            try:
                part.mkdir(parents=True)
                (part / _STATE).write_text(json.dumps(state))
            except OSError as error:
                raise self._not_written(error) from error
        dist.barrier()
        writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
        written = async_save(
            _tensors_of(model, optimiser), storage_writer=writer, process_group=self.group
        )
        self.writing = _then(cast(Future[Any], written), lambda: self._publish(part, path, state))

    def _publish(self, part: Path, path: Path, state: dict[str, Any]) -> None:
        """Give a complete checkpoint its final name; remove old ones and those of killed runs."""
        if dist.get_rank() != 0:
            return
        files = {file.name: hash_of_file(file) for file in sorted(part.glob(f"*{_WEIGHTS}"))}
        write_atomically(part / _STATE, json.dumps({**state, "files": files}).encode())
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
        self._prune()

    def _prune(self) -> None:
        """Keep the newest complete checkpoints only."""
        last = self._last()
        found = sorted(self.directory.glob("step-*"))
        complete = [path for path in found if path.suffix != _PART and (path / _STATE).is_file()]
        kept = complete[-self.keep :]
        for path in found:  # the removal of an old one may have been interrupted
            is_old = last is not None and path.name < last.name
            if path not in kept and (is_old or path.suffix == _PART):
                shutil.rmtree(path, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the current checkpoint is written; raise the error if writing failed."""
        writing = self.writing
        self.writing = None
        try:
            if writing is not None:
                writing.result()
        except (CheckpointException, OSError) as error:
            if _is_about_files(error):
                raise self._not_written(error) from error
            raise

    def _not_written(self, error: BaseException) -> ValueError:
        return ValueError(
            f"No checkpoint could be written to {self.directory} ({_last_line(error)}). "
            f"The last good one is {self._last() or 'none'}. "
            "Free some disk space, and run the same command again to resume."
        )

    def load(
        self, path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, run_id: str
    ) -> SavedState:
        """Read weights and moments from a checkpoint of the run `run_id`, and return its state.

        Files whose hashes differ, or whose numbers are not float32, are refused.
        """
        state = _read_state(path)
        if state.config not in (None, run_id):
            raise ValueError(
                f"The checkpoint {path} is of another run (id {state.config}, this one is "
                f"{run_id}). Choose another --out."
            )
        objection = [_objection(path, state) if dist.get_rank() == 0 else ""]
        dist.broadcast_object_list(objection, src=0, group=self.group)
        reader = HuggingFaceStorageReader(str(path))
        tensors = _tensors_of(model, optimiser)
        try:
            if objection[0]:
                raise Damaged(objection[0])
            load(tensors, storage_reader=reader, process_group=self.group)
        except (CheckpointException, Damaged) as error:  # torch wraps the errors of all ranks
            raise ValueError(
                f"The checkpoint {path} cannot be read ({_last_line(error)}). "
                "Delete it to resume from the one before it."
            ) from error
        for p in model.parameters():
            optimiser.state[p]["step"].fill_(state.step)
        return state


def _read_state(path: Path) -> SavedState:
    """The step, training time and run id of a checkpoint."""
    advice = f"Delete {path} to resume from the checkpoint before it."
    return read_as(SavedState, path / _STATE, advice)


def _objection(path: Path, state: SavedState) -> str:
    """What is wrong with the files of a checkpoint; empty if nothing is."""
    files = sorted(path.glob(f"*{_WEIGHTS}"))
    for name in state.files:
        if path / name not in files:
            return f"{name} is missing"
    for file in files:
        if state.files and state.files.get(file.name) != hash_of_file(file):
            return f"the hash of {file.name} does not match"
        try:
            found = dtypes_in(file)
        except Damaged as error:
            return f"{file.name}: {error}"
        if found - {"F32"}:
            return f"{file.name} has tensors of the dtype {', '.join(sorted(found - {'F32'}))}"
    return ""


def _is_about_files(error: BaseException) -> bool:
    """True if reading or writing failed on some rank, rather than waiting for another rank."""
    causes = (
        [cause for cause, _ in error.failures.values()]
        if isinstance(error, CheckpointException)
        else [error]
    )
    return any(isinstance(cause, OSError | SafetensorError) for cause in causes)


def _then(first: Future[Any], action: Callable[[], None]) -> Future[None]:
    """A future for `first` followed by `action`; it has the error of whichever fails."""
    both: Future[None] = Future()

    def finish(future: Future[Any]) -> None:
        try:
            future.result()
            action()
        except BaseException as error:
            both.set_exception(error)
        else:
            both.set_result(None)

    first.add_done_callback(finish)
    return both


def _last_line(error: BaseException) -> str:
    """The last line of an error's text, which is where torch puts the cause."""
    text = str(error).strip()
    return text.splitlines()[-1].strip() if text else type(error).__name__
