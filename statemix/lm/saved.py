"""A language model in a directory, as plain files that any program can read.

    config.json          an `LMConfig`, with the version of the format
    model.safetensors    the weights, by their names in `LanguageModel`
    tokenizer.json       for the package `tokenizers`; missing if the model was trained without text

Nothing is unpickled. A directory is written under a temporary name and renamed when it is complete.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from statemix.config.build import shown
from statemix.config.model import LMConfig, lm_config_from_dict
from statemix.files.json_files import Damaged, damage, read_json
from statemix.files.tensors import check_tensors, hash_of_file, read_tensors
from statemix.files.writing import naming, write_atomically, writing_directory
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
_ADVICE = "Copy or export the model again."
_FORMAT = "statemix-lm"
_VERSION = 1
_MOST = 1 << 40  # tokens in a sequence or a vocabulary
_HASH = "sha256"
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
    stored = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    try:
        with writing_directory(directory, replace=True) as part:
            save_file(stored, part / WEIGHTS, {"format": "pt"})
            header = {"format": _FORMAT, "version": _VERSION}
            header |= {"model": config.to_dict(), "about": dict(about or {})}
            header |= {_HASH: hash_of_file(part / WEIGHTS)}
            write_atomically(part / CONFIG, (json.dumps(header, indent=2) + "\n").encode())
            if tokenizer is not None:
                with naming(directory / TOKENIZER):
                    shutil.copyfile(tokenizer, part / TOKENIZER)
    except SafetensorError as error:
        raise ValueError(
            f"The weights for {directory} could not be written ({error}). "
            "Free some disk space, and try again."
        ) from error


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


def _read_config(directory: Path) -> tuple[LMConfig, dict[str, Any], str | None]:
    """The config of the model in `directory`, its notes, and the hash of its weights, if any."""
    path = directory / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} is not the directory of a language model: "
            f"it has no {CONFIG}.{_hint(directory)}"
        )
    header = read_json(path, _ADVICE)
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
        raise damage(path, "`model` and `about` must be JSON objects", _ADVICE)
    for name in ("train_length", "end_of_text"):
        value = about.get(name)
        if value is not None and not (type(value) is int and 0 <= value < _MOST):
            raise damage(path, f"`{name}` must be a whole number, got {shown(value)}", _ADVICE)
    try:
        return lm_config_from_dict(model), about, header.get(_HASH)
    except ValueError as error:
        raise damage(path, error, _ADVICE) from error


def _empty_model(config: LMConfig, directory: Path) -> LanguageModel:
    """The model of `config`, without memory for its weights."""
    try:
        with torch.device("meta"):
            return LanguageModel(config)
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        raise damage(directory / CONFIG, str(error).splitlines()[0], _ADVICE) from error


def _in_dtype(model: LanguageModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that `model` expects, all in the floating-point dtype of the embedding."""
    given = tensors.get(_EMBEDDING)
    dtype = given.dtype if given is not None and given.is_floating_point() else torch.float32
    return {
        name: x.to(dtype) if x.is_floating_point() else x for name, x in model.state_dict().items()
    }


def load_model(directory: Path | str) -> SavedModel:
    """Read the model in `directory`, in evaluation mode."""
    directory = Path(directory)
    config, about, known_hash = _read_config(directory)
    path = directory / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"The model in {directory} has no weights: {WEIGHTS} is missing.")
    model = _empty_model(config, directory)
    try:
        if known_hash not in (None, hash_of_file(path)):
            raise Damaged("its hash does not match")
        tensors, _ = read_tensors(path)
        if config.tie and _EMBEDDING in tensors:
            tensors[_HEAD] = tensors[_EMBEDDING]
        check_tensors(tensors, _in_dtype(model, tensors))
    except Damaged as error:
        raise damage(path, error, _ADVICE) from error
    model.load_state_dict(tensors, assign=True)
    if config.tie:
        model.head.weight = model.embedding.weight
    return SavedModel(directory, model.requires_grad_(True).eval(), about)
