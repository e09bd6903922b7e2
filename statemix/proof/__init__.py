"""Proofs that a trained model with hard gates is right on every word of every length."""

from statemix.proof.blocks import consistent_blocks, keep_blocks, live_blocks
from statemix.proof.certificate import Certificate, certify
from statemix.proof.picture import draw_automaton
from statemix.proof.prove import Proof, prove
from statemix.proof.refit import prune, refit
from statemix.proof.saved import load_certificate, save_certificate, verify_certificate
from statemix.proof.written import write_proof

__all__ = [
    "Certificate",
    "Proof",
    "certify",
    "consistent_blocks",
    "draw_automaton",
    "keep_blocks",
    "live_blocks",
    "load_certificate",
    "prove",
    "prune",
    "refit",
    "save_certificate",
    "verify_certificate",
    "write_proof",
]
