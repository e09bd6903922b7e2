"""Processes that train one model together, and how the model is spread over them: the only place that knows.

Ranks form a grid, data × context.  Ranks of one row hold parts of the same sequences; rows read different ones.  Gradients are averaged
over all of them, so a rank's loss is its sum over tokens, times the number of ranks, over the tokens of all.
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

__all__ = ["Ranks", "Scored", "join", "ranks_of", "spread", "synchronised"]

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among others."""

    device: torch.device
    grid: DeviceMesh
    saving: (
        dist.ProcessGroup
    )  # a group of its own, so that checkpoints are written while training goes on

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    @property
    def rows(self) -> int:
        """Ranks, or groups of ranks, that read different data."""
        return self.grid["data"].size()

    @property
    def row(self) -> int:
        return self.grid["data"].get_local_rank()

    def own(self, batch: Batch) -> Batch:
        """What this rank holds of the batch of its row; bounds stay the whole batch's."""
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
        """Each value, summed over all ranks."""
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
    """Join the ranks that torchrun started, or be the only one; leave them at the end."""
    joined = not dist.is_initialized()
    if joined:
        join(execution.timeout)
    try:
        size = dist.get_world_size()
        if size % execution.context:
            raise ValueError(
                f"The number of ranks, {size}, must be a multiple of --context {execution.context}."
            )
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        device = (
            torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
            if kind == "cuda"
            else torch.device("cpu")
        )
        grid = init_device_mesh(
            kind, (size // execution.context, execution.context), mesh_dim_names=("data", "context")
        )
        yield Ranks(
            device,
            grid,
            cast(
                dist.ProcessGroup,
                dist.new_group(backend="gloo", timeout=timedelta(seconds=execution.timeout)),
            ),
        )
    finally:
        if joined:
            dist.destroy_process_group()


def join(timeout: float) -> None:
    """Form a group with the ranks that the environment tells of, or a group of one."""
    backend, limit = "gloo", timedelta(seconds=timeout)
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=limit)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=limit)


class Scored(nn.Module):
    """A language model that returns the sum of its losses: what every wrapper of torch wants, a module whose `forward` is all there is."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        x, _ = self.model.features(tokens, cu_seqlens=cu_seqlens)
        return next_token_loss(x, self.model.head.weight, targets, reduction="sum")


def spread(scored: Scored, execution: Execution, ranks: Ranks, *, bf16: bool) -> nn.Module:
    """`scored` as all ranks train it together."""
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
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if bf16
        else MixedPrecisionPolicy()
    )
    for block in model.blocks:
        fully_shard(block, mesh=everyone, mp_policy=policy)
    fully_shard(scored, mesh=everyone, mp_policy=policy)
    return scored


@contextmanager
def synchronised(model: nn.Module, last: bool) -> Iterator[None]:
    """Exchange gradients in the backward pass inside, if it is the last of a step."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    elif isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield
