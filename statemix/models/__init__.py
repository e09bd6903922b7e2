"""Models around a mixer: the tagger of the synthetic tasks, and the autoencoder of the compression task."""

from torch import nn

from statemix.models.autoencoder import Autoencoder
from statemix.models.config import ModelConfig
from statemix.models.tagger import Tagger
from statemix.tasks import Task

__all__ = ["Autoencoder", "ModelConfig", "Tagger", "build_model"]


def build_model(config: ModelConfig, task: Task, length: int) -> nn.Module:
    """The model that `task` is made for, around the mixer of `config`."""
    if task.model == "autoencoder":
        return Autoencoder(config, task.vocab, task.classes, length)
    return Tagger(config, task.vocab, task.classes)
