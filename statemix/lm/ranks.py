"""The ranks that train one model together. Only this module wraps a model for them.

Ranks form a grid, data × context. Ranks of the same row hold chunks of the same sequences;
different rows read different sequences. Gradients are averaged over all ranks, so the loss of a
rank is

    (sum over its own tokens) × (number of ranks) / (number of tokens on all ranks)
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from statemix.config.lm import Execution
from statemix.data import Batch
from statemix.layers import share_sequences
from statemix.models.lm import LanguageModel
from statemix.models.loss import next_token_loss
from statemix.ops.context import own_part

__all__ = ["Ranks", "Scored", "ranks_of", "spread", "synchronised"]

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The ranks, as one of them sees them; `saving` is a group for background checkpoints."""

    device: torch.device
    grid: DeviceMesh
    saving: dist.ProcessGroup

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    @property
    def rows(self) -> int:
        """Number of rows: ranks, or groups of ranks, that read different data."""
        return self.grid["data"].size()

    @property
    def row(self) -> int:
        return self.grid["data"].get_local_rank()

    def own(self, batch: Batch) -> Batch:
        """This rank's part of its row's batch; `cu_seqlens` still bounds the full sequences."""
        batch = batch.to(self.device)
        if self.grid["context"].size() == 1:
            return batch
        group = self.grid["context"].get_group()
        return Batch(
            own_part(batch.tokens, group).contiguous(),
            own_part(batch.targets, group).contiguous(),
            batch.cu_seqlens,
        )

    def total(self, *values: float | Tensor) -> list[float]:
        """Sum each value over all ranks."""
        sums = torch.stack(
            [torch.as_tensor(v, dtype=torch.float64, device=self.device) for v in values]
        )
        dist.all_reduce(sums)
        return sums.tolist()

    def first(self, value: T) -> T:
        """The value of the first rank."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.saving)
        return values[0]


@contextmanager
def ranks_of(execution: Execution) -> Iterator[Ranks]:
    """Join the ranks that torchrun started, or form a group of one; leave it at the end."""
    joined = not dist.is_initialized()
    limit = timedelta(seconds=execution.timeout)
    if joined:
        _join(limit)
    try:
        size = dist.get_world_size()
        if size % execution.context:
            raise ValueError(
                f"The number of ranks, {size}, must be a multiple of --context {execution.context}."
            )
        device = _own_device()
        shape = (size // execution.context, execution.context)
        grid = init_device_mesh(device.type, shape, mesh_dim_names=("data", "context"))
        saving = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=limit))
        yield Ranks(device, grid, saving)
    finally:
        if joined:
            dist.destroy_process_group()


def _join(limit: timedelta) -> None:
    """Form a group with the ranks that the environment describes, or a group of one."""
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(_own_device())
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=limit)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=limit)


def _own_device() -> torch.device:
    """The GPU whose index is that of this process on its machine, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


class Scored(nn.Module):
    """A language model whose `forward` returns the sum of its losses.

    DDP and FSDP only see calls of `forward`, so the loss is computed inside it.

    Args:
        end: the end-of-text token.
        answers: weight in training of the answers, the tokens before a full stop and `end`.
    """

    def __init__(self, model: LanguageModel, end: int = 0, answers: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.end = end
        self.answers = answers

    def forward(self, tokens: Tensor, targets: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        x, _ = self.model.features(tokens, cu_seqlens=cu_seqlens)
        loss = next_token_loss(x, self.model.head.weight, targets, reduction="sum")
        if self.training and self.answers != 1.0:
            rows, steps = (targets[:, 2:] == self.end).nonzero(as_tuple=True)
            own = next_token_loss(
                x[rows, steps], self.model.head.weight, targets[rows, steps], reduction="sum"
            )
            loss = loss + (self.answers - 1.0) * own
        return loss


def spread(scored: Scored, execution: Execution, ranks: Ranks, *, bf16: bool) -> nn.Module:
    """Wrap `scored` so that all ranks train it together."""
    model = scored.model
    model.checkpointing = execution.checkpointing
    if execution.context > 1:
        share_sequences(model, ranks.grid["context"].get_group())
    if execution.compile:
        for block in model.blocks:
            block.compile()
    if ranks.size == 1:
        return scored
    if execution.parallel == "ddp":
        return DistributedDataParallel(scored)
    everyone = init_device_mesh(ranks.device.type, (ranks.size,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for module in (*model.blocks, scored):
        fully_shard(module, mesh=everyone, mp_policy=policy)
    return scored


@contextmanager
def synchronised(model: nn.Module, last: bool) -> Iterator[None]:
    """Exchange gradients between ranks in the last backward pass of a step, and in no other."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    elif isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield
