"""The demo at a small size: it trains, prints a summary, and writes one self-contained page."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from statemix import BDLRU, HLRU
from statemix.analysis.spectrum import eigenvalues, transitions
from statemix.cli import main
from statemix.commands.views import demo as demo_module
from statemix.commands.views.inspect import describe
from statemix.demo.cells import cells
from statemix.demo.page import Panel, write_page


def test_demo(tmp_path, monkeypatch, capsys):
    def small(seed):
        chosen = [cell for cell in cells(seed) if cell.states in (24, 40)]
        return [
            replace(
                cell, config=replace(cell.config, train_examples=256, test_examples=50, epochs=2)
            )
            for cell in chosen
        ]

    monkeypatch.setattr(demo_module, "cells", small)
    page = tmp_path / "demo.html"
    main(["demo", "--page", str(page), "--workers", "2"])
    printed = capsys.readouterr().out
    for text in (
        "products of permutations",
        "walks on a cycle",
        "BD-LRU, blocks of 3",
        "H-LRU of order 3",
        "LSTM",
    ):
        assert text in printed
    document = page.read_text()
    assert document.count("<figure>") == 7  # every BD-LRU and the H-LRU have a spectrum
    assert "http" not in document.replace("http://www.w3.org", "")
    assert "<script" not in document


def test_page_marks_solved_tasks_and_escapes_text(tmp_path):
    panel = Panel(
        "task <b>", "m & n", 3, 16, 1.0, 100, 0.5, [(1, 0.2), (9, 1.0)], np.array([0.5 + 0.1j, -1])
    )
    write_page(tmp_path / "page.html", [panel])
    document = (tmp_path / "page.html").read_text()
    assert "<td class=solved>1.000</td><td>0.500</td>" in document
    assert "m &amp; n" in document
    assert "<b>" not in document
    assert re.search(r'cx="10\.0" cy="90\.0"', document)  # −1 on the unit circle


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
