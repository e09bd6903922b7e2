"""What every scan asks of its arguments, checked once at the public boundary.

The order of `cu_seqlens` is read where the scan runs (`segments.checked_bounds`), so that compiled code checks it too.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from statemix.ops.segments import Sequences


def check_block_scan(
    name: str,
    X: Tensor,
    driver_name: str,
    x: Tensor,
    initial_state: Tensor | None,
    sequences: Sequences,
    input_gates: int = 0,
) -> None:
    """X is (B, T, n, m, m + input_gates) and the driver x is (B, T, n, m)."""
    check_driver(driver_name, x, "(B, T, n, m)")
    m = x.shape[-1]
    check_size(driver_name, m, "block size")
    check_transition(name, X, driver_name, x, m + input_gates)
    check_sequences(driver_name, x, m, initial_state, sequences)


def check_companion_scan(
    name: str,
    X: Tensor,
    driver_name: str,
    x: Tensor,
    initial_state: Tensor | None,
    sequences: Sequences,
    input_gates: int = 0,
) -> None:
    """X is (B, T, n, m + input_gates) and the driver x is (B, T, n)."""
    check_driver(driver_name, x, "(B, T, n)")
    check_floating(name, X)
    if X.dim() != 4:
        raise ValueError(
            f"`{name}` must have the axes (B, T, n, m{' + 1' * input_gates}), got the shape {tuple(X.shape)}."
        )
    columns = X.shape[-1]
    check_transition(name, X, driver_name, x, columns)
    check_size(name, columns - input_gates, "order")
    check_sequences(driver_name, x, columns - input_gates, initial_state, sequences)


def check_driver(name: str, x: Tensor, axes: str) -> None:
    """x is floating point and has the axes spelt by `axes`."""
    check_floating(name, x)
    if x.dim() != axes.count(",") + 1:
        raise ValueError(f"`{name}` must have the axes {axes}, got the shape {tuple(x.shape)}.")


def check_transition(name: str, X: Tensor, driver_name: str, x: Tensor, columns: int) -> None:
    """X is floating point and has the shape of x with `columns` more at the end."""
    check_floating(name, X)
    expected = (*x.shape, columns)
    if X.shape != expected:
        raise ValueError(
            f"`{name}` must match `{driver_name}`, whose shape is {tuple(x.shape)}: expected {expected}, got {tuple(X.shape)}."
        )
    check_device(name, X, driver_name, x)


def check_size(name: str, m: int, meaning: str) -> None:
    """`m`, read off the last axis of the tensor called `name`, is at least one."""
    if m < 1:
        raise ValueError(
            f"The {meaning} m must be at least 1, got {m} from the last axis of `{name}`."
        )


def check_choice(name: str, choice: str, known: Iterable[str]) -> None:
    """`choice` is one of `known`."""
    known = tuple(known)
    if choice not in known:
        raise ValueError(f"Unknown {name} {choice!r}. Available: {', '.join(known)}.")


def check_sequences(
    driver_name: str, x: Tensor, m: int, initial_state: Tensor | None, sequences: Sequences
) -> None:
    """The optional arguments of a scan agree with its driver, whose first axes are (B, T, n)."""
    B, T, n = x.shape[:3]
    cu_seqlens, mask, _ = sequences
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, B)
    if mask is not None:
        check_mask(mask, B, T)
    if initial_state is not None:
        expected = (sequences.count(x), n, m)
        check_state(
            "initial_state",
            initial_state,
            expected,
            f"`{driver_name}`, whose shape is {tuple(x.shape)}",
        )
    for label, y in (("initial_state", initial_state), ("cu_seqlens", cu_seqlens), ("mask", mask)):
        if y is not None:
            check_device(label, y, driver_name, x)


def check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(x).__name__}.")


def check_floating(name: str, x: Tensor) -> None:
    """`x` is a tensor of real floating-point numbers."""
    check_tensor(name, x)
    if x.is_complex():
        raise TypeError(f"`{name}` must be real: complex numbers are not supported, got {x.dtype}.")
    if not x.is_floating_point():
        raise TypeError(
            f"`{name}` must be floating point, got {x.dtype}. Convert with {name}.float()."
        )


def check_device(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.device != other.device:
        raise ValueError(
            f"`{name}` must be on the device of `{other_name}`, {other.device}, got {x.device}. "
            f"Move it with {name}.to({other_name}.device)."
        )


def check_state(name: str, state: Tensor, expected: tuple[int, ...], because: str) -> None:
    """`state` is a floating tensor of the shape `expected`, which follows from `because`."""
    check_floating(name, state)
    if state.shape != expected:
        raise ValueError(
            f"`{name}` must match {because}: expected {expected}, got {tuple(state.shape)}."
        )


def check_cu_seqlens(cu_seqlens: Tensor, B: int) -> None:
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(
            f"`cu_seqlens` must be a tensor of bounds, got {type(cu_seqlens).__name__}. Convert with torch.tensor(cu_seqlens)."
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
            f"`cu_seqlens` packs sequences into a batch of one: expected B = 1, got B = {B}. Join them along time first."
        )


def check_mask(mask: Tensor, B: int, T: int) -> None:
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"`mask` must be torch.bool, True at real steps, got {mask.dtype}. Convert with mask.bool()."
        )
    if mask.shape != (B, T):
        raise ValueError(
            f"`mask` must have one entry a step: expected {(B, T)}, got {tuple(mask.shape)}."
        )
