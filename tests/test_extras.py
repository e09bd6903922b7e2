"""Hints to install extras match how statemix was installed."""

import json

import pytest

from statemix import extras


class Installed:
    def __init__(self, record: object) -> None:
        self.record = record

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.record is None else json.dumps(self.record)


CLONE = {"url": "file:///home/me/my%20clone", "dir_info": {"editable": True}}
COPY = {"url": "file:///home/me/statemix", "dir_info": {}}
WHEEL = {"url": "file:///tmp/statemix-0.1.0-py3-none-any.whl", "archive_info": {}}


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, "pip install 'statemix[hf]'"),
        (CLONE, "pip install --editable '/home/me/my clone[hf]'"),
        (COPY, "pip install '/home/me/statemix[hf]'"),
        (WHEEL, "pip install 'statemix[hf] @ file:///tmp/statemix-0.1.0-py3-none-any.whl'"),
    ],
)
def test_the_hint_matches_the_installation(monkeypatch, record, command):
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(record))
    extras._origin.cache_clear()
    try:
        assert extras.install_command("hf") == command
    finally:
        extras._origin.cache_clear()


def test_every_hint_names_an_extra_that_exists():
    import re
    from importlib.metadata import metadata
    from pathlib import Path

    declared = set(metadata("statemix").get_all("Provides-Extra"))
    sources = Path(extras.__file__).parent.rglob("*.py")
    named = {
        extra
        for source in sources
        for extra in re.findall(r"install_command\(.(\w[\w-]*).\)", source.read_text())
    }
    assert named
    assert named <= declared
