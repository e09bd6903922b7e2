"""Settings of all tests.

Shapes are checked, unwritten memory is NaN, torch uses one thread, and hypothesis draws the same
examples every time.
"""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from browser import Browser
from hypothesis import settings

WITH_SHAPES = [
    "ops.block",
    "ops.companion",
    "ops.gated",
    "ops.expanded",
    "ops.hop",
    "ops.normalise",
    "layers.gates",
    "layers.bdlru",
    "layers.hlru",
    "models.lm",
    "models.loss",
]
HOOK = jaxtyping.install_import_hook(
    [f"statemix.{module}" for module in WITH_SHAPES], "beartype.beartype"
)

settings.register_profile(
    "statemix", deadline=None, max_examples=30, derandomize=True, database=None
)
settings.load_profile("statemix")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fill `torch.empty` with NaN to expose unwritten outputs, and forbid non-deterministic ops."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable shape checks, for tests that compile or that check the error texts users see."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A window of Chromium for all tests that look at pages."""
    window = Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()
