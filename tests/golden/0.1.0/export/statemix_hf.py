"""Imported by `trust_remote_code=True`, so that `import statemix.hf` is not needed."""

from statemix.hf import StatemixConfig, StatemixForCausalLM

__all__ = ["StatemixConfig", "StatemixForCausalLM"]
