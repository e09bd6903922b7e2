"""The experiment on language models: models that match, runs that are written down once."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from texts import little_data

from statemix.models.lm import count_parameters

pytest.importorskip(
    "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
)


@pytest.fixture(scope="module")
def lm_small():
    path = Path(__file__).parent.parent / "experiments" / "lm_small.py"
    spec = importlib.util.spec_from_file_location("lm_small", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["lm_small"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return little_data(tmp_path_factory.mktemp("little"))


def test_models_of_a_panel_have_as_many_parameters(lm_small, data):
    every = list(lm_small.planned(lm_small.Options(data.directory)))
    assert len({cell.config.id for cell in every}) == len(every) == 11 * 4 + 5 * 2
    sizes = [
        count_parameters(cell.config.model)
        for cell in every
        if "a" in cell.panels and cell.config.lr == 2e-3
    ]
    assert len(sizes) == 11
    assert max(sizes) < 1.02 * min(sizes)
    only_b = list(lm_small.planned(lm_small.Options(data.directory, panels=("b",))))
    assert {cell.panels for cell in only_b} == {("b",)}


def test_runs_are_written_down_once(lm_small, data, tmp_path, capsys):
    options = lm_small.Options(
        data.directory,
        panels=("a",),
        models=("bdlru-m16", "lstm"),
        rates=(3e-3,),
        steps=1,
        batch=1,
        length=8,
        out=tmp_path / "lines" / "small.jsonl",
        runs=tmp_path / "runs",
    )
    lm_small.main(options)
    lines = [json.loads(line) for line in options.out.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["bdlru-m16", "lstm"]
    assert all(line["result"]["perplexity"] > 1 and line["config"]["lr"] == 3e-3 for line in lines)
    capsys.readouterr()
    lm_small.main(options)
    assert capsys.readouterr().out == ""
    assert len(options.out.read_text().splitlines()) == 2
