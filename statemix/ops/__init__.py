"""Scans as differentiable functions, with initial states, packing, masks and reverse."""

from statemix.ops.block import block_scan, block_step
from statemix.ops.companion import companion_scan, companion_step
from statemix.ops.dispatch import cpu, gpu
from statemix.ops.expanded import expanded_companion_scan, expanded_companion_step
from statemix.ops.gated import gated_block_scan, gated_block_step, gated_companion_scan
from statemix.ops.hop import hop_scan
from statemix.ops.lookup import Lookup
from statemix.ops.normalise import NORMALISERS, normalise, register_normaliser

__all__ = [
    "NORMALISERS",
    "Lookup",
    "block_scan",
    "block_step",
    "companion_scan",
    "companion_step",
    "expanded_companion_scan",
    "expanded_companion_step",
    "gated_block_scan",
    "gated_block_step",
    "gated_companion_scan",
    "hop_scan",
    "normalise",
    "register_normaliser",
]

cpu.install()
gpu.install()
