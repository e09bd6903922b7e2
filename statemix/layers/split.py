"""Blocks that several ranks divide among themselves (tensor parallelism).

    y = W_o h = Σ_r W_o[:, blocks of r] h[blocks of r]

A block reads the whole input and adds its own part to the output, and knows no other block.  So the blocks of a rank are a smaller layer:
outputs are summed over the ranks, and so are gradients of the input.  The inner channels of a gated MLP are divided likewise.  All else
stays whole on every rank, where it sees the same numbers and gets the same gradients.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from statemix.layers.bdlru import BDLRU
from statemix.layers.hlru import HLRU
from statemix.layers.mixer import Mixer
from statemix.layers.mlp import SwiGLU
from statemix.layers.unit import LinearRecurrentUnit
from statemix.layers.weights import is_altered

OUTPUTS = (
    "W_o.weight",
    "W_2.weight",
)  # blocks are their columns; of all other parameters, the rows


class SumGradients(torch.autograd.Function):
    """The input of divided blocks: the same on all ranks, its gradient the sum of theirs."""

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


class SumOutputs(torch.autograd.Function):
    """The output of divided blocks: the sum of all ranks' parts, each of which gets the same gradient."""

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
    """This rank's blocks of a BD-LRU, or channels of an H-LRU; states are those of its own blocks."""

    def __init__(self, part: LinearRecurrentUnit, group: ProcessGroup) -> None:
        super().__init__()
        self.part, self.group = part, group

    @property
    def state_size(self) -> int:
        """Numbers in the state that this rank keeps of one sequence."""
        return self.part.state_size

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        *,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """All steps of a batch; a state is (B, n of this rank, m)."""
        y, state = self.part(
            SumGradients.apply(x, self.group), state, cu_seqlens=cu_seqlens, mask=mask
        )
        return SumOutputs.apply(y, self.group), state

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step of a batch, for decoding."""
        y, state = cast(Mixer, self.part).step(SumGradients.apply(x_t, self.group), state)
        return SumOutputs.apply(y, self.group), state


class DividedSwiGLU(nn.Module):
    """This rank's inner channels of a gated MLP."""

    def __init__(self, part: SwiGLU, group: ProcessGroup) -> None:
        super().__init__()
        self.part, self.group = part, group

    def forward(self, x: Tensor) -> Tensor:
        return cast(
            Tensor, SumOutputs.apply(self.part(SumGradients.apply(x, self.group)), self.group)
        )


Divided = DividedMixer | DividedSwiGLU


def divide_blocks(model: nn.Module, group: ProcessGroup) -> None:
    """Let each rank of `group` keep its share of the blocks of every BD-LRU, H-LRU and gated MLP in `model`, and drop the others'.

    Every rank calls it with the same weights, then makes its optimiser.  Gradients need no exchange: those of divided weights are a
    rank's own, those of all others are equal.  `gather_blocks` gives the whole weights back.
    """
    every = list(model.named_modules(remove_duplicate=False))
    already = [name for name, module in every if isinstance(module, Divided)]
    if already:
        raise ValueError(
            f"The blocks of {already[0]} are divided already. Call `divide_blocks` once, on the whole model."
        )
    divided = [
        (name, module) for name, module in every if isinstance(module, LinearRecurrentUnit | SwiGLU)
    ]
    if len({id(module) for _, module in divided}) < len(divided):
        raise ValueError(
            f"{type(model).__name__} uses a layer at two places, whose weights would be no longer the same. Copy it."
        )
    if not any(isinstance(module, LinearRecurrentUnit) for _, module in divided):
        raise ValueError(
            f"{type(model).__name__} has no BD-LRU or H-LRU layer whose blocks ranks can divide."
        )
    for name, module in divided:
        check_divisible(name, module, dist.get_world_size(group))
    for name, module in divided:
        model.set_submodule(name, divide(module, group))


def check_divisible(name: str, module: nn.Module, ranks: int) -> None:
    """Each rank gets a block, and a block of its own has all it reads."""
    if not name:
        raise ValueError(
            f"`divide_blocks` replaces layers inside a model, got the layer {type(module).__name__} itself. Put it into one."
        )
    if isinstance(module, LinearRecurrentUnit) and type(module) not in (BDLRU, HLRU):
        raise ValueError(
            f"Ranks can divide BD-LRU and H-LRU layers, not {name}, which is {type(module).__name__}."
        )
    if isinstance(module, LinearRecurrentUnit) and module.selectivity == "pointwise":
        raise ValueError(
            f"Ranks can divide layers of selectivity 'full' or 'none', got 'pointwise' in {name}."
        )
    if is_altered(module) or _has_added_bias(module):
        raise ValueError(
            f"{name} has hooks, biases or parametrisations that its parts would lack. Add them after dividing it."
        )
    if count_blocks(module) < ranks:
        raise ValueError(
            f"{ranks} ranks cannot divide the {count_blocks(module)} blocks of {name}. Use fewer."
        )


def _has_added_bias(module: nn.Module) -> bool:
    """True if a projection has a bias that it was built without."""
    names = ("W_v", "W_o") if isinstance(module, LinearRecurrentUnit) else ("W_1", "W_2", "W_3")
    return any(getattr(module.get_submodule(name), "bias", None) is not None for name in names)


def count_blocks(module: nn.Module) -> int:
    """Blocks of a BD-LRU, channels of an H-LRU, inner channels of a gated MLP."""
    return (
        module.state_shape[0]
        if isinstance(module, LinearRecurrentUnit)
        else cast(SwiGLU, module).W_1.out_features
    )


def divide(module: nn.Module, group: ProcessGroup) -> Divided:
    """The share of this rank, whose weights are copies."""
    n, rank, ranks = count_blocks(module), dist.get_rank(group), dist.get_world_size(group)
    first, last = n * rank // ranks, n * (rank + 1) // ranks
    part = resized(module, last - first)
    for name, p in part.named_parameters():
        whole, axis = module.get_parameter(name), axis_of(name)
        each = whole.shape[axis] // n
        p.data.copy_(whole.data.narrow(axis, first * each, (last - first) * each))
        p.requires_grad_(whole.requires_grad)
    return (
        DividedSwiGLU(part, group)
        if isinstance(part, SwiGLU)
        else DividedMixer(cast(LinearRecurrentUnit, part), group)
    )


def resized(module: nn.Module, n: int) -> nn.Module:
    """A module of the same kind with `n` blocks."""
    if isinstance(module, SwiGLU):
        return SwiGLU(module.W_1.in_features, n).to(module.W_1.weight)
    unit = cast(BDLRU | HLRU, module)
    options: dict[str, Any] = {
        "gate": unit.gate,
        "selectivity": unit.selectivity,
        "save_memory": unit.save_memory,
    }
    options |= {"form": unit.form} if isinstance(unit, HLRU) else {}
    weight = unit.W_v.weight
    learnt = unit.h0 is not None
    part = type(unit)(
        unit.d_model,
        n,
        unit.state_shape[1],
        learn_initial_state=learnt,
        device=weight.device,
        dtype=weight.dtype,
        **options,
    )
    part.context = unit.context
    return part


def axis_of(name: str) -> int:
    """Along which axis of the parameter called `name` blocks lie."""
    return 1 if name.endswith(OUTPUTS) else 0


def gather_blocks(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that `model` had before `divide_blocks`, with today's weights; every rank calls it, and gets it."""
    whole = dict(model.state_dict())
    for place, module in model.named_modules():
        if isinstance(module, Divided):
            for name, p in module.part.state_dict().items():
                del whole[f"{place}.part.{name}"]
                whole[f"{place}.{name}"] = gather(p, axis_of(name), module.group)
    return whole


def gather(p: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """All ranks' shares of a parameter, one after the other; they need not be of one size."""
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=p.device)
    rank = dist.get_rank(group)
    sizes[rank] = p.shape[axis]
    dist.all_reduce(sizes, group=group)
    shape = list(p.shape)
    shape[axis] = int(sizes.sum())
    whole = p.new_zeros(shape)
    whole.narrow(axis, int(sizes[:rank].sum()), p.shape[axis]).copy_(p)
    dist.all_reduce(whole, group=group)
    return whole
