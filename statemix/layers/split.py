"""Tensor parallelism: the blocks of each layer are divided among ranks.

    y = W_o h = Σ_r W_o[:, blocks of r] h[blocks of r]

A block reads the full input, adds its part to the output, and does not depend on other blocks. The
blocks of a rank therefore form a smaller layer, and both the outputs and the gradients of the input
are summed over the ranks. The inner channels of a gated MLP are divided in the same way. All other
modules are replicated: they have the same inputs and gradients on every rank.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from statemix.layers.bdlru import BDLRU
from statemix.layers.hlru import HLRU
from statemix.layers.mixer import Mixer
from statemix.layers.mlp import SwiGLU
from statemix.layers.unit import LinearRecurrentUnit
from statemix.layers.weights import is_altered
from statemix.types import Mask, SequenceBounds

__all__ = ["DividedMixer", "DividedSwiGLU", "divide_blocks", "gather_blocks"]

OUTPUTS = ("W_o.weight", "W_2.weight")  # columns belong to blocks; of all other parameters, rows do


class _SumGradients(torch.autograd.Function):
    """The input of divided blocks: equal on all ranks; its gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        dx = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(dx, group=ctx.group)
        return dx, None


class _SumOutputs(torch.autograd.Function):
    """The output of divided blocks: the sum over the ranks, which all receive the same gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup) -> Tensor:
        y = y.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy, None


class DividedMixer(nn.Module):
    """This rank's blocks of a BD-LRU, or channels of an H-LRU, with the states of these blocks."""

    def __init__(self, part: LinearRecurrentUnit, group: ProcessGroup) -> None:
        super().__init__()
        self.part = part
        self.group = group

    @property
    def state_size(self) -> int:
        """Number of scalars in this rank's state of one sequence."""
        return self.part.state_size

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        state: Any = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], Any]:
        """Run all steps of a batch; a state is (S, n of this rank, m)."""
        x = _SumGradients.apply(x, self.group)
        y, state = self.part(x, state, cu_seqlens=cu_seqlens, mask=mask)
        return _SumOutputs.apply(y, self.group), state

    def step(
        self, x_t: Float[Tensor, "B d"], state: Any = None
    ) -> tuple[Float[Tensor, "B d"], Any]:
        """Run one step of a batch, for decoding."""
        y, state = cast(Mixer, self.part).step(_SumGradients.apply(x_t, self.group), state)
        return _SumOutputs.apply(y, self.group), state


class DividedSwiGLU(nn.Module):
    """This rank's inner channels of a gated MLP."""

    def __init__(self, part: SwiGLU, group: ProcessGroup) -> None:
        super().__init__()
        self.part = part
        self.group = group

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        y = self.part(_SumGradients.apply(x, self.group))
        return cast(Tensor, _SumOutputs.apply(y, self.group))


_Divided = DividedMixer | DividedSwiGLU


def divide_blocks(model: nn.Module, group: ProcessGroup) -> None:
    """Replace every BD-LRU, H-LRU and gated MLP in `model` by this rank's share of its blocks.

    All ranks must call this function with equal weights, and create their optimisers afterwards.
    Gradients need no communication: each rank has those of its own blocks, and those of replicated
    weights are equal on all ranks. `gather_blocks` returns the full weights.
    """
    every = list(model.named_modules(remove_duplicate=False))
    already = [name for name, module in every if isinstance(module, _Divided)]
    if already:
        raise ValueError(
            f"The blocks of {already[0]} are already divided. "
            "Call `divide_blocks` once, on the full model."
        )
    divided = [
        (name, module) for name, module in every if isinstance(module, LinearRecurrentUnit | SwiGLU)
    ]
    if len({id(module) for _, module in divided}) < len(divided):
        raise ValueError(
            f"{type(model).__name__} uses the same layer twice, and dividing it would untie the "
            "weights. Use a copy of the layer."
        )
    if not any(isinstance(module, LinearRecurrentUnit) for _, module in divided):
        raise ValueError(
            f"{type(model).__name__} has no BD-LRU or H-LRU layer that could be divided."
        )
    for name, module in divided:
        _check_divisible(name, module, dist.get_world_size(group))
    for name, module in divided:
        model.set_submodule(name, _divide(module, group))


def _check_divisible(name: str, module: nn.Module, ranks: int) -> None:
    """Raise an error unless `module` has a block for each rank, and its blocks are independent."""
    if not name:
        raise ValueError(
            "`divide_blocks` replaces the layers of a model, got a single layer, "
            f"{type(module).__name__}. Pass a model that contains it."
        )
    if isinstance(module, LinearRecurrentUnit) and type(module) not in (BDLRU, HLRU):
        raise ValueError(
            f"Only BD-LRU and H-LRU layers can be divided, got {type(module).__name__} at {name}."
        )
    if isinstance(module, LinearRecurrentUnit) and module.selectivity == "pointwise":
        raise ValueError(
            "Only layers with selectivity 'full' or 'none' can be divided, "
            f"got 'pointwise' at {name}."
        )
    if isinstance(module, LinearRecurrentUnit) and module.gate_rank is not None:
        raise ValueError(
            f"Only layers with full gates can be divided, got `gate_rank` = {module.gate_rank} "
            f"at {name}."
        )
    if is_altered(module) or _has_added_bias(module):
        raise ValueError(
            f"{name} has hooks, biases or parametrisations, which its parts would not have. "
            "Add them after `divide_blocks`."
        )
    if _count_blocks(module) < ranks:
        raise ValueError(
            f"The {_count_blocks(module)} blocks of {name} cannot be divided among {ranks} ranks. "
            "Use fewer ranks."
        )


def _has_added_bias(module: nn.Module) -> bool:
    """True if a projection that is built without a bias has one."""
    names = ("W_v", "W_o") if isinstance(module, LinearRecurrentUnit) else ("W_1", "W_2", "W_3")
    return any(getattr(module.get_submodule(name), "bias", None) is not None for name in names)


def _count_blocks(module: nn.Module) -> int:
    """Number of blocks of a BD-LRU, channels of an H-LRU, or inner channels of a gated MLP."""
    if isinstance(module, LinearRecurrentUnit):
        return module.state_shape[0]
    return cast(SwiGLU, module).W_1.out_features


def _divide(module: nn.Module, group: ProcessGroup) -> _Divided:
    """This rank's share of a layer, with copies of the weights."""
    n = _count_blocks(module)
    rank = dist.get_rank(group)
    ranks = dist.get_world_size(group)
    first = n * rank // ranks
    count = n * (rank + 1) // ranks - first
    part = _resized(module, count)
    for name, p in part.named_parameters():
        full = module.get_parameter(name)
        axis = _axis_of(name)
        size = full.shape[axis] // n
        p.data.copy_(full.data.narrow(axis, first * size, count * size))
        p.requires_grad_(full.requires_grad)
    if isinstance(part, SwiGLU):
        return DividedSwiGLU(part, group)
    return DividedMixer(cast(LinearRecurrentUnit, part), group)


def _resized(module: nn.Module, n: int) -> nn.Module:
    """A layer with the options of `module` and `n` blocks."""
    if isinstance(module, SwiGLU):
        return SwiGLU(module.W_1.in_features, n).to(module.W_1.weight)
    unit = cast(BDLRU | HLRU, module)
    options: dict[str, Any] = {"form": unit.form} if isinstance(unit, HLRU) else {}
    part = type(unit)(
        unit.d_model,
        n,
        unit.state_shape[1],
        gate=unit.gate,
        selectivity=unit.selectivity,
        save_memory=unit.save_memory,
        learn_initial_state=unit.h0 is not None,
        device=unit.W_v.weight.device,
        dtype=unit.W_v.weight.dtype,
        **options,
    )
    part.context = unit.context
    return part


def _axis_of(name: str) -> int:
    """The axis of the parameter `name` along which the blocks are divided."""
    return 1 if name.endswith(OUTPUTS) else 0


def gather_blocks(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the undivided model, with the current weights; all ranks must call it."""
    full = dict(model.state_dict())
    for prefix, module in model.named_modules():
        if isinstance(module, _Divided):
            for name, p in module.part.state_dict().items():
                del full[f"{prefix}.part.{name}"]
                full[f"{prefix}.{name}"] = _gather(p, _axis_of(name), module.group)
    return full


def _gather(p: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """Concatenate all ranks' shares of a parameter, whose sizes may differ."""
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=p.device)
    rank = dist.get_rank(group)
    sizes[rank] = p.shape[axis]
    dist.all_reduce(sizes, group=group)
    shape = list(p.shape)
    shape[axis] = int(sizes.sum())
    full = p.new_zeros(shape)
    full.narrow(axis, int(sizes[:rank].sum()), p.shape[axis]).copy_(p)
    dist.all_reduce(full, group=group)
    return full
