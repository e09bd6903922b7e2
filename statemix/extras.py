"""How to install optional dependencies, in the way in which statemix itself was installed."""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

__all__ = ["install_command"]


def install_command(extra: str) -> str:
    """The command that installs an extra, such as `hf`.

    From a clone it names the clone's directory, and stays editable if the installation is; from a
    wheel file it names the file. Otherwise it names the package.
    """
    origin, editable = _origin()
    if not origin.startswith("file://"):
        target = f"statemix[{extra}]"
    elif origin.endswith(".whl"):
        target = f"statemix[{extra}] @ {origin}"
    else:
        target = f"{unquote(urlsplit(origin).path)}[{extra}]"
    return f"pip install {'--editable ' if editable else ''}'{target}'"


@cache
def _origin() -> tuple[str, bool]:
    """The URL that pip recorded for this installation (PEP 610), and whether it is editable."""
    try:
        record = distribution("statemix").read_text("direct_url.json")
    except PackageNotFoundError:
        record = None
    found = json.loads(record or "{}")
    return found.get("url", ""), found.get("dir_info", {}).get("editable", False)
