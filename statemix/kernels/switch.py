"""The switch for all compiled kernels: STATEMIX_KERNELS=on (the default) or off."""

import os

__all__ = ["SWITCH", "is_switched_on"]

SWITCH = "STATEMIX_KERNELS"


def is_switched_on() -> bool:
    """True unless the environment switches kernels off."""
    switch = os.environ.get(SWITCH, "on").lower()
    if switch not in ("on", "off", "1", "0", ""):
        raise ValueError(
            f"The environment variable {SWITCH} must be 'on' or 'off', got {switch!r}."
        )
    return switch not in ("off", "0")
