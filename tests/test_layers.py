"""The layers: definitions, states, and the mixer protocol."""

import copy
import math
import re

import pytest
import torch
from cases import bounds
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from statemix import BDLRU, HLRU, MIXERS, NORMALISERS, Mixer, build_mixer, register_mixer
from statemix.layers.mlp import PublishedSwiGLU, build_channel_mixer
from statemix.models import LanguageModel, LMConfig, ModelConfig, Tagger
from statemix.ops import normalise

D = 6
VARIANTS = [
    *[(cls, {"gate": gate}) for cls in (BDLRU, HLRU) for gate in NORMALISERS],
    *[
        (cls, {"selectivity": s, "learn_initial_state": True})
        for cls in (BDLRU, HLRU)
        for s in ("full", "pointwise", "none")
    ],
    (HLRU, {"form": "observer"}),
    (HLRU, {"form": "observer", "learn_initial_state": True}),
]
every_variant = pytest.mark.parametrize(
    ("cls", "options"), VARIANTS, ids=[f"{c.__name__} {o}" for c, o in VARIANTS]
)


def make(cls, options, n=3, m=2, seed=0) -> nn.Module:
    """Make a float64 layer with weights large enough for gates to matter."""
    torch.manual_seed(seed)
    mixer = cls(D, n, m, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return mixer


def stepped(mixer, x, state=None):
    outputs = []
    for x_t in x.unbind(1):
        y, state = mixer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@every_variant
@given(
    T=st.sampled_from([1, 2, 5, 11]),
    m=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 999),
    given_state=st.booleans(),
)
def test_forward_equals_stepping_splitting_packing_and_padding(
    cls, options, T, m, seed, given_state
):
    mixer = make(cls, options, m=m, seed=seed)
    x = torch.randn(2, T, D, dtype=torch.float64)
    state = torch.randn(2, 3, m, dtype=torch.float64) if given_state else None
    full = mixer(x, state)
    torch.testing.assert_close(stepped(mixer, x, state), full)

    first, middle = mixer(x[:, : T // 2], state)
    second, final = mixer(x[:, T // 2 :], middle)
    torch.testing.assert_close((torch.cat([first, second], 1), final), full)

    packed, final = mixer(x.reshape(1, 2 * T, D), state, cu_seqlens=bounds([T, T]))
    torch.testing.assert_close((packed.view(2, T, D), final), full)

    for left, right in ((2, 0), (0, 3), (1, 1)):
        padded = torch.cat([torch.randn(2, left, D), x, torch.randn(2, right, D)], 1)
        mask = torch.zeros(2, left + T + right, dtype=torch.bool)
        mask[:, left : left + T] = True
        y, final = mixer(padded, state, mask=mask)
        torch.testing.assert_close((y[:, left : left + T], final), full)


@every_variant
@pytest.mark.parametrize("setting", ["batch", "masked", "packed", "packed masked"])
def test_reverse_equals_the_layer_on_flipped_time(cls, options, setting):
    """Flipping time also reverses the order of packed sequences."""
    mixer = make(cls, options)
    B, T = (1, 9) if "packed" in setting else (2, 9)
    lengths = [4, 0, 5] if "packed" in setting else None
    S = B if lengths is None else len(lengths)
    x = torch.randn(B, T, D, dtype=torch.float64)
    state = torch.randn(S, 3, 2, dtype=torch.float64)
    mask = torch.rand(B, T) > 0.3 if "masked" in setting else None
    y, final = mixer(
        x,
        state,
        cu_seqlens=None if lengths is None else bounds(lengths),
        mask=mask,
        reverse=True,
    )
    flipped, flipped_final = mixer(
        x.flip(1),
        state if lengths is None else state.flip(0),
        cu_seqlens=None if lengths is None else bounds(lengths[::-1]),
        mask=None if mask is None else mask.flip(1),
    )
    torch.testing.assert_close(y, flipped.flip(1))
    torch.testing.assert_close(final, flipped_final if lengths is None else flipped_final.flip(0))


@pytest.mark.parametrize("save_memory", [False, True])
@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_reverse_at_the_sizes_of_fused_layers(cls, save_memory):
    mixer, x = cls(64, 64, 4, save_memory=save_memory), torch.randn(4, 256, 64)
    found = []
    for reverse, inputs in ((True, x), (False, x.flip(1))):
        y, state = mixer(inputs, reverse=reverse)
        gradients = torch.autograd.grad(state.square().sum(), list(mixer.parameters())[:3])
        found.append((y.flip(1) if reverse else y, state, *gradients))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_projections_are_plain_linear_layers(cls):
    """Quantisers and adapters look for `nn.Linear` itself."""
    mixer = cls(D, 3, 2)
    assert [type(W) for W in (mixer.W_g, mixer.W_v, mixer.W_o)] == [nn.Linear] * 3
    assert set(mixer.state_dict()) == {"W_g.weight", "W_g.bias", "W_v.weight", "W_o.weight"}
    drawn = copy.deepcopy(mixer)
    drawn.W_v.reset_parameters()  # resets the weights of the copy only
    assert not torch.equal(drawn.W_v.weight, mixer.W_v.weight)


def test_bdlru_follows_the_equations_of_the_paper():
    """The equations are written out with all indices; the input gate is the last."""
    n, m, T = 2, 3, 5
    mixer = make(BDLRU, {}, n=n, m=m)
    x = torch.randn(1, T, D, dtype=torch.float64)
    weight, bias = mixer.W_g.weight.view(n, m, m + 1, D), mixer.W_g.bias.view(n, m, m + 1)
    W_v, W_o = mixer.W_v.weight.view(n, m, D), mixer.W_o.weight.view(D, n, m)
    h = torch.zeros(n, m, dtype=torch.float64)
    for t in range(T):
        new = torch.zeros_like(h)
        for k in range(n):
            for i in range(m):
                raw = [weight[k, i, j] @ x[0, t] + bias[k, i, j] for j in range(m + 1)]
                total = sum(g.exp() for g in raw)
                new[k, i] = sum(raw[j].exp() / total * h[k, j] for j in range(m)) + raw[
                    m
                ].exp() / total * (W_v[k, i] @ x[0, t])
        h = new
        torch.testing.assert_close(mixer(x)[0][0, t], torch.einsum("dki,ki->d", W_o, h))
    torch.testing.assert_close(mixer(x)[1][0], h)


def test_hlru_follows_the_equations_of_the_paper():
    n, m, T = 2, 3, 6
    mixer = make(HLRU, {}, n=n, m=m)
    x = torch.randn(1, T, D, dtype=torch.float64)
    weight, bias = mixer.W_g.weight.view(n, m + 1, D), mixer.W_g.bias.view(n, m + 1)
    past = [torch.zeros(n, dtype=torch.float64) for _ in range(m)]
    for t in range(T):
        w = normalise(torch.einsum("kjd,d->kj", weight, x[0, t]) + bias)
        h = sum(w[:, i] * past[i] for i in range(m)) + w[:, m] * (mixer.W_v.weight @ x[0, t])
        past = [h, *past[:-1]]
        torch.testing.assert_close(
            mixer(x)[0][0, t], mixer.W_o.weight @ torch.stack(past, -1).flatten()
        )
    torch.testing.assert_close(mixer(x)[1][0], torch.stack(past, -1))


@pytest.mark.parametrize("gate", NORMALISERS)
@pytest.mark.parametrize("selectivity", ["full", "pointwise", "none"])
def test_both_layers_are_the_same_for_m_1(gate, selectivity):
    bdlru = make(BDLRU, {"gate": gate, "selectivity": selectivity}, n=4, m=1)
    hlru = HLRU(D, 4, 1, gate=gate, selectivity=selectivity, dtype=torch.float64)
    hlru.load_state_dict(bdlru.state_dict())
    x, state = torch.randn(2, 9, D, dtype=torch.float64), torch.randn(2, 4, 1, dtype=torch.float64)
    torch.testing.assert_close(hlru(x, state), bdlru(x, state), rtol=0, atol=0)


def test_the_observer_form_is_a_different_model():
    controller, observer = make(HLRU, {}, m=3), make(HLRU, {"form": "observer"}, m=3)
    x = torch.randn(1, 9, D, dtype=torch.float64)
    assert (controller(x)[0] - observer(x)[0]).abs().max() > 0.1


@pytest.mark.parametrize(("n", "m"), [(4, 1), (3, 5)])
def test_parameter_counts(n, m):
    def count(mixer):
        return sum(p.numel() for p in mixer.parameters())

    assert count(BDLRU(D, n, m)) == D * n * m * (m + 1) + n * m * (m + 1) + 2 * D * n * m
    assert count(HLRU(D, n, m)) == D * n * (m + 1) + n * (m + 1) + D * n + D * n * m
    assert count(BDLRU(D, n, m, selectivity="none")) == n * m * (m + 1) + 2 * D * n * m
    assert BDLRU(D, n, m).state_size == HLRU(D, n, m).state_size == n * m


def test_softmax_gates_are_initially_uniform():
    torch.manual_seed(0)
    mixer = BDLRU(64, 4, 3)
    w = normalise(mixer.W_g(torch.randn(100, 64)).unflatten(-1, mixer.gate_shape))
    assert abs(w.mean().item() - 1 / 4) < 1e-6
    assert w.std() < 0.06
    assert HLRU(64, 4, 3, selectivity="none").W_g.weight.min() >= 0


@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_fixed_gates_without_a_gate_function_are_divided_by_their_number(cls):
    torch.manual_seed(0)
    layer = cls(4, 3, 4, gate="none", selectivity="none")
    raw = layer.W_g(torch.randn(2, 512, 4))
    torch.testing.assert_close(raw[1, 7], layer.W_g.weight.flatten() / 5)
    y, _ = layer(torch.randn(2, 512, 4))
    assert y.abs().max() < 1  # rows of U[0, 1) sum to 2.5, whose powers would overflow
    softmax = cls(4, 3, 4, selectivity="none")
    torch.testing.assert_close(
        softmax.W_g(torch.randn(1, 1, 4))[0, 0], softmax.W_g.weight.flatten()
    )


def test_pointwise_gates_depend_on_their_own_channel_only():
    """If d = n · m there is no projection, and each input channel affects one row of gates."""
    mixer = make(BDLRU, {"selectivity": "pointwise"}, n=3, m=2)
    x = torch.randn(D, dtype=torch.float64)
    moved = x.clone()
    moved[4] += 1
    changed = (mixer.W_g(x) != mixer.W_g(moved)).unflatten(-1, (6, 3)).any(-1)
    assert changed.tolist() == [False, False, False, False, True, False]
    assert "W_g.project.weight" in BDLRU(D, 5, 2, selectivity="pointwise").state_dict()


@pytest.mark.parametrize("cls", [BDLRU, HLRU])
@pytest.mark.parametrize("selectivity", ["full", "pointwise", "none"])
@pytest.mark.parametrize("n", [3, 6])
def test_sharpening_multiplies_all_raw_gates_by_the_factor(cls, selectivity, n):
    mixer, x = (
        make(cls, {"selectivity": selectivity}, n=n),
        torch.randn(2, 5, D, dtype=torch.float64),
    )
    before = mixer.W_g(x).clone()
    mixer.sharpen(2.0)
    torch.testing.assert_close(mixer.W_g(x), 2.0 * before, rtol=0, atol=0)


@every_variant
def test_every_parameter_gets_a_gradient(cls, options):
    mixer = make(cls, options)
    y, state = mixer(torch.randn(2, 5, D, dtype=torch.float64))
    (y.sin().sum() + state.sum()).backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


@every_variant
def test_state_gradients(cls, options):
    """Gradients flow from the final to the initial state, through forward and through step."""
    mixer = make(cls, options)
    x = torch.randn(2, 4, D, dtype=torch.float64)
    for run in (mixer, lambda x, state: stepped(mixer, x, state)):
        state = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda state, run=run: run(x, state), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_variant
def test_low_precision_steps_match_forward(cls, options, dtype):
    """In low precision, stepping and scanning round the same float32 states."""
    mixer = make(cls, options).to(dtype)
    x = (torch.randn(2, 6, D) / 4).to(dtype)
    y, state = mixer(x)
    y_step, state_step = stepped(mixer, x)
    assert state.dtype == state_step.dtype == torch.float32
    torch.testing.assert_close(state_step, state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        y_step, y, rtol=2 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_nan_padding_does_not_affect_gradients(cls):
    mixer = make(cls, {})
    x = torch.randn(2, 6, D, dtype=torch.float64)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 4:] = False
    (mixer(x, mask=mask)[0] * mask[..., None]).sum().backward()
    expected = [p.grad.clone() for p in mixer.parameters()]
    mixer.zero_grad()
    x[~mask] = torch.nan
    mixer(x, mask=mask)[0].masked_fill(~mask[..., None], 0).sum().backward()
    torch.testing.assert_close([p.grad for p in mixer.parameters()], expected)


@every_variant
def test_resetting_all_modules_gives_the_initialisation_of_the_layer(cls, options):
    """FSDP calls `reset_parameters` of every module after `to_empty`, parents before children."""
    with torch.device("meta"):
        mixer = cls(256, 16, 4, **options)
    mixer.to_empty(device="cpu")
    for module in mixer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for name, parameter in mixer.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        elif options.get("selectivity") == "none" and name.startswith("W_g"):
            assert (parameter >= 0).all()
        else:
            assert abs(parameter.std().item() / 0.02 - 1) < 0.35, name


def test_the_learned_initial_state_is_used_unless_a_state_is_given():
    mixer = make(BDLRU, {"learn_initial_state": True})
    x = torch.randn(2, 4, D, dtype=torch.float64)
    torch.testing.assert_close(mixer(x), mixer(x, mixer.h0.expand(2, 3, 2)))
    assert (mixer(x)[0] - mixer(x, torch.zeros(2, 3, 2, dtype=torch.float64))[0]).abs().max() > 1e-3
    packed = mixer(x.reshape(1, 8, D), cu_seqlens=bounds([4, 4]))[0]
    torch.testing.assert_close(packed.view(2, 4, D), mixer(x)[0])


@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_autocast(cls):
    """Under autocast the projections run in bfloat16 and the state stays float32."""
    mixer = cls(D, 3, 2)
    x = torch.randn(2, 9, D)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x)
        y_t, state_t = mixer.step(x[:, 0])
    assert (y.dtype, state.dtype, y_t.dtype, state_t.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.bfloat16,
        torch.float32,
    )
    torch.testing.assert_close(y.float(), mixer(x)[0], rtol=0.05, atol=1e-4)
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in mixer.parameters())


def test_empty_sequence():
    mixer = BDLRU(D, 3, 2)
    state = torch.randn(2, 3, 2)
    y, final = mixer(torch.empty(2, 0, D), state)
    assert y.shape == (2, 0, D)
    torch.testing.assert_close(final, state)


@every_variant
def test_copies_and_state_dicts(cls, options):
    mixer = make(cls, options)
    x = torch.randn(1, 4, D, dtype=torch.float64)
    twin = cls(D, 3, 2, dtype=torch.float64, **options)
    twin.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(twin(x), mixer(x), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(mixer)(x), mixer(x), rtol=0, atol=0)
    with torch.device("meta"):
        assert cls(D, 3, 2, **options).W_v.weight.is_meta


def test_repr_shows_the_sizes():
    assert "d_model=6, n_blocks=3, block_size=2, gate='softmax', selectivity='full'" in repr(
        BDLRU(D, 3, 2)
    )
    assert (
        "d_model=6, n_channels=3, order=2, gate='relu', selectivity='full', form='controller'"
        in repr(HLRU(D, 3, 2, gate="relu"))
    )


@pytest.fixture
def temporary_mixers(monkeypatch):
    """Remove mixers that the test registers."""
    for name in set(MIXERS) - {"bdlru", "hlru"}:
        monkeypatch.delitem(MIXERS, name)
    kept = dict(MIXERS)
    yield
    MIXERS.clear()
    MIXERS.update(kept)


class Cumsum(nn.Module):
    """The smallest mixer: y[t] = scale · Σ x."""

    state_size = D

    def __init__(self, d_model: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x, state=None, *, cu_seqlens=None, mask=None):
        y = x.cumsum(1) + (0 if state is None else state[:, None])
        return self.scale * y, y[:, -1]

    def step(self, x_t, state=None):
        state = x_t if state is None else state + x_t
        return self.scale * state, state


def test_users_register_their_own_mixer(temporary_mixers):
    register_mixer("cumsum")(Cumsum)
    mixer = build_mixer("cumsum", D, {"scale": 2.0})
    assert isinstance(mixer, Mixer)
    x = torch.randn(2, 5, D)
    torch.testing.assert_close(stepped(mixer, x), mixer(x))
    register_mixer("cumsum")(Cumsum)  # importing a module again registers its mixer again


def test_build_mixer_builds_the_layers_of_the_paper():
    built = build_mixer("bdlru", D, {"n_blocks": 3, "block_size": 2, "gate": "relu"})
    assert isinstance(built, BDLRU)
    assert isinstance(built, Mixer)
    assert (built.state_shape, built.gate) == ((3, 2), "relu")
    assert isinstance(build_mixer("hlru", D, {"n_channels": 3, "order": 2}), HLRU)


class Typed(Cumsum):
    """A mixer with options of all types that are checked, and one of a type that is not."""

    def __init__(
        self,
        d_model: int,
        on: bool = True,
        size: "int" = 1,
        rate: float = 1.0,
        least: int | None = None,
        sizes: tuple[int, ...] = (),
    ):
        super().__init__(d_model, rate)


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("on", "False", "bool (true or false)"),
        ("on", 1, "bool (true or false)"),
        ("on", None, "bool (true or false)"),
        ("on", False, None),
        ("size", "x", "int"),
        ("size", 2.0, "int"),
        ("size", True, "int"),
        ("size", 2, None),
        ("rate", "fast", "float"),
        ("rate", True, "float"),
        ("rate", 2, None),
        ("rate", 2.5, None),
        ("least", "few", "int or null"),
        ("least", None, None),
        ("least", 3, None),
        ("sizes", (1, 2), None),
    ],
)
def test_options_must_have_the_type_in_the_signature(temporary_mixers, option, value, kind):
    register_mixer("typed")(Typed)
    if kind is None:
        assert isinstance(build_mixer("typed", D, {option: value}), Typed)
    else:
        message = f"The option `{option}` of mixer 'typed' must be of type {kind}, got {value!r}."
        with pytest.raises(ValueError, match=re.escape(message)):
            build_mixer("typed", D, {option: value})


class NoStep(nn.Module):
    def forward(self, x, state=None, *, cu_seqlens=None, mask=None):
        return x, state


class NoMask(Cumsum):
    def forward(self, x, state=None, *, cu_seqlens=None):
        return x, state


class NoSize(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()

    forward, step = Cumsum.forward, Cumsum.step


def test_registration_errors(temporary_mixers):
    with pytest.raises(TypeError, match="NoStep must define `step` to be a mixer"):
        register_mixer("nostep")(NoStep)
    with pytest.raises(
        TypeError, match="`NoMask.forward` must take x, state, cu_seqlens, mask: mask missing"
    ):
        register_mixer("nomask")(NoMask)
    with pytest.raises(TypeError, match="A mixer must be a subclass of nn.Module"):
        register_mixer("function")(lambda x: x)
    with pytest.raises(TypeError, match="`register_mixer` takes a name"):
        register_mixer(Cumsum)
    with pytest.raises(
        ValueError,
        match="The mixer name 'bdlru' is taken by statemix.layers.bdlru.BDLRU. Choose another "
        "for test_layers.Cumsum",
    ):
        register_mixer("bdlru")(Cumsum)
    with pytest.raises(ValueError, match="Unknown mixer 'bdrlu'. Available: bdlru, hlru"):
        build_mixer("bdrlu", D, {})
    with pytest.raises(
        ValueError,
        match="Unknown option of mixer 'bdlru': 'block_sise'. Available: n_blocks, block_size, "
        "gate",
    ):
        build_mixer("bdlru", D, {"n_blocks": 1, "block_sise": 3})
    with pytest.raises(ValueError, match="The mixer 'bdlru' needs block_size: got n_blocks"):
        build_mixer("bdlru", D, {"n_blocks": 1})
    register_mixer("nosize")(NoSize)
    with pytest.raises(ValueError, match="NoSize must have a `state_size` to be a mixer"):
        build_mixer("nosize", D, {})


class Narrow(Cumsum):
    """Returns one channel, which would silently broadcast in the residual stream."""

    def forward(self, x, state=None, *, cu_seqlens=None, mask=None):
        y, state = super().forward(x, state)
        return y[..., :1], state

    def step(self, x_t, state=None):
        return x_t


@pytest.mark.parametrize("model", ["tagger", "lm"])
def test_models_check_what_a_mixer_returns(temporary_mixers, model):
    register_mixer("narrow")(Narrow)
    if model == "lm":
        made = LanguageModel(LMConfig(vocab=8, width=D, layers=1, mixer="narrow", options={}))
    else:
        made = Tagger(ModelConfig("narrow", {}, width=D, layers=1), vocab=8, classes=3)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(
        ValueError,
        match=r"The mixer Narrow must return an output of the same shape as its input: "
        r"expected \(2, \d, 6\), got \(2, \d, 1\)",
    ):
        made(tokens)
    with pytest.raises(
        TypeError, match=r"The mixer Narrow must return a tuple \(output, state\), got a Tensor"
    ):
        made.blocks[0].step(torch.zeros(2, D))


def test_the_published_channel_mixers():
    """At width 128, 352 inner units, and an MLP without biases, with GELU's tanh form."""
    assert PublishedSwiGLU(128).W_1.weight.shape == (352, 128)
    mlp = build_channel_mixer("published_mlp", 6)
    assert {name for name, _ in mlp.named_parameters()} == {"W_1.weight", "W_2.weight"}
    x = torch.randn(3, 6)
    inner = x @ mlp.W_1.weight.T
    cubic = math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)
    expected = (0.5 * inner * (1 + torch.tanh(cubic))) @ mlp.W_2.weight.T
    torch.testing.assert_close(mlp(x), expected)


@pytest.mark.parametrize("selectivity", ["full", "none"])
def test_the_newest_value_of_each_channel_can_be_the_output(selectivity):
    """The published non-selective layer: h[t] = Σ_i a_i h[t-i] + a_0 v[t] is the output."""
    layer = HLRU(5, 5, 3, readout="newest", selectivity=selectivity).double()
    x = torch.randn(2, 9, 5).double()
    y, _ = layer(x)
    w = normalise(layer.W_g(x).unflatten(-1, (5, 4)))
    v = layer.W_v(x)
    h = torch.zeros(2, 3 + 9, 5).double()
    for t in range(9):
        past = torch.stack([h[:, 2 + t - i] for i in range(3)], -1)
        h[:, 3 + t] = (w[:, t, :, :3] * past).sum(-1) + w[:, t, :, 3] * v[:, t]
    torch.testing.assert_close(y, h[:, 3:], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer(x, read_from=4)[0], y[:, 4:])
    stepped, _ = layer.step(x[:, 0])
    torch.testing.assert_close(stepped, y[:, 0])
    assert "W_o" not in dict(layer.named_parameters())
    assert layer.trace(x)[1].shape == (2, 9, 5, 3)


def test_the_newest_value_needs_as_many_channels_as_the_width():
    with pytest.raises(ValueError, match="The readout 'newest' needs as many channels as d_model"):
        HLRU(5, 4, 3, readout="newest")
