"""Proofs that a trained model with hard gates is right on every word of every length."""

from statemix.analysis.proof.blocks import consistent_blocks, keep_blocks, live_blocks
from statemix.analysis.proof.certificate import Certificate, certify
from statemix.analysis.proof.refit import refit

__all__ = [
    "Certificate",
    "certify",
    "consistent_blocks",
    "keep_blocks",
    "live_blocks",
    "refit",
]
