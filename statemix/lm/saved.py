"""A language model in a directory: plain files that any program can read.

    config.json          an `LMConfig`, with the format's version
    model.safetensors    the weights, by their names in `LanguageModel`
    tokenizer.json       what the `tokenizers` library reads; missing if the model was trained on bare tokens

Nothing is unpickled, and a directory is whole or not there: it is written beside its place and moved into it.
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

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
FORMAT, VERSION = "statemix-lm", 1
HEAD, EMBEDDING = "head.weight", "embedding.weight"


@dataclass(frozen=True)
class SavedModel:
    """A model that was read from `directory`; `about` is what its writer noted: the training length, say."""

    directory: Path
    model: LanguageModel
    about: Mapping[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer that the model was trained with."""
        path = self.directory / TOKENIZER
        if not path.is_file():
            raise FileNotFoundError(
                f"The model in {self.directory} has no {TOKENIZER}. Put the one that it was trained with there."
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
        tensors: its state dict.
        tokenizer: a tokenizer.json to copy.
        about: notes that JSON can hold; `train_length` is what `statemix lm eval` compares positions with.
        replace: overwrite a model that is there already; anything else that is there is left alone.
    """
    directory = Path(directory)
    check_free(directory, replace)
    check_fits(config, tensors, directory)
    tensors = {name: x for name, x in tensors.items() if not (config.tie and name == HEAD)}
    part = directory.with_name(f"{directory.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        save_file(
            {name: x.detach().cpu().contiguous() for name, x in tensors.items()},
            part / WEIGHTS,
            {"format": "pt"},
        )
        header = {
            "format": FORMAT,
            "version": VERSION,
            "model": config.to_dict(),
            "about": dict(about or {}),
        }
        (part / CONFIG).write_text(json.dumps(header, indent=2) + "\n")
        if tokenizer is not None:
            shutil.copyfile(tokenizer, part / TOKENIZER)
        move_into_place(part, directory)
    except SafetensorError as error:
        raise ValueError(
            f"The weights for {directory} could not be written ({error}). Make room, and try again."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def move_into_place(part: Path, directory: Path) -> None:
    """Rename `part` to `directory`; what was there is removed when the new one is in its place."""
    old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
    if directory.exists():
        directory.replace(old)
    part.replace(directory)
    shutil.rmtree(old, ignore_errors=True)


def check_free(directory: Path, replace: bool) -> None:
    """`directory` may be written: it is empty or not there, or is a model, and nothing else, that may be replaced."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not replace:
        raise FileExistsError(
            f"{directory} exists and would be overwritten. Choose another directory, or remove it."
        )
    foreign = foreign_in(directory)
    if foreign:
        raise FileExistsError(
            f"{directory} holds {foreign}, which is none of a model's files, and would be lost. Move it away."
        )


def foreign_in(directory: Path) -> str:
    """The name of what `directory` holds beside a model of ours, empty if there is nothing."""
    if not directory.is_dir():
        return directory.name
    others = sorted(
        path.name for path in directory.iterdir() if path.name not in (CONFIG, WEIGHTS, TOKENIZER)
    )
    if others:
        return others[0]
    try:
        read_config(directory)
    except FileNotFoundError:
        return next(path.name for path in directory.iterdir())
    except ValueError:
        return CONFIG
    return ""


def check_fits(config: LMConfig, tensors: Mapping[str, Tensor], directory: Path) -> None:
    """`tensors` are the state dict of the model that `config` describes."""
    with torch.device("meta"):
        expected = {name: tuple(x.shape) for name, x in LanguageModel(config).state_dict().items()}
    if config.tie:
        expected.pop(HEAD)
    given = {
        name: tuple(x.shape) for name, x in tensors.items() if not (config.tie and name == HEAD)
    }
    missing, unknown = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
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
                f"The weights for {directory} do not fit the config: `{name}` must have the shape {shape}, got {given[name]}."
            )


def hint(directory: Path) -> str:
    """Where the model of a run is, if `directory` is one."""
    return f" Did you mean {directory / FINAL}?" if (directory / FINAL / CONFIG).is_file() else ""


def read_config(directory: Path) -> tuple[LMConfig, dict[str, Any]]:
    """The config of the model in `directory`, and what its writer noted."""
    path = directory / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} is not the directory of a language model: it has no {CONFIG}.{hint(directory)}"
        )
    try:
        header = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(
            f'{path} does not describe a statemix language model: it lacks "format": "{FORMAT}".{hint(directory)}'
        )
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path} has the version {header.get('version')}, this statemix reads {VERSION}. Upgrade statemix."
        )
    model, about = header.get("model", {}), header.get("about", {})
    if not (isinstance(model, dict) and isinstance(about, dict)):
        raise ValueError(f"{path} is damaged: `model` and `about` must be JSON objects.")
    return lm_config_from_dict(model), about


def load_model(directory: Path | str) -> SavedModel:
    """Read the model in `directory`, ready to evaluate."""
    directory = Path(directory)
    config, about = read_config(directory)
    path = directory / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"The model in {directory} has no weights: {WEIGHTS} is missing.")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}). Export the model again.") from error
    check_fits(config, tensors, directory)
    if config.tie:
        tensors[HEAD] = tensors[EMBEDDING]
    with torch.device("meta"):
        model = LanguageModel(config)
    model.load_state_dict(tensors, assign=True)
    if config.tie:
        model.head.weight = model.embedding.weight
    return SavedModel(directory, model.requires_grad_(True).eval(), about)
