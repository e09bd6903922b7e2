"""Checkpoints that many ranks write together, while training goes on, and any number of ranks can read.

    checkpoints/step-00000200/    safetensors files, each rank's share of weights and moments, and state.json
    checkpoints/....part          one that is being written: not there, as far as reading is concerned

A checkpoint is copied to memory at once and written by a thread; when every rank has written its share it is moved to its place, and
those beyond the newest few are removed.  Nothing is pickled.
"""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

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

STATE = "state.json"
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's; matrices of Muon have the first alone


def tensors_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and moments by name, as they are: whole, or this rank's share."""
    tensors, matrices = (
        {},
        {p for group in optimiser.param_groups if group["matrices"] for p in group["params"]},
    )
    for name, p in model.named_parameters():
        state = optimiser.state[p]
        for moment in MOMENTS[:1] if p in matrices else MOMENTS:
            if moment not in state:
                state[moment] = torch.zeros_like(p)
                state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            tensors[f"{moment}.{name}"] = state[moment]
        tensors[f"model.{name}"] = p.detach()
    return tensors


@dataclass
class Store:
    """The checkpoints of a run."""

    directory: Path
    group: dist.ProcessGroup
    keep: int
    writing: Future[None] | None = None

    def last(self) -> Path | None:
        """The last checkpoint that is whole."""
        return max(
            (
                path
                for path in self.directory.glob("step-*")
                if path.suffix != ".part" and (path / STATE).is_file()
            ),
            default=None,
        )

    def newest(self) -> Path | None:
        """The last checkpoint that is whole, as the first rank sees it."""
        seen = [self.last()]
        dist.broadcast_object_list(seen, src=0, group=self.group)
        return seen[0]

    def save(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Begin to write a checkpoint; return as soon as everything is copied."""
        self.wait()
        path = self.directory / f"step-{state['step']:08d}"
        part = path.with_suffix(".part")
        if dist.get_rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
            try:
                part.mkdir(parents=True)
                (part / STATE).write_text(json.dumps(state))
            except OSError as error:
                raise self.not_written(error) from error
        dist.barrier()
        writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
        tensors = tensors_of(model, optimiser)
        written = cast(
            Future[Any], async_save(tensors, storage_writer=writer, process_group=self.group)
        )
        self.writing = then(written, lambda: self.publish(part, path))

    def publish(self, part: Path, path: Path) -> None:
        """Move a checkpoint that all ranks have written to its place; remove old ones, and what a killed run left half written."""
        if dist.get_rank() != 0:
            return
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
        everything = sorted(self.directory.glob("step-*"))
        whole = [old for old in everything if old.suffix != ".part"]
        broken_off = [old for old in everything if old.suffix == ".part"]
        for old in whole[: -self.keep] + broken_off:
            shutil.rmtree(old, ignore_errors=True)

    def wait(self) -> None:
        """Return when nothing is being written any more; raise what the writing raised."""
        writing, self.writing = self.writing, None
        try:
            if writing is not None:
                writing.result()
        except (CheckpointException, OSError) as error:
            if is_of_files(error):
                raise self.not_written(error) from error
            raise

    def not_written(self, error: BaseException) -> ValueError:
        return ValueError(
            f"No checkpoint could be written to {self.directory} ({last_line(error)}). The last good one is {self.last() or 'none'}. "
            "Make room, and run the same command again to go on."
        )

    def load(
        self, path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, config: str
    ) -> dict[str, Any]:
        """Fill weights and moments from a checkpoint of the run with the id `config`, however many ranks wrote it; return its state."""
        state = read_state(path)
        if state.get("config", config) != config:
            raise ValueError(
                f"The checkpoint {path} is of another run (id {state['config']}, this one is {config}). Choose another --out."
            )
        tensors = tensors_of(model, optimiser)
        try:
            load(
                tensors,
                storage_reader=HuggingFaceStorageReader(str(path)),
                process_group=self.group,
            )
        except (
            CheckpointException
        ) as error:  # torch's wrapper of whatever went wrong, on whichever rank
            raise ValueError(
                f"The checkpoint {path} cannot be read ({last_line(error)}). Delete it to go on from the one before it."
            ) from error
        for p in model.parameters():
            optimiser.state[p]["step"].fill_(state["step"])
        return state


def read_state(path: Path) -> dict[str, Any]:
    """What a checkpoint tells beside its tensors."""
    try:
        state = json.loads((path / STATE).read_text())
        return {**state, "step": int(state["step"]), "seconds": float(state["seconds"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path / STATE} is damaged: {error}. Delete {path} to go on from the checkpoint before it."
        ) from error


def is_of_files(error: BaseException) -> bool:
    """Whether an error is about files, on whichever rank; if not, it is about a rank that another waited for."""
    causes = (
        [cause for cause, _ in error.failures.values()]
        if isinstance(error, CheckpointException)
        else [error]
    )
    return any(isinstance(cause, OSError | SafetensorError) for cause in causes)


def then(first: Future[Any], action: Callable[[], None]) -> Future[None]:
    """A future that is done when `action`, called after `first`, has returned; or raises what either raised."""
    both: Future[None] = Future()

    def go_on(future: Future[Any]) -> None:
        try:
            future.result()
            action()
        except BaseException as error:
            both.set_exception(error)
        else:
            both.set_result(None)

    first.add_done_callback(go_on)
    return both


def last_line(error: BaseException) -> str:
    """The end of an error's text, where torch says what went wrong."""
    return (
        str(error).strip().splitlines()[-1].strip() if str(error).strip() else type(error).__name__
    )
