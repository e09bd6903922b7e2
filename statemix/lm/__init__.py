"""Training of language models, and trained models as files: load, evaluate, generate."""

from statemix.lm.saved import SavedModel, load_model, save_model

__all__ = ["SavedModel", "load_model", "save_model"]
