"""The demo at a small size, and its page in a real browser."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import CONTRAST, FAULTS

from statemix import BDLRU, HLRU, demo
from statemix.analysis.spectrum import eigenvalues, transitions
from statemix.cli import main
from statemix.commands.views import demo as demo_module
from statemix.commands.views.inspect import describe
from statemix.demo import page as page_module
from statemix.demo.arithmetic import additions, load_example, multiplications
from statemix.demo.cells import cells
from statemix.demo.page import write_page
from statemix.demo.trained import LENGTHS, Plane, Trained
from statemix.proof import load_certificate
from statemix.proof.saved import CERTIFICATE

PROVED = Path(__file__).parents[1] / "examples" / "models" / "s5"
ACTIONS = """
const seen = {};
const change = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("input")); };
const values = () => document.querySelectorAll("#plane .eigenvalue").length;
const said = () => [values(), $("plane-name").textContent, $("plane-words").textContent];
seen.first = said();
change("plane-step", 0);
seen.second = said();
change("plane-model", "diagonal");
seen.other = said();
seen.widths = [...document.querySelectorAll("#length svg[role=img]")].map((svg) => svg.clientWidth);
seen.main = document.querySelector("main").clientWidth;
seen.legend = document.querySelector("#length .legend").textContent;
return seen;
"""


def test_demo(tmp_path, monkeypatch, capsys):
    """The command trains models, prints a table, and writes the page."""

    def small(seed):
        shorter = {"train_examples": 256, "test_examples": 50, "max_steps": 4, "certify": False}
        return [
            replace(cell, config=replace(cell.config, **shorter, restart_after=0))
            for cell in cells(seed)
        ]

    monkeypatch.setattr(demo_module, "cells", small)
    monkeypatch.setattr(demo, "LENGTHS", (16, 64))
    monkeypatch.setattr(page_module, "_LAST", 64)
    monkeypatch.setattr(demo_module, "LENGTHS", (16, 64))
    page = tmp_path / "demo.html"
    main(["demo", "--page", str(page), "--workers", "2"])
    printed = capsys.readouterr().out
    for text in ("products of permutations", "BD-LRU, m = 3", "H-LRU, m = 3", "Mamba-2", "LSTM"):
        assert text in printed
        assert text in page.read_text() or text == "products of permutations"
    assert "proved" not in printed


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of two models, one of them proved."""
    accuracy = dict.fromkeys(LENGTHS, 1.0)
    plane = Plane(np.full((3, 4), 0.5 + 0.25j), 0.0, 1.0)
    alone = Plane(np.full((3, 2), 0.5), 0.0, 0.0)
    models = [
        Trained(
            "mixing <b>", 96, 1234, 4.2, accuracy, plane, load_certificate(PROVED / CERTIFICATE)
        ),
        Trained("diagonal", 96, 1000, 6.0, accuracy | {LENGTHS[-1]: 0.2}, alone, None),
    ]
    path = tmp_path_factory.mktemp("demo") / "page.html"
    write_page(path, models, seed=3)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_the_page_is_readable(browser, page, width, scheme):
    """No clipped or covered text, a description of every figure, a clean console, contrast."""
    browser.look(page, width, scheme)
    assert browser.run(FAULTS) == []
    assert browser.messages() == []
    ratio, where = browser.run(CONTRAST)
    assert ratio >= 4.5, where


def test_the_page_in_a_browser(browser, page):
    """The first figure has the full width; eigenvalues can be stepped through."""
    document = page.read_text()
    assert "http" not in document.replace("http://www.w3.org/2000/svg", "")
    assert "mixing <b>" not in document.split("<script>")[0]
    browser.look(page, 1280)
    seen = browser.run(ACTIONS)
    assert seen["first"][:2] == [4, "token 1"]
    assert seen["second"][:2] == [4, "before the first token"]
    assert seen["other"] == [
        2,
        "before the first token",
        "diagonal: 0 % of all eigenvalues are negative, 0 % complex.",
    ]
    assert min(seen["widths"]) > 0.9 * seen["main"]
    assert "mixing <b>: 4 s, proved" in seen["legend"]
    assert "the certificate and its automaton" in document
    assert document.count("What is m?") == document.count("Why not just an LSTM?") == 1


def test_the_first_layer_multiplies_and_the_second_adds():
    """Both are read off the weights of the certified model, and are the tables of arithmetic."""
    example = load_example("mod_arith")
    times = multiplications(example)
    assert len(times[1]) == 4
    for a, b in itertools.product(times, repeat=2):
        both = tuple(times[a][i] for i in times[b])
        assert both == times[a * b % 5]
    moves = additions(example)
    assert len(moves) == 5
    turns = {tuple(one[i] for i in other) for one, other in itertools.product(moves, repeat=2)}
    assert len(turns) == 5  # the rotations
    assert all(tuple(x[i] for i in y) in turns for x, y in itertools.product(turns, repeat=2))


def test_an_example_that_is_missing_is_named():
    with pytest.raises(FileNotFoundError, match="There is no example 'moon'"):
        load_example("moon")


@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_transitions_match_the_layer(cls):
    """With zero input values, a step multiplies the state by its transition."""
    layer = cls(4, 3, 2).double()
    torch.nn.init.normal_(layer.W_g.weight)
    torch.nn.init.zeros_(layer.W_v.weight)
    x, h = torch.randn(1, 1, 4, dtype=torch.float64), torch.randn(1, 3, 2, dtype=torch.float64)
    A = transitions(layer, x)[:, 0]
    torch.testing.assert_close(layer(x, h)[1], (A @ h.unsqueeze(-1)).squeeze(-1))
    spectrum = eigenvalues(A)
    np.testing.assert_allclose(
        sorted(spectrum[0, 0].abs().tolist()),
        sorted(np.abs(np.linalg.eigvals(A[0, 0].detach().numpy()))),
    )
    assert spectrum.abs().max() <= 1
    assert "|λ| up to" in describe(1, spectrum)


def test_other_mixers_have_no_transitions():
    with pytest.raises(TypeError, match="must be a BDLRU or an HLRU, got Linear"):
        transitions(torch.nn.Linear(2, 2), torch.zeros(1, 1, 2))
