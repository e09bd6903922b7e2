"""Heads: equal parts of a layer's width."""

__all__ = ["count_parts"]


def count_parts(option: str, size: int, width: int, name: str) -> int:
    """The number of parts of `size` channels in `width`, which the option must divide."""
    if width % size:
        raise ValueError(f"`{option}` must divide {name}, got {size}.")
    return width // size
