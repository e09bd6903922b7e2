"""Calls that no honest program makes: they end in an error that says what is wrong, or work."""

import numpy as np
import pytest
import torch

from statemix import (
    BDLRU,
    NORMALISERS,
    LanguageModel,
    LMConfig,
    block_scan,
    companion_scan,
    gated_block_scan,
    gated_companion_scan,
    hop_scan,
)
from statemix.config.model import ModelConfig
from statemix.models import Tagger
from statemix.models.autoencoder import Autoencoder
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.dispatch import layer_call

SCANS = {
    "block": (block_scan, (4, 3, 3), (4, 3)),
    "companion": (companion_scan, (4, 3), (4,)),
    "gated_block": (gated_block_scan, (4, 3, 4), (4, 3)),
    "gated_companion": (gated_companion_scan, (4, 4), (4,)),
    "hop": (hop_scan, (4, 3, 3), (4, 3)),
}
SIZES = {"n_blocks": 2, "block_size": 2}


@pytest.mark.parametrize("bounds", [(0, 10**7, 8), (0, -5, 8), (0, 3, 10**9), (5, 3, 8)])
@pytest.mark.parametrize("name", SCANS)
def test_bounds_that_change_between_the_passes_are_noticed(name, bounds, unchecked):
    scan, transition, driver = SCANS[name]
    shared = np.array([0, 3, 8])
    X = (torch.randn(1, 8, *transition) * 0.2).requires_grad_()
    h, _ = scan(X, torch.randn(1, 8, *driver), cu_seqlens=torch.from_numpy(shared))
    shared[:] = bounds
    if name == "hop":  # it keeps a copy
        h.sum().backward()
        return
    with pytest.raises(ValueError, match="`cu_seqlens` must"):
        h.sum().backward()


def unusual_tensors():
    x = torch.zeros(2, 5, 8)
    return {
        "sparse": x.to_sparse(),
        "compressed": x[0].to_sparse_csr(),
        "nested": torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged),
        "mkldnn": x.to_mkldnn(),
        "float8": x.to(torch.float8_e4m3fn),
        "quantised": torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
    }


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:.*quant:UserWarning")
@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
@pytest.mark.parametrize(
    "kind", ["sparse", "compressed", "nested", "mkldnn", "float8", "quantised"]
)
def test_one_check_refuses_unusual_tensors(kind, unchecked):
    x = unusual_tensors()[kind]
    with pytest.raises(TypeError, match="`x` must (be a dense tensor|be float16|not be quant)"):
        BDLRU(8, **SIZES)(x)
    with pytest.raises(TypeError, match="`b` must (be a dense tensor|be float16|not be quant)"):
        block_scan(torch.zeros(2, 5, 1, 8, 8), x)


@pytest.mark.parametrize("name", SCANS)
def test_reverse_is_a_truth_value(name, unchecked):
    scan, transition, driver = SCANS[name]
    with pytest.raises(TypeError, match="`reverse` must be True or False, got 'yes'"):
        scan(torch.zeros(1, 8, *transition), torch.zeros(1, 8, *driver), reverse="yes")


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("save_memory", [True, False])
def test_layers_check_bounds(kernel, save_memory, unchecked, monkeypatch):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)
    if not kernel:
        monkeypatch.setattr(layer_call, "LAYER_KERNELS", {})
    layer = BDLRU(8, save_memory=save_memory, **SIZES)
    for bounds in ([0, 5, 1, 6], [1, 6], [0, 2**62, 6], [0, 5]):
        with pytest.raises(ValueError, match="`cu_seqlens` must"):
            layer(torch.randn(1, 6, 8), cu_seqlens=torch.tensor(bounds))
    with pytest.raises(ValueError, match="`cu_seqlens` must be on the device of `x`, cpu, got m"):
        layer(torch.randn(1, 6, 8), cu_seqlens=torch.tensor([0, 6], device="meta"))


@pytest.mark.parametrize("name", ["block", "companion"])
def test_outputs_have_the_precision_of_their_dtype(name, unchecked):
    """With one argument in bfloat16, h is float32 and not rounded to bfloat16."""
    scan, transition, driver = SCANS[name]
    X, x = torch.randn(2, 7, *transition) / 4, torch.randn(2, 7, *driver).bfloat16()
    h, _ = scan(X, x)
    exact, _ = scan(X.double(), x.double())
    assert h.dtype == torch.float32
    assert (h - exact).abs().max() < 1e-6 * exact.abs().max()
    backwards, _ = scan(X.bfloat16(), x.float())
    exact, _ = scan(X.bfloat16().double(), x.double())
    assert (backwards - exact).abs().max() < 1e-6 * exact.abs().max()


def test_a_dtype_is_one_of_torch(unchecked):
    with pytest.raises(TypeError, match="`dtype` must be floating point, got float"):
        BDLRU(8, dtype="float", **SIZES)


def models():
    config = ModelConfig(width=8, options=SIZES)
    return {
        "lm": LanguageModel(LMConfig(vocab=5, width=8, layers=1, options=SIZES)),
        "tagger": Tagger(config, 5, 3),
        "tagger without BOS": Tagger(ModelConfig(width=8, options=SIZES, bos=False), 5, 3),
        "autoencoder": Autoencoder(config, 5, 3, length=5),
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("gate", sorted(NORMALISERS))
@pytest.mark.parametrize("scan", [gated_block_scan, gated_companion_scan])
def test_numbers_that_are_not_finite_stay_in_their_sequence_and_block(scan, gate, value, unchecked):
    """The contract of docs/reference/scans.md."""
    own = (3,) if scan is gated_block_scan else ()
    gates, v = torch.randn(2, 9, 4, *own, 4), torch.randn(2, 9, 4, *own)

    def run(hostile):
        leaves = [gates.clone(), v.clone()]
        if hostile:
            leaves[0].view(2, 9, 4, -1)[1, 5, 2, 0] = leaves[1].view(2, 9, 4, -1)[1, 3, 2, 0] = (
                value
            )
        leaves = [x.requires_grad_() for x in leaves]
        h, final = scan(*leaves, gate=gate)
        return h, final, *torch.autograd.grad(h.sum() + final.sum(), leaves)

    for x, y in zip(run(hostile=True), run(hostile=False), strict=True):
        axis = x.dim() - y.dim() + (2 if x.shape[:3] == (2, 9, 4) else 1)
        assert torch.equal(x[0], y[0])
        others = torch.tensor([0, 1, 3])
        assert torch.equal(x.index_select(axis, others), y.index_select(axis, others))


@pytest.mark.parametrize("name", models())
def test_tokens_without_memory_are_refused(name, unchecked):
    model = models()[name]
    tokens = torch.zeros(2, 5, dtype=torch.long, device="meta")
    with pytest.raises(ValueError, match="must be on the device of `embedding`, cpu, got meta"):
        model(tokens)
    if hasattr(model, "step"):
        with pytest.raises(ValueError, match="must be on the device of `embedding`, cpu, got meta"):
            model.step(tokens[:, 0])


@pytest.mark.parametrize("name", models())
def test_tokens_have_a_dtype_that_torch_looks_up(name, unchecked):
    with pytest.raises(TypeError, match=r"must be integers \(int32 or int64\), got torch.uint8"):
        models()[name](torch.zeros(2, 5, dtype=torch.uint8))


@pytest.mark.parametrize("name", models())
def test_tokens_outside_the_vocabulary_are_refused(name, unchecked):
    with pytest.raises(ValueError, match="A token id must be in 0 .. "):
        models()[name](torch.full((2, 5), 9))
