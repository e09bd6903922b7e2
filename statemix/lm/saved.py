"""A language model in a directory, as plain files that any program can read.

    config.json          an `LMConfig`, with the version of the format
    model.safetensors    the weights, by their names in `LanguageModel`
    tokenizer.json       for the package `tokenizers`; missing if the model was trained without text

Nothing is unpickled. A directory is written under a temporary name and renamed when it is complete.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from statemix.config.model import LMConfig, lm_config_from_dict
from statemix.models.lm import LanguageModel
from statemix.runs.layout import FINAL

__all__ = [
    "CONFIG",
    "TOKENIZER",
    "WEIGHTS",
    "SavedModel",
    "check_free",
    "load_model",
    "save_model",
]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
_FORMAT = "statemix-lm"
_VERSION = 1
_HEAD = "head.weight"
_EMBEDDING = "embedding.weight"


@dataclass(frozen=True)
class SavedModel:
    """A model read from `directory`; `about` holds its notes, such as the training length."""

    directory: Path
    model: LanguageModel
    about: Mapping[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer that the model was trained with."""
        path = self.directory / TOKENIZER
        if not path.is_file():
            raise FileNotFoundError(
                f"The model in {self.directory} has no {TOKENIZER}. "
                "Copy the one that it was trained with to this directory."
            )
        return path


def save_model(
    directory: Path | str,
    config: LMConfig,
    tensors: Mapping[str, Tensor],
    *,
    tokenizer: Path | None = None,
    about: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> None:
    """Write a model to `directory`.

    Args:
        tensors: the state dict.
        tokenizer: a tokenizer.json to copy.
        about: notes, stored as JSON; `statemix lm eval` reads `train_length`.
        replace: overwrite an existing model; other existing files are an error.
    """
    directory = Path(directory)
    check_free(directory, replace)
    _check_fits(config, tensors, directory)
    tensors = {name: x for name, x in tensors.items() if not (config.tie and name == _HEAD)}
    part = directory.with_name(f"{directory.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        stored = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
        save_file(stored, part / WEIGHTS, {"format": "pt"})
        header = {"format": _FORMAT, "version": _VERSION}
        header |= {"model": config.to_dict(), "about": dict(about or {})}
        (part / CONFIG).write_text(json.dumps(header, indent=2) + "\n")
        if tokenizer is not None:
            shutil.copyfile(tokenizer, part / TOKENIZER)
        _move_into_place(part, directory)
    except SafetensorError as error:
        raise ValueError(
            f"The weights for {directory} could not be written ({error}). "
            "Free some disk space, and try again."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move_into_place(part: Path, directory: Path) -> None:
    """Rename `part` to `directory`, then remove the previous contents."""
    old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
    if directory.exists():
        directory.replace(old)
    part.replace(directory)
    shutil.rmtree(old, ignore_errors=True)


def check_free(directory: Path, replace: bool) -> None:
    """Raise an error unless `directory` is missing, empty, or a model that may be replaced."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not replace:
        raise FileExistsError(
            f"{directory} exists and would be overwritten. Choose another directory, or remove it."
        )
    foreign = _foreign_in(directory)
    if foreign:
        raise FileExistsError(
            f"{directory} holds {foreign}, which is not a file of a model, and would be lost. "
            "Move it away."
        )


def _foreign_in(directory: Path) -> str:
    """The name of a file in `directory` that is not part of a model of ours, or ''."""
    if not directory.is_dir():
        return directory.name
    others = sorted(
        path.name for path in directory.iterdir() if path.name not in (CONFIG, WEIGHTS, TOKENIZER)
    )
    if others:
        return others[0]
    try:
        _read_config(directory)
    except FileNotFoundError:
        return next(path.name for path in directory.iterdir())
    except ValueError:
        return CONFIG
    return ""


def _check_fits(config: LMConfig, tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Raise an error unless `tensors` is a state dict of the model that `config` describes."""
    with torch.device("meta"):
        expected = {name: tuple(x.shape) for name, x in LanguageModel(config).state_dict().items()}
    if config.tie:
        expected.pop(_HEAD)
    given = {
        name: tuple(x.shape) for name, x in tensors.items() if not (config.tie and name == _HEAD)
    }
    missing = sorted(set(expected) - set(given))
    unknown = sorted(set(given) - set(expected))
    if missing or unknown:
        listed = "; ".join(
            f"{label}: {', '.join(names[:3])}"
            for label, names in (("missing", missing), ("unknown", unknown))
            if names
        )
        raise ValueError(f"The weights for {directory} do not fit the config ({listed}).")
    for name, shape in expected.items():
        if given[name] != shape:
            raise ValueError(
                f"The weights for {directory} do not fit the config: "
                f"`{name}` must have the shape {shape}, got {given[name]}."
            )


def _hint(directory: Path) -> str:
    """A hint at the model of a run, if `directory` is that of a run."""
    return f" Did you mean {directory / FINAL}?" if (directory / FINAL / CONFIG).is_file() else ""


def _read_config(directory: Path) -> tuple[LMConfig, dict[str, Any]]:
    """The config of the model in `directory`, and its notes."""
    path = directory / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} is not the directory of a language model: "
            f"it has no {CONFIG}.{_hint(directory)}"
        )
    try:
        header = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError(
            f"{path} does not describe a statemix language model: "
            f'it lacks "format": "{_FORMAT}".{_hint(directory)}'
        )
    if header.get("version") != _VERSION:
        raise ValueError(
            f"{path} has the version {header.get('version')}, this statemix reads {_VERSION}. "
            "Upgrade statemix."
        )
    model = header.get("model", {})
    about = header.get("about", {})
    if not (isinstance(model, dict) and isinstance(about, dict)):
        raise ValueError(f"{path} is damaged: `model` and `about` must be JSON objects.")
    return lm_config_from_dict(model), about


def load_model(directory: Path | str) -> SavedModel:
    """Read the model in `directory`, in evaluation mode."""
    directory = Path(directory)
    config, about = _read_config(directory)
    path = directory / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"The model in {directory} has no weights: {WEIGHTS} is missing.")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}). Export the model again.") from error
    _check_fits(config, tensors, directory)
    if config.tie:
        tensors[_HEAD] = tensors[_EMBEDDING]
    with torch.device("meta"):
        model = LanguageModel(config)
    model.load_state_dict(tensors, assign=True)
    if config.tie:
        model.head.weight = model.embedding.weight
    return SavedModel(directory, model.requires_grad_(True).eval(), about)
