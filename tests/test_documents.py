"""What README and docs tell a reader to type works, line by line."""

import shlex
import sys
import warnings

import pytest
from documents import (
    ROOT,
    Reader,
    as_new_process,
    blocks,
    commands,
    inline_commands,
    looks_like_commands,
    make_clone,
    needs,
    pages,
    parse,
    untested,
    words,
)

from statemix.cli import _Command

sys.path.insert(0, str(ROOT / "docs"))
import command_line

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
RUN = [name for name, page in PAGES.items() if any(b.is_python or b.is_shell for b in blocks(page))]
LONG = {"docs/explanation/reproduce.md": 4500}
COMMANDS = {(), ("--version",), *command_line.commands(_Command)}


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A working directory like a clone; what a page registers is forgotten after it."""
    make_clone(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "stand_ins"))
    monkeypatch.setenv("COLUMNS", "120")
    with as_new_process():
        yield tmp_path


@pytest.mark.usefixtures("unchecked")  # as for a reader
@pytest.mark.parametrize("name", RUN)
def test_a_reader_can_follow(name, clone, capsys):
    for package in needs(PAGES[name]):
        pytest.importorskip(package, reason=f"the page is about {package}, which is not installed")
        warnings.simplefilter("ignore")  # such packages use what torch deprecates
    Reader(PAGES[name]).follow()


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_marked_as_such(name):
    """A block with commands is marked `sh`, so that it is run."""
    unmarked = [f"{name}:{b.line}" for b in blocks(PAGES[name]) if looks_like_commands(b)]
    assert not unmarked


@pytest.mark.parametrize("name", PAGES)
def test_commands_in_running_text_exist(name):
    """A command between backquotes has options and arguments that the parser accepts."""
    for command in inline_commands(PAGES[name]):
        arguments = shlex.split(command.split(" | ", maxsplit=1)[0])[1:]
        if "..." not in command and tuple(arguments) not in COMMANDS:
            parse(arguments)


def test_untested_commands_are_in_some_page():
    """The table of untested commands has no row that no page needs."""
    typed = {
        c for page in PAGES.values() for b in blocks(page) if b.is_shell for c in commands(b.text)
    }
    for row in untested():
        assert any(c == row or c.startswith(row + " ") for c in typed), row


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_short(name):
    """No page has more than 1,500 words that are written by hand."""
    assert words(PAGES[name]) <= (LONG.get(name) or 1500)


def test_the_readme_fits_a_screen():
    assert len((ROOT / "README.md").read_text().split()) <= 900
