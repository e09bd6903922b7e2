"""Language models as files: what training leaves, and what generating, evaluating and exporting begin with."""

from statemix.lm.saved import SavedModel, load_model, save_model

__all__ = ["SavedModel", "load_model", "save_model"]
