"""Models built from a mixer: a tagger, an autoencoder for compression, and language models."""

from torch import nn

from statemix.config.model import LMConfig, ModelConfig, lm_config_from_dict
from statemix.models.autoencoder import Autoencoder
from statemix.models.lm import LanguageModel, count_parameters
from statemix.models.loss import next_token_loss
from statemix.models.presets import PRESETS, find_preset
from statemix.models.tagger import Tagger
from statemix.tasks import Task

__all__ = [
    "PRESETS",
    "Autoencoder",
    "LMConfig",
    "LanguageModel",
    "ModelConfig",
    "Tagger",
    "build_model",
    "count_parameters",
    "find_preset",
    "lm_config_from_dict",
    "next_token_loss",
]


def build_model(config: ModelConfig, task: Task, length: int) -> nn.Module:
    """Build the model that `task` requires, with the mixer of `config`."""
    if task.model == "autoencoder":
        return Autoencoder(config, task.vocab, task.classes, length)
    return Tagger(config, task.vocab, task.classes)
