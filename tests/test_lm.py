"""Language models: sizes, presets, the laws of a sequence model for every mixer, and the loss."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from cases import bounds

from statemix import MIXERS, register_mixer
from statemix.layers.trace import trace
from statemix.models import (
    PRESETS,
    LanguageModel,
    LMConfig,
    count_parameters,
    find_preset,
    lm_config_from_dict,
    next_token_loss,
)
from statemix.models.lm import residual_outputs

V, D = 23, 8
MODELS = {
    "bdlru": {"n_blocks": 3, "block_size": 3},
    "hlru": {"n_channels": 4, "order": 3},
    "lstm": {"hidden": 7},
    "conv": {"kernel": 3},
    "lru": {"n": 4},
    "mamba": {"d_state": 3},
    "mamba2": {"d_state": 3, "head_dim": 4},
    "deltanet": {"heads": 2, "head_dim": 3},
    "attention": {"heads": 2, "kv_heads": 1, "window": 4},
    "short_conv": {"inner": {"mixer": "output_gate", "inner": "attention"}, "kernel": 3},
    "deltaproduct": {"heads": 1, "head_dim": 4, "products": 2},
}
EACH = pytest.mark.parametrize("mixer", MODELS)


def build(mixer="bdlru", **changes):
    torch.manual_seed(0)
    model = LanguageModel(LMConfig(V, D, 2, mixer, MODELS[mixer], **changes)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def tokens(*shape):
    return torch.randint(V, shape)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@EACH
def test_forward_equals_stepping(mixer):
    model, x = build(mixer), tokens(2, 21)
    logits, final = model(x)
    states = None
    for t in range(21):
        logits_t, states = model.step(x[:, t], states)
        close(logits_t, logits[:, t])
    close(states, final)


@EACH
def test_splitting_in_two_changes_nothing(mixer):
    model, x = build(mixer), tokens(2, 19)
    logits, final = model(x)
    first, states = model(x[:, :8])
    second, states = model(x[:, 8:], states)
    close(torch.cat([first, second], 1), logits)
    close(states, final)


@EACH
def test_packed_and_padded_sequences_are_independent(mixer):
    model, lengths = build(mixer), [5, 1, 9]
    x = tokens(1, 15)
    alone = torch.cat([model(part)[0] for part in x.split(lengths, 1)], 1)
    packed, _ = model(x, cu_seqlens=bounds(lengths))
    close(packed, alone)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False
    rows = torch.stack([torch.cat([tokens(4), x[0, :5]]), x[0, 6:]])
    padded, _ = model(rows, mask=mask)
    close(torch.cat([padded[0, 4:], padded[1]]), torch.cat([alone[0, :5], alone[0, 6:]]))


@EACH
def test_the_state_after_every_step(mixer):
    """`trace` returns the state after every step, from which any prefix can continue."""
    layer, x = build(mixer).blocks[0].mixer, torch.randn(2, 9, D, dtype=torch.float64)
    mask = torch.rand(2, 9) > 0.3
    _, before = layer(torch.randn(2, 3, D, dtype=torch.float64))
    y, states = trace(layer, x, before, mask=mask)
    close(y[mask], layer(x, before, mask=mask)[0][mask])
    assert len(states) == 9
    for t in (0, 4, 8):
        close(states[t], layer(x[:, : t + 1], before, mask=mask[:, : t + 1])[1])


def test_traced_states_keep_their_precision():
    layer = build().blocks[0].mixer.bfloat16()
    x = torch.randn(2, 6, D, dtype=torch.bfloat16)
    y, states = trace(layer, x)
    truth, final = layer(x)
    assert (y.dtype, states[-1].dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(states[-1], final)
    torch.testing.assert_close(y, truth, rtol=0.01, atol=0.01)


def paper_size(mixer_parameters):
    """Count the parameters of a paper model: embedding and head, MLPs, norms, mixers."""
    width, layers, vocab, inner = 768, 12, 50_280, 2048
    return 2 * vocab * width + layers * (3 * width * inner + 2 * width + mixer_parameters) + width


def bdlru_size(n, m, d=768):
    return d * n * m * (m + 1) + n * m * (m + 1) + 2 * d * n * m


SIZES = {
    "212m-bdlru-m1": bdlru_size(2112, 1),
    "212m-bdlru-m2": bdlru_size(844, 2),
    "212m-bdlru-m4": bdlru_size(302, 4),
    "212m-bdlru-m8": bdlru_size(96, 8),
    "212m-bdlru-m16": bdlru_size(28, 16),
    "212m-hlru-m16": 242 * (17 * 769 + 768 + 16 * 768),
    "212m-lstm": 4 * 896 * (768 + 896 + 2) + 896 * 768,
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_sizes_of_the_paper(name):
    """Sizes match the formulas exactly, and 212M within 0.5 % (BD-LRU) or 1.1 % (others)."""
    assert count_parameters(find_preset(name)) == paper_size(SIZES[name])
    assert abs(count_parameters(find_preset(name)) / 212e6 - 1) < (
        0.005 if "bdlru" in name else 0.011
    )


def test_small_models_are_parameter_matched():
    sizes = {
        name: count_parameters(config) for name, config in PRESETS.items() if name.startswith("2m-")
    }
    assert {
        "2m-bdlru-m1",
        "2m-bdlru-m16",
        "2m-hlru-m16",
        "2m-lstm",
        "2m-mamba2",
        "2m-deltanet",
    } <= set(sizes)
    assert all(abs(size / 2e6 - 1) < 0.01 for size in sizes.values()), sizes


def test_initial_weights():
    model = LanguageModel(LMConfig(400, 64, 8, "bdlru", {"n_blocks": 32, "block_size": 2}))
    for weight in (
        model.embedding.weight,
        model.head.weight,
        model.blocks[3].mlp.W_1.weight,
        model.blocks[3].mixer.W_g.weight,
    ):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    for block in model.blocks:
        outputs = residual_outputs(block)
        assert outputs == [block.mixer.W_o, block.mlp.W_2]
        for output in outputs:
            assert output.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    loss = F.cross_entropy(
        model(torch.randint(400, (4, 32)))[0].flatten(0, 1), torch.randint(400, (128,))
    )
    assert loss.item() == pytest.approx(math.log(400), rel=0.02)


def test_checkpointing_recomputes_and_changes_nothing():
    model, x = build(), tokens(2, 12)
    calls = []
    model.blocks[1].mixer_norm.register_forward_hook(lambda *_: calls.append(1))

    def gradients():
        calls.clear()
        model.zero_grad()
        logits, states = model(x)
        (logits.square().sum() + sum(state.square().sum() for state in states)).backward()
        return [p.grad.clone() for p in model.parameters()], len(calls)

    plain, once = gradients()
    model.checkpointing = True
    again, twice = gradients()
    assert (once, twice) == (1, 2)
    close(again, plain)
    with torch.no_grad():
        calls.clear()
        model(x)
    assert len(calls) == 1


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_loss_in_chunks_equals_cross_entropy(chunk):
    model, x = build(), tokens(2, 12)
    targets = torch.cat([x[:, 1:], torch.full((2, 1), -100)], 1)
    logits, _ = model(x)
    truth = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    features, _ = model.features(x)
    loss = next_token_loss(features, model.head.weight, targets, chunk=chunk)
    total = next_token_loss(features, model.head.weight, targets, chunk=chunk, reduction="sum")
    close(loss, truth)
    close(total, truth * 22)
    close(
        torch.autograd.grad(loss, list(model.parameters())),
        torch.autograd.grad(truth, list(model.parameters())),
    )


@pytest.mark.parametrize(
    "wanted", [(True, True), (True, False), (False, True), (False, False)], ids=str
)
def test_the_loss_computes_only_the_required_gradients(wanted):
    x, W = (
        torch.randn(rows, 4, dtype=torch.float64, requires_grad=want)
        for rows, want in zip((5, 9), wanted, strict=True)
    )
    targets = torch.tensor([3, -100, 8, 0, -100])
    loss = next_token_loss(x, W, targets, chunk=2)
    truth = F.cross_entropy(F.linear(x, W), targets)
    close(loss, truth)
    assert loss.requires_grad == any(wanted)
    leaves = [y for y, want in zip((x, W), wanted, strict=True) if want]
    if leaves:
        close(torch.autograd.grad(3 * loss, leaves), torch.autograd.grad(3 * truth, leaves))
    with torch.no_grad():
        assert not next_token_loss(x, W, targets).requires_grad


def test_the_loss_in_half_precision():
    """Under autocast, products use bfloat16, sums use float32, and gradients keep their dtypes."""
    x, W, targets = (
        torch.randn(40, 16, requires_grad=True),
        torch.randn(50, 16, requires_grad=True),
        torch.randint(50, (40,)),
    )
    with torch.autocast("cpu", torch.bfloat16):
        loss = next_token_loss(x, W, targets, chunk=7, reduction="sum")
    truth = F.cross_entropy(F.linear(x, W), targets, reduction="sum")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, truth, rtol=1e-2, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (x, W)), torch.autograd.grad(truth, (x, W)), strict=True
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05 * float(theirs.abs().max()))
    half = x.detach().bfloat16().requires_grad_()
    (d,) = torch.autograd.grad(
        next_token_loss(half, W.bfloat16(), targets), half, create_graph=True
    )
    assert torch.autograd.grad(d.sum(), half)[0].isfinite().all()


def test_the_loss_can_be_differentiated_twice():
    x, W = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (5, 4))
    )
    targets = torch.tensor([0, -100, 2])
    loss = lambda x, W: next_token_loss(x, W, targets, chunk=2)  # noqa: E731
    assert torch.autograd.gradcheck(loss, (x, W))
    assert torch.autograd.gradgradcheck(loss, (x, W))
    assert torch.autograd.gradgradcheck(lambda x: loss(x, W.detach()), (x,))


def test_invalid_targets_and_chunks_raise():
    x, W = torch.randn(3, 4), torch.randn(5, 4)
    for wrong in (-1, 5):
        with pytest.raises(
            ValueError,
            match=f"A target must be in 0 .. 4, the rows of the head, or -100, got {wrong}",
        ):
            next_token_loss(x, W, torch.tensor([0, wrong, 2]))
    for chunk in (0, -3):
        with pytest.raises(ValueError, match=f"`chunk` must be at least 1, got {chunk}"):
            next_token_loss(x, W, torch.tensor([0, 1, 2]), chunk=chunk)
    x[1] = float("nan")
    assert next_token_loss(x, W, torch.tensor([0, -100, 2])).isfinite()


def test_steps_that_are_not_scored_have_no_gradient():
    x, W = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss = next_token_loss(x, W, torch.full((3,), -100), reduction="sum")
    assert loss == 0
    assert all((d == 0).all() for d in torch.autograd.grad(loss, (x, W)))


def test_tied_weights_are_shared():
    model = build(tie=True)
    assert model.head.weight is model.embedding.weight
    assert (
        count_parameters(LMConfig(V, D, 2, "lstm", {"hidden": 7}))
        - count_parameters(LMConfig(V, D, 2, "lstm", {"hidden": 7}, tie=True))
        == V * D
    )


def test_a_model_with_a_registered_mixer():
    @register_mixer("halves")
    class Halves(torch.nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.state_size = d_model

        def forward(self, x, state=None, *, cu_seqlens=None, mask=None):
            outputs = []
            for t in range(x.shape[1]):
                state = x[:, t] if state is None else x[:, t] + state / 2
                outputs.append(state)
            return torch.stack(outputs, 1), state

        def step(self, x_t, state=None):
            state = x_t if state is None else x_t + state / 2
            return state, state

    try:
        model = LanguageModel(LMConfig(V, D, 2, "halves"))
        assert model.state_size == 2 * D
        logits, states = model(tokens(2, 5))
        assert (logits.shape, len(states)) == ((2, 5, V), 2)
    finally:
        del MIXERS["halves"]


def test_compiles_to_one_graph(unchecked):
    model, x = build(), tokens(2, 12)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(compiled(x)[0], model(x)[0])


def test_configs_convert_to_json_and_back():
    for config in PRESETS.values():
        assert lm_config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: build()(torch.tensor([[1, V]])),
            f"A token id must be in 0 .. {V - 1}, the model's vocabulary, got {V}",
        ),
        (lambda: build().step(torch.tensor([-1])), "got -1"),
        (
            lambda: build()(tokens(1, 2), [None]),
            "`states` must have one entry per layer: expected 2, got 1",
        ),
        (
            lambda: LMConfig(0),
            "`vocab` must be at least 1, got 0",
        ),
        (lambda: LMConfig(9, inner=2.5), "`inner` must be a whole number, got 2.5"),
        (lambda: LMConfig(9, norm_eps=0), "`norm_eps` must be above zero"),
        (
            lambda: lm_config_from_dict({"vocab": 3, "depth": 2}),
            "Unknown fields in the config of a language model: depth. Available: vocab, width",
        ),
        (lambda: lm_config_from_dict({}), "must have the field `vocab`"),
        (lambda: lm_config_from_dict([1]), "must be a JSON object"),
        (lambda: find_preset("2m-bdlru"), "Unknown preset '2m-bdlru'. Available: 212m-bdlru-m1"),
        (
            lambda: next_token_loss(
                torch.randn(2, 3), torch.randn(4, 3), torch.zeros(3, dtype=torch.long)
            ),
            "`targets` must match `x`",
        ),
        (
            lambda: next_token_loss(
                torch.randn(2, 3),
                torch.randn(4, 3),
                torch.zeros(2, dtype=torch.long),
                reduction="max",
            ),
            "Unknown reduction",
        ),
    ],
)
def test_errors_name_the_problem(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tokens_must_be_integers(unchecked):
    with pytest.raises(TypeError, match=r"must be integers \(int32 or int64\), got torch.float32"):
        build()(torch.zeros(1, 2))
