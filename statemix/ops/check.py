"""Argument checks that all scans share, run once at the public boundary.

The values of `cu_seqlens` are checked inside the op (`segments.checked_bounds`), so that compiled
code checks them too.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from statemix.ops.segments import Sequences

__all__ = [
    "check_block_scan",
    "check_choice",
    "check_companion_scan",
    "check_cu_seqlens",
    "check_device",
    "check_floating",
    "check_mask",
    "check_state",
    "check_tensor",
]

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FLOATING_NAMES = "float16, bfloat16, float32 or float64"
_DENSE = "Convert it with to_dense(), or pad nested sequences and pass a mask."


def check_block_scan(
    name: str,
    X: Tensor,
    driver_name: str,
    x: Tensor,
    initial_state: Tensor | None,
    sequences: Sequences,
    input_gates: int = 0,
) -> None:
    """Raise an error unless X is (B, T, n, m, m + input_gates) and the driver x is (B, T, n, m)."""
    _check_axes(driver_name, x, "(B, T, n, m)")
    m = x.shape[-1]
    _check_size(driver_name, m, "block size")
    _check_transition(name, X, driver_name, x, m + input_gates)
    _check_sequences(driver_name, x, m, initial_state, sequences)


def check_companion_scan(
    name: str,
    X: Tensor,
    driver_name: str,
    x: Tensor,
    initial_state: Tensor | None,
    sequences: Sequences,
    input_gates: int = 0,
) -> None:
    """Raise an error unless X is (B, T, n, m + input_gates) and the driver x is (B, T, n)."""
    _check_axes(driver_name, x, "(B, T, n)")
    _check_axes(name, X, f"(B, T, n, m{' + 1' * input_gates})")
    columns = X.shape[-1]
    _check_transition(name, X, driver_name, x, columns)
    _check_size(name, columns - input_gates, "order")
    _check_sequences(driver_name, x, columns - input_gates, initial_state, sequences)


def _check_axes(name: str, x: Tensor, axes: str) -> None:
    """Raise an error unless x is floating point and has as many axes as `axes` lists."""
    check_floating(name, x)
    if x.dim() != axes.count(",") + 1:
        raise ValueError(f"`{name}` must have the axes {axes}, got the shape {tuple(x.shape)}.")


def _check_transition(name: str, X: Tensor, driver_name: str, x: Tensor, columns: int) -> None:
    """Raise an error unless X is floating point and has the shape (*x.shape, columns)."""
    check_floating(name, X)
    expected = (*x.shape, columns)
    if X.shape != expected:
        raise ValueError(
            f"`{name}` must match `{driver_name}`, whose shape is {tuple(x.shape)}: "
            f"expected {expected}, got {tuple(X.shape)}."
        )
    check_device(name, X, driver_name, x)


def _check_size(name: str, m: int, meaning: str) -> None:
    """Raise an error unless m, the size of the last axis of the tensor `name`, is positive."""
    if m < 1:
        raise ValueError(
            f"The {meaning} m must be at least 1, got {m} from the last axis of `{name}`."
        )


def check_choice(name: str, choice: str, known: Iterable[str]) -> None:
    """Raise an error unless `choice` is one of `known`."""
    known = tuple(known)
    if choice not in known:
        raise ValueError(f"Unknown {name} {choice!r}. Available: {', '.join(known)}.")


def _check_sequences(
    driver_name: str, x: Tensor, m: int, initial_state: Tensor | None, sequences: Sequences
) -> None:
    """Raise an error unless the optional arguments match the driver x (B, T, n, ...)."""
    B, T, n = x.shape[:3]
    cu_seqlens, mask, reverse = sequences
    if not isinstance(reverse, bool):
        raise TypeError(f"`reverse` must be True or False, got {reverse!r}.")
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, B)
    if mask is not None:
        check_mask(mask, B, T)
    if initial_state is not None:
        because = f"`{driver_name}`, whose shape is {tuple(x.shape)}"
        check_state("initial_state", initial_state, (sequences.count(x), n, m), because)
    for label, y in (("initial_state", initial_state), ("cu_seqlens", cu_seqlens), ("mask", mask)):
        if y is not None:
            check_device(label, y, driver_name, x)


def check_tensor(name: str, x: Tensor) -> None:
    """Raise an error unless `x` is a dense tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(x).__name__}.")
    if x.layout != torch.strided or x.is_nested:
        kind = "a nested tensor" if x.is_nested else str(x.layout)
        raise TypeError(f"`{name}` must be a dense tensor, got {kind}. {_DENSE}")
    if x.is_quantized:
        raise TypeError(
            f"`{name}` must not be quantised, got {x.dtype}. Convert with {name}.dequantize()."
        )


def check_floating(name: str, x: Tensor) -> None:
    """Raise an error unless `x` is a dense tensor of real floating-point numbers."""
    check_tensor(name, x)
    if x.is_complex():
        raise TypeError(f"`{name}` must be real: complex numbers are not supported, got {x.dtype}.")
    if x.dtype not in _FLOATING:
        raise TypeError(
            f"`{name}` must be floating point, got {x.dtype}. Convert with {name}.float()."
            if not x.is_floating_point()
            else f"`{name}` must be {_FLOATING_NAMES}, got {x.dtype}. Convert with {name}.float()."
        )


def check_device(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    """Raise an error unless `x` and `other` are on the same device."""
    if x.device != other.device:
        raise ValueError(
            f"`{name}` must be on the device of `{other_name}`, {other.device}, got {x.device}. "
            f"Move it with {name}.to({other_name}.device)."
        )


def check_state(name: str, state: Tensor, expected: tuple[int, ...], because: str) -> None:
    """Raise an error unless `state` is floating point and has the shape that `because` implies."""
    check_floating(name, state)
    if state.shape != expected:
        raise ValueError(
            f"`{name}` must match {because}: expected {expected}, got {tuple(state.shape)}."
        )


def check_cu_seqlens(cu_seqlens: Tensor, B: int) -> None:
    """Raise an error unless `cu_seqlens` is a vector of integers and the batch size B is one."""
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(
            f"`cu_seqlens` must be a tensor of bounds, got {type(cu_seqlens).__name__}. "
            "Convert with torch.tensor(cu_seqlens)."
        )
    if (
        cu_seqlens.dim() != 1
        or cu_seqlens.shape[0] < 1
        or cu_seqlens.dtype not in (torch.int32, torch.int64)
    ):
        raise ValueError(
            "`cu_seqlens` must be a vector of N + 1 int32 or int64 bounds, from 0 to T, "
            f"got the shape {tuple(cu_seqlens.shape)} and {cu_seqlens.dtype}."
        )
    if B != 1:
        raise ValueError(
            "`cu_seqlens` packs sequences into a batch of one: "
            f"expected B = 1, got B = {B}. Concatenate the sequences along the time axis first."
        )


def check_mask(mask: Tensor, B: int, T: int) -> None:
    """Raise an error unless `mask` is a boolean tensor (B, T)."""
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"`mask` must be torch.bool, True at real steps, got {mask.dtype}. "
            "Convert with mask.bool()."
        )
    if mask.shape != (B, T):
        raise ValueError(
            f"`mask` must have one entry per step: expected {(B, T)}, got {tuple(mask.shape)}."
        )
