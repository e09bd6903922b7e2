"""The reference lists every public name, with the shapes of its tensors, and every command."""

import inspect
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "transformers", reason="the reference covers statemix.hf, which needs transformers"
)
DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import api  # noqa: E402
import command_line  # noqa: E402

MODULES = {module.__name__: module for module in api.modules()}
SHAPE = re.compile(r"\((1|[A-Z]\w?)\b[^)]*\)")


def test_packages_that_users_import_from_are_public():
    for name in ("", ".ops", ".layers", ".models", ".tasks", ".train", ".lm", ".hf", ".sweep"):
        assert f"statemix{name}" in MODULES
    assert not any(".kernels" in name or ".commands" in name for name in MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_an_entry(name):
    module = MODULES[name]
    page = api.page(module)
    for public in module.__all__:
        if not inspect.ismodule(getattr(module, public)):
            heading = f"\n## {public}\n" in page
            link = f"- [`{public}`]" in page
            assert heading != link, f"{name}.{public}"


@pytest.mark.parametrize("name", MODULES)
def test_every_tensor_has_a_shape(name):
    """In the annotation, or in the docstring."""
    module = MODULES[name]
    for public in module.__all__:
        thing = getattr(module, public)
        parts = {public: thing} if callable(thing) else {}
        if inspect.isclass(thing):
            parts |= {f"{public}.{name}": m for name, m in api.methods(thing).items()}
        for part, function in parts.items():
            if api.unshaped(function):
                said = inspect.getdoc(function) or ""
                assert SHAPE.search(said), f"{name}.{part}: {api.unshaped(function)}"


def test_every_name_has_a_docstring():
    missing = [
        f"{module.__name__}.{public}"
        for module in MODULES.values()
        for public in module.__all__
        if (inspect.isclass(getattr(module, public)) or inspect.isfunction(getattr(module, public)))
        and not inspect.getdoc(getattr(module, public))
    ]
    assert missing == []


def test_the_command_line_has_every_command(tmp_path):
    command_line.write(tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    for words in ("train", "lm train", "lm export", "bench speed", "certify", "sweep"):
        assert f" statemix {words}\n" in page
    assert "--block-size" in page
    assert "\x1b" not in page


def test_a_tensor_without_a_shape_is_found():
    from torch import Tensor

    def scale(x: Tensor, y: "Tensor", z: dict[str, Tensor]) -> tuple[Tensor, int]:
        return x, 1

    assert api.unshaped(scale) == ["x", "return"]
