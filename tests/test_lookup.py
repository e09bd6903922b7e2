"""Work that a layer can skip: gates of repeated inputs, and outputs that are not needed."""

import pytest
import torch
from cases import bounds, random_mask
from torch import nn

from statemix import BDLRU, HLRU
from statemix.kernels.cpu import layer as cpu_layer
from statemix.kernels.cpu.library import Missing, load
from statemix.layers.lookup import embed
from statemix.layers.mixer import build_mixer, mix
from statemix.models import Autoencoder, ModelConfig, Tagger
from statemix.ops import Lookup
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.dispatch import layer_op

T = 21
READ_FROM = pytest.mark.parametrize("read_from", [0, 1, 13, T - 1, T])
LAYERS = pytest.mark.parametrize("cls", [BDLRU, HLRU])
needs_kernel = pytest.mark.skipif(isinstance(load(), Missing), reason="no compiled CPU library")
SETTINGS = {
    "batch": (3, {}),
    "reverse": (2, {"reverse": True}),
    "masked": (2, {"mask": random_mask(2, T, 4)}),
    "packed": (1, {"cu_seqlens": bounds([3, 0, 17, 1])}),
}


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(cpu_layer, "STEPS", 8)
    monkeypatch.setattr(layer_op, "STEPS", 8)


def outputs_and_gradients(layer, x, options, read_from, *, sliced):
    """Outputs from `read_from` on, final state, and all gradients of a function of both."""
    x = x.detach().requires_grad_()
    if sliced:
        y, state = layer(x, **options)
        y = y[:, read_from:]
    else:
        y, state = layer(x, read_from=read_from, **options)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    loss = (y * weights).sum() + state.square().sum()
    return y, state, *torch.autograd.grad(loss, [x, *layer.parameters()])


@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@pytest.mark.parametrize("fused", [False, True], ids=["lines", "fused"])
@pytest.mark.parametrize("setting", SETTINGS)
@READ_FROM
@LAYERS
def test_reading_late_steps_equals_slicing(
    monkeypatch, cls, read_from, setting, fused, save_memory
):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0 if fused else 1 << 60)
    B, options = SETTINGS[setting]
    layer = cls(6, 9, 3, learn_initial_state=True, save_memory=save_memory)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(B, T, 6)
    ours = outputs_and_gradients(layer, x, options, read_from, sliced=False)
    expected = outputs_and_gradients(layer, x, options, read_from, sliced=True)
    assert ours[0].shape == (B, T - read_from, 6)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@LAYERS
def test_a_backward_pass_under_autocast_keeps_float32(monkeypatch, cls):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)
    layer = cls(6, 9, 3)
    x = torch.randn(2, T, 6)
    y, _ = layer(x, read_from=7)
    expected = torch.autograd.grad(y.square().sum(), list(layer.parameters()))
    y, _ = layer(x, read_from=7)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(y.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("read_from", [-1, T + 1])
@LAYERS
def test_read_from_is_a_step(unchecked, cls, read_from):
    with pytest.raises(ValueError, match=f"`read_from` must be a step in 0 .. {T}, got"):
        cls(6, 2, 2)(torch.randn(1, T, 6), read_from=read_from)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bdlru", {"n_blocks": 4, "block_size": 2}),
        ("hlru", {"n_channels": 4, "order": 2}),
        ("lstm", {"hidden": 8}),
        ("mamba2", {"head_dim": 16}),
        ("deltanet", {"head_dim": 4}),
    ],
)
def test_any_mixer_can_be_read_late(name, options):
    mixer = build_mixer(name, 8, options)
    x = torch.randn(2, T, 8)
    y, _ = mix(mixer, x, None)
    late, _ = mix(mixer, x, None, 5)
    torch.testing.assert_close(late, y[:, 5:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("mixer", "options"),
    [
        ("bdlru", {"n_blocks": 4, "block_size": 3}),
        ("hlru", {"n_channels": 4, "order": 3}),
        ("lstm", {"hidden": 8}),
    ],
)
@pytest.mark.parametrize("model_class", [Tagger, Autoencoder])
@pytest.mark.parametrize("read_from", [0, 4, 8])
def test_models_read_late_steps(model_class, mixer, options, layers, read_from):
    config = ModelConfig(mixer, options, width=8, layers=layers)
    arguments = (9,) if model_class is Autoencoder else ()
    model = model_class(config, 5, 4, *arguments).double()
    tokens = torch.randint(5, (4, 9))
    parameters = list(model.parameters())
    late, _ = model(tokens, read_from=read_from)
    expected = model(tokens)[0][:, read_from:]
    torch.testing.assert_close(late, expected, rtol=1e-10, atol=1e-12)
    ours = torch.autograd.grad(late.square().sum(), parameters)
    theirs = torch.autograd.grad(expected.square().sum(), parameters)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("read_from", [0, 3])
def test_reading_chosen_steps_equals_indexing(layers, read_from):
    torch.manual_seed(0)
    config = ModelConfig(width=8, layers=layers, options={"n_blocks": 2, "block_size": 2})
    model = Tagger(config, vocab=5, classes=3)
    tokens = torch.randint(5, (4, 9))
    chosen = torch.rand(4, 9 - read_from) < 0.3
    ours, _ = model(tokens, read_from=read_from, read_at=chosen)
    expected = model(tokens)[0][:, read_from:][chosen]
    torch.testing.assert_close(ours, expected)
    weights = list(model.parameters())
    target = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * target).sum(), weights),
        torch.autograd.grad((expected * target).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("mixer", "options"),
    [
        ("bdlru", {"n_blocks": 4, "block_size": 3}),
        ("hlru", {"n_channels": 4, "order": 3}),
        ("mamba2", {"head_dim": 8, "d_state": 3, "conv": 0}),
        ("mamba2", {"head_dim": 8, "d_state": 3}),
        ("deltanet", {"head_dim": 4, "conv": 0}),
        ("deltaproduct", {"head_dim": 4, "products": 2}),
    ],
)
@pytest.mark.parametrize("length", [9, 6])
def test_positions_and_tokens_are_looked_up_together(monkeypatch, mixer, options, length):
    """One row for every pair of a position and a token, with the gradients of the plain path."""
    model = Autoencoder(ModelConfig(mixer, options, width=8), 5, 5, 9).double()
    tokens = torch.randint(5, (40, length))

    def everything():
        logits, _ = model(tokens)
        parameters = list(model.parameters())
        return [logits, *torch.autograd.grad(logits.square().sum(), parameters)]

    mixer_of_block = model.blocks[0].mixer
    positions = model.positions[:length]
    x = embed(model.embedding, tokens, mixer_of_block, positions)
    assert isinstance(x, Lookup)
    assert x.table.shape == (length * 5, 8)
    looked_up = everything()
    monkeypatch.setattr("statemix.ops.dispatch.layer.FEW", 10**9)
    gathered = embed(model.embedding, tokens, mixer_of_block, positions)
    assert not isinstance(gathered, Lookup)
    torch.testing.assert_close(looked_up, everything(), rtol=1e-10, atol=1e-12)


@needs_kernel
@pytest.mark.parametrize("m", [1, 2, 3, 5, 7, 16])
@LAYERS
def test_a_table_is_as_accurate_as_gates_at_every_step(monkeypatch, cls, m):
    """Also where a block averages, so that the gradient of a gate is a small difference.

    Errors relative to float64 vary with the draw; the median is over seven of them.
    """

    def everything(layer, table, tokens):
        table = table.clone().requires_grad_()
        y, state = layer(Lookup(table, tokens))
        loss = y.square().sum() + state.sum()
        return y.detach(), *torch.autograd.grad(loss, [table, *layer.parameters()])

    ratios = []
    for seed in range(7):
        torch.manual_seed(seed)
        layer = cls(6, 9, m)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        table = 3 + torch.randn(5, 6)
        tokens = torch.randint(5, (4, 200))
        monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)
        fused = everything(layer, table, tokens)
        monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 1 << 60)
        lines = everything(layer, table, tokens)
        truth = everything(layer.double(), table.double(), tokens)
        errors = [
            [float((x - exact).norm()) for x, exact in zip(found, truth, strict=True)]
            for found in (fused, lines)
        ]
        ratios.append([ours / theirs for ours, theirs in zip(*errors, strict=True)])
    assert max(torch.tensor(ratios).median(0).values.tolist()) <= 2


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_of_saturated_rows_copies_states_exactly(monkeypatch, dtype):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)
    m, steps = 5, 8192
    layer = BDLRU(m, 1, m, learn_initial_state=True).to(dtype)
    generator = torch.Generator().manual_seed(0)
    moves = [torch.randperm(m, generator=generator) for _ in range(4)]
    table = torch.eye(4, m)
    with torch.no_grad():
        gates = torch.zeros(m, m + 1, m)
        for token, move in enumerate(moves):
            gates[torch.arange(m), move, token] = 256
        layer.W_g.weight.copy_(gates.flatten(0, 1))
        layer.W_g.bias.zero_()
        layer.h0.copy_(torch.arange(m).view(1, m))
    tokens = torch.randint(4, (1, steps), generator=generator)
    _, final = layer(Lookup(table.to(dtype), tokens))
    expected = torch.arange(m)
    for token in tokens[0].tolist():
        expected = expected[moves[token]]
    assert final.flatten().tolist() == expected.tolist()


@needs_kernel
@LAYERS
def test_a_table_gives_the_same_bits_for_any_number_of_threads(monkeypatch, cls):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)
    layer = cls(6, 70, 4)
    table = torch.randn(33, 6).requires_grad_()
    tokens = torch.randint(33, (3, 500))
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        y, state = layer(Lookup(table, tokens))
        found.append((y, state))
    torch.set_num_threads(1)
    torch.testing.assert_close(*found, rtol=0, atol=0)
