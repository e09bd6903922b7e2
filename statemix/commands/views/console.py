"""Where views print: text as it is.

Paths, task names and error texts may contain brackets or colons, as in `runs[1]` or
`pip install 'statemix[gpu]'`. These consoles interpret neither as markup nor as emoji, in lines,
tables, titles and progress bars alike; style comes from `style=` and `rich.text.Text`.
"""

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TextColumn, TimeElapsedColumn

__all__ = ["make_console", "make_progress", "say", "warn"]


def make_console(*, stderr: bool = False) -> Console:
    """A console without markup, on stdout or stderr."""
    return Console(stderr=stderr, markup=False, emoji=False)


def say(text: str, *, stderr: bool = False, style: str | None = None) -> None:
    """Print one line; the terminal wraps it, so that paths can be copied."""
    make_console(stderr=stderr).print(text, style=style, soft_wrap=True)


def warn(text: str) -> None:
    """Print one line to stderr, in yellow."""
    say(text, stderr=True, style="yellow")


def make_progress(*columns: ProgressColumn) -> Progress:
    """A progress bar on stderr that disappears at the end: description, `columns`, elapsed time."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        *columns,
        TimeElapsedColumn(),
        console=make_console(stderr=True),
        transient=True,
    )
