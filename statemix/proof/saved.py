"""A proof in a directory: a small model, and what was proved about it, so that anyone can check it.

    model.safetensors    the weights, float32
    certificate.json     the task, the sizes of the model, the hash of the weights, and the claim

`verify_certificate` reads nothing else: it builds the model, walks through it with the automaton of
the task, and compares the result with the claim. Nothing is unpickled.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import statemix
from statemix.config.fields import AT_LEAST_ONE, check_fields, check_known
from statemix.config.model import ModelConfig
from statemix.files.json_files import read_json
from statemix.files.regular import check_regular
from statemix.files.writing import write_atomically
from statemix.layers import BDLRU
from statemix.models import Tagger
from statemix.models.tagger import Block
from statemix.proof.blocks import mixers_of
from statemix.proof.certificate import UNITS, Certificate, certify
from statemix.proof.step import check_provable
from statemix.tasks import Task, find_task
from statemix.tasks.automaton import Automaton

__all__ = [
    "CERTIFICATE",
    "WEIGHTS",
    "SavedCertificate",
    "load_certificate",
    "save_certificate",
    "verify_certificate",
]

CERTIFICATE = "certificate.json"
WEIGHTS = "model.safetensors"
_FORMAT = "statemix-certificate"
_VERSION = 1
_TOLERANCE = 1e-6  # relative; float64 sums differ this little between machines
_FIELDS = ("format", "version", "statemix", "task", "model", "sha256", "certificate")


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a model; blocks and block sizes have an entry for each layer."""

    mixer: str
    gate: str
    width: int
    layers: int
    bos: bool
    learn_initial_state: bool
    blocks: tuple[int, ...]
    block_size: tuple[int, ...]
    vocab: int
    classes: int


@dataclass(frozen=True)
class SavedCertificate:
    """A certificate read from a file, with the model that its weights make."""

    task: str
    task_options: Mapping[str, Any]
    model: Tagger
    certificate: Certificate


def save_certificate(
    directory: Path | str,
    model: Tagger,
    certificate: Certificate,
    task: str,
    task_options: Mapping[str, Any] | None = None,
) -> Path:
    """Write a proved model and its certificate to `directory`; return the certificate's path."""
    if not certificate.holds:
        raise ValueError(f"Only proofs can be saved, but this one failed: {certificate.reason}")
    check_provable(model)
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    _check_float32(tensors)
    weights = save(tensors, {"format": "pt"})
    content = _header(weights, task, task_options or {})
    content |= {"model": asdict(_sizes_of(model)), "certificate": asdict(certificate)}
    path = Path(directory) / CERTIFICATE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.with_name(WEIGHTS), weights)
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
    return path


def _header(weights: bytes, task: str, task_options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the format, the task, and the hash of the weights."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "statemix": statemix.__version__,
        "task": {"name": task, "options": dict(task_options)},
        "sha256": hashlib.sha256(weights).hexdigest(),
    }


def load_certificate(path: Path | str) -> SavedCertificate:
    """Read a certificate and its model, whose hash is checked, but not the proof."""
    path = Path(path)
    content = _read(path)
    weights = path.with_name(WEIGHTS)
    if not weights.is_file():
        raise FileNotFoundError(f"{weights} is missing: {path} is about the weights in it.")
    check_regular(weights)
    data = weights.read_bytes()
    if hashlib.sha256(data).hexdigest() != content["sha256"]:
        raise ValueError(f"{weights} is damaged or another: its SHA-256 is not the one in {path}.")
    try:
        model = _build(_sizes_from(content["model"]), load(data))
        claim = _claim(content["certificate"])
        task = _task(content["task"])
    except (SafetensorError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {_last_line(error)}") from error
    return SavedCertificate(*task, model, claim)


def verify_certificate(path: Path | str) -> SavedCertificate:
    """Prove again, from the weights alone, what a certificate claims; an error says what differs.

    The walk uses the automaton of the task by its name, so tasks of your own must be registered.
    """
    saved = load_certificate(path)
    automaton = _automaton_of(path, saved)
    try:
        found = certify(saved.model, automaton, dtype=saved.certificate.dtype)
    except (ValueError, FloatingPointError) as error:
        raise ValueError(f"{path} proves nothing: {_last_line(error)}") from error
    if not found.holds:
        word = "" if found.counterexample is None else f" The word: {list(found.counterexample)}."
        raise ValueError(f"{path} does not hold for its weights. {found.reason}{word}")
    for name, claimed in asdict(saved.certificate).items():
        if name != "reason" and not _same(claimed, getattr(found, name)):
            raise ValueError(
                f"{path} claims `{name}` = {claimed}, but for its weights it is "
                f"{getattr(found, name)}."
            )
    return saved


def _read(path: Path) -> dict[str, Any]:
    """The content of a certificate, with all fields of its format."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no certificate {path}. `statemix certify` writes one.")
    content = read_json(path, "Restore it, or certify the run again.")
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f'{path} is not a certificate: it lacks "format": "{_FORMAT}".')
    if content.get("version") != _VERSION:
        raise ValueError(
            f"{path} has the version {content.get('version')}, this statemix reads {_VERSION}. "
            "Upgrade statemix."
        )
    missing = [name for name in _FIELDS if name not in content]
    if missing:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}.")
    return content


def _automaton_of(path: Path | str, saved: SavedCertificate) -> Automaton:
    """The automaton of the task that a certificate names."""
    try:
        task: Task = find_task(saved.task, saved.task_options)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"The task of {path} cannot be made: {error} If it is a task of your own, "
            "give the file that registers it with --files."
        ) from error
    if task.automaton is None:
        raise ValueError(f"The task {saved.task!r} of {path} has no automaton to compare with.")
    return task.automaton


def _sizes_of(model: Tagger) -> _Sizes:
    mixers = mixers_of(model)
    bos = model.config.bos
    return _Sizes(
        mixer="bdlru",
        gate="hardmax",
        width=model.embedding.embedding_dim,
        layers=len(mixers),
        bos=bos,
        learn_initial_state=mixers[0].h0 is not None,
        blocks=tuple(mixer.state_shape[0] for mixer in mixers),
        block_size=tuple(mixer.state_shape[1] for mixer in mixers),
        vocab=model.embedding.num_embeddings - bos,
        classes=model.head.out_features,
    )


def _sizes_from(data: Any) -> _Sizes:
    """Sizes as JSON has them, checked."""
    _check_complete(_Sizes, data, "a certified model")
    lists = {name: tuple(data[name]) for name in ("blocks", "block_size")}
    sizes = _Sizes(**{**data, **lists})
    check_fields(sizes)
    if (sizes.mixer, sizes.gate) != ("bdlru", "hardmax"):
        raise ValueError(f"The model is a {sizes.mixer!r} with {sizes.gate!r} gates.")
    numbers = [sizes.width, sizes.layers, sizes.vocab, sizes.classes, *sizes.blocks]
    for number in [*numbers, *sizes.block_size]:
        if not isinstance(number, int) or not AT_LEAST_ONE.contains(number):
            raise ValueError(f"The sizes of the model must be at least 1, got {number!r}.")
    if not len(sizes.blocks) == len(sizes.block_size) == sizes.layers:
        raise ValueError(f"`blocks` and `block_size` must have {sizes.layers} entries.")
    return sizes


def _build(sizes: _Sizes, tensors: dict[str, Tensor]) -> Tagger:
    """The model of these sizes with these weights."""
    _check_float32(tensors)
    config = ModelConfig(
        width=sizes.width, layers=sizes.layers, channel_mixer="none", bos=sizes.bos
    )
    with torch.device("meta"):  # sizes that do not fit the weights cost no memory
        model = Tagger(config, sizes.vocab, sizes.classes)
        for block, n, m in zip(model.blocks, sizes.blocks, sizes.block_size, strict=True):
            cast(Block, block).mixer = BDLRU(
                sizes.width,
                n,
                m,
                gate=sizes.gate,
                learn_initial_state=sizes.learn_initial_state,
            )
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _check_float32(tensors: Mapping[str, Tensor]) -> None:
    for name, x in tensors.items():
        if x.dtype != torch.float32:
            raise ValueError(f"The weights must be float32, but `{name}` is {x.dtype}.")


def _claim(data: Any) -> Certificate:
    """A certificate as JSON has it, checked."""
    _check_complete(Certificate, data, "a certificate")
    word = data["counterexample"]
    claim = Certificate(
        **{
            **data,
            "blocks": tuple(data["blocks"]),
            "counterexample": None if word is None else tuple(word),
        }
    )
    if claim.dtype not in UNITS:
        raise ValueError(f"Unknown dtype {claim.dtype!r}. Available: {', '.join(UNITS)}.")
    return claim


def _task(data: Any) -> tuple[str, dict[str, Any]]:
    """The name and the options of a task as JSON has them, checked."""
    if not isinstance(data, dict) or set(data) != {"name", "options"}:
        raise ValueError("`task` must have a name and options.")
    if not isinstance(data["name"], str) or not isinstance(data["options"], dict):
        raise ValueError("The name of a task must be text, and its options a JSON object.")
    return data["name"], data["options"]


def _check_complete(cls: type, data: Any, owner: str) -> None:
    """Raise an error unless `data`, read from JSON, has all fields of `cls` and no others."""
    check_known(cls, data, owner)
    missing = [field.name for field in fields(cls) if field.name not in data]
    if missing:
        raise ValueError(f"The config of {owner} lacks {', '.join(missing)}.")


def _same(claimed: Any, found: Any) -> bool:
    """True if two values of a field agree, numbers to the rounding of float64."""
    if isinstance(found, float) and isinstance(claimed, int | float):
        return math.isclose(claimed, found, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(claimed == found)


def _last_line(error: Exception) -> str:
    """The last line of an error that may have many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
