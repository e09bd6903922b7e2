"""What commands say about a proof."""

from statemix.proof import Certificate

__all__ = ["WAYS", "describe"]

WAYS = {
    "pruned": "The proved model is the trained one without its other blocks.",
    "separated": "The proved model is the trained one without its other blocks, and with near ties "
    "of gates moved apart.",
    "refitted": "The proved model is the trained one without its other blocks, with near ties of "
    "gates moved apart, and with a readout that was trained further.",
    "retrained": "The proved model is a part of the trained one that was trained further. Only its "
    "lowest layer loads values.",
    "trained": "The proved model is the trained one.",
}


def describe(task: str, certificate: Certificate, total: tuple[int, ...] = ()) -> str:
    """What a certificate proves, in plain words."""
    kept = " + ".join(map(str, certificate.blocks))
    only_one = certificate.blocks == (1,)
    blocks = f"{kept} of {' + '.join(map(str, total))} blocks"
    if not total:
        blocks = f"{kept} block" + ("" if only_one else "s")
    verb = "is" if only_one else "are"
    return (
        f"{task}: proved right on every word of every length. {blocks} {verb} kept; "
        f"{_plural(certificate.pairs, 'state')}; smallest margin {_short(certificate.margin)} "
        f"({_short(certificate.slack)} after rounding errors in {certificate.dtype})."
    )


def _short(x: float) -> str:
    """Two digits, or a whole number."""
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
