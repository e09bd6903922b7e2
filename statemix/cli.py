"""The `statemix` command. It imports torch after parsing, so that `--help` is fast."""

import os
import sys
from typing import Annotated

import tyro

from statemix import __version__
from statemix.commands.bench import Bench
from statemix.commands.certify import Certify
from statemix.commands.demo import Demo
from statemix.commands.eval import Eval
from statemix.commands.info import Info
from statemix.commands.inspect import Inspect
from statemix.commands.leaderboard import Leaderboard
from statemix.commands.lm import LM
from statemix.commands.report import Report
from statemix.commands.sweep import Sweep
from statemix.commands.tasks import Tasks
from statemix.commands.train import Train

__all__ = ["main"]

_EXTRAS = "lm (text), hf and eval (Hugging Face), plot (figures), ray, track, bench"
_OVERFLOW = "Overflow when unpacking long"
_NO_MEMORY = ("can't allocate memory", "size calculation overflowed")  # errors of torch
_Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Certify, tyro.conf.subcommand("certify")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Leaderboard, tyro.conf.subcommand("leaderboard")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[LM, tyro.conf.subcommand("lm")]
    | Annotated[Tasks, tyro.conf.subcommand("tasks")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Info, tyro.conf.subcommand("info")]
)


def main(arguments: list[str] | None = None) -> None:
    """Run one command with `arguments`, or those of the shell."""
    try:
        _run(arguments)
    except BrokenPipeError:  # the reader of the output, such as `head`, has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str] | None) -> None:
    """Parse and run; turn expected errors into one line of text."""
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        print(f"statemix {__version__}")
        return
    command = tyro.cli(
        _Command,
        prog="statemix",
        description="Train, inspect and benchmark linear recurrent networks whose states mix.",
        args=arguments,
    )
    try:
        command.run()
    except (ValueError, FileNotFoundError, FileExistsError, FloatingPointError) as error:
        raise SystemExit(f"statemix: {error}") from error
    except (MemoryError, RuntimeError, TypeError) as error:
        reason = _lack_of_memory(error)
        if not reason:
            raise
        raise SystemExit(
            f"statemix: there is not enough memory ({reason.removesuffix('.')}). "
            "Choose smaller sizes, lengths or batches."
        ) from error
    except ImportError as error:
        raise SystemExit(f"statemix: {error}. Some commands need an extra: {_EXTRAS}.") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        what = error.strerror or str(error) or type(error).__name__
        where = "" if error.filename is None else f": {error.filename}"
        raise SystemExit(f"statemix: {what.removesuffix('.')}{where}.") from error
    except KeyboardInterrupt:
        raise SystemExit("statemix: interrupted; run the same command again to resume.") from None


def _lack_of_memory(error: Exception) -> str:
    """Why there is not enough memory; empty for errors that have another cause."""
    lines = str(error).strip().splitlines() or ["out of memory"]
    if _OVERFLOW in str(error):
        return "a size exceeds 63 bits"
    if isinstance(error, MemoryError) or any(map(str(error).count, _NO_MEMORY)):
        return lines[-1]
    return ""


if __name__ == "__main__":
    main()
