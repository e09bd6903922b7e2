"""A layer as one fused op against the same layer with separate projections.

The tests cover the compiled kernel and the plain body, with and without saved gates. Chunks are
short here, so that a few dozen steps are several chunks.
"""

import copy
import itertools

import pytest
import torch
from cases import bounds, random_mask
from torch import nn

from statemix import BDLRU, HLRU
from statemix.kernels.cpu import layer as cpu_layer
from statemix.kernels.cpu.library import Missing, load
from statemix.kernels.lanes import Sizes, pack_inputs, pack_outputs, unpack_inputs, unpack_outputs
from statemix.ops import Lookup
from statemix.ops.dispatch import cpu as dispatch_cpu
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.dispatch import layer_op
from statemix.ops.dispatch.layer_call import Inputs, LayerCall
from statemix.ops.dispatch.registry import BODIES
from statemix.ops.segments import Sequences

T = 45
SIZES = [(1, 9), (2, 3), (3, 8), (4, 17), (5, 1), (8, 9), (11, 5), (16, 8)]
SETTINGS = {
    "batch": (3, {}),
    "masked": (2, {"mask": random_mask(2, T, 4)}),
    "packed": (1, {"cu_seqlens": bounds([3, 0, 20, 1, 21, 0])}),
    "packed masked": (1, {"cu_seqlens": bounds([16, 0, 29]), "mask": random_mask(1, T, 5)}),
}
LAYERS = pytest.mark.parametrize("cls", [BDLRU, HLRU])
needs_kernel = pytest.mark.skipif(isinstance(load(), Missing), reason="no compiled CPU library")


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(cpu_layer, "STEPS", 16)
    monkeypatch.setattr(layer_op, "STEPS", 16)
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)


def make(cls, n, m, **options):
    layer = cls(6, n, m, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)
    return layer


def is_one_op(layer, x, tokens=None):
    """True if the fused op computes the layer."""
    weights = layer._weights()
    if weights is None:
        return False
    inputs = Inputs(x, tokens)
    call = LayerCall(inputs, weights, None, Sequences(), layer.gate, layer.recurrence)
    return layer_dispatch.runs_as_one_op(call, save_memory=layer.save_memory)


def without_fused_op(layer):
    """Copy the layer in float64, without the fused op."""
    same = copy.deepcopy(layer).double()
    same._weights = lambda: None
    return same


def everything(layer, x, state, options):
    """Compute outputs and all gradients, as float64."""
    return everything_of(layer, layer, x, state, options)


def everything_of(call, layer, x, state, options):
    x, state = x.clone().requires_grad_(), None if state is None else state.clone().requires_grad_()
    y, final = call(x, state, **options)
    weights = (
        torch.linspace(-1, 1, y.numel()).view(y.shape),
        torch.linspace(1, -1, final.numel()).view(final.shape),
    )
    loss = (y * weights[0].to(y)).sum() + (final * weights[1].to(final)).sum()
    leaves = [x, *layer.parameters(), *([] if state is None else [state])]
    return [
        z.detach().double()
        for z in (y, final, *torch.autograd.grad(loss, leaves, materialize_grads=True))
    ]


def assert_same(layer, x, state, options, rtol=2e-5):
    assert is_one_op(layer, x)
    exact = everything(
        without_fused_op(layer), x.double(), None if state is None else state.double(), options
    )
    for ours, truth in zip(everything(layer, x, state, options), exact, strict=True):
        assert (ours - truth).norm() <= rtol * truth.norm() + 1e-12


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@pytest.mark.parametrize("setting", SETTINGS)
@LAYERS
def test_kernels_match_the_layer(cls, setting, save_memory, threads):
    B, options = SETTINGS[setting]
    torch.set_num_threads(threads)
    for m, n in SIZES:
        layer = make(cls, n, m, save_memory=save_memory, learn_initial_state=m % 2 == 0)
        assert_same(layer, torch.randn(B, T, 6), None, options)
    torch.set_num_threads(1)


@needs_kernel
@pytest.mark.parametrize("gate", ["hardmax", "sigmoid", "relu", "tanh", "linear", "silu", "none"])
@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@LAYERS
def test_kernel_with_every_gate_function(cls, save_memory, gate):
    layer = make(cls, 5, 3, gate=gate, save_memory=save_memory)
    if gate == "none":  # raw gates must contract, or states overflow
        nn.init.normal_(layer.W_g.weight, std=0.05)
        nn.init.constant_(layer.W_g.bias, 0.1)
    assert_same(layer, torch.randn(2, T, 6), None, {}, rtol=1e-4)


def halves(y):
    return (2 * y).round() / 2


def make_hardmax(cls, n, m, **options):
    """A layer whose gates are exact in float32, so that the largest is the same in float64."""
    layer = make(cls, n, m, gate="hardmax", learn_initial_state=True, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(halves(parameter))
    return layer


@needs_kernel
@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@pytest.mark.parametrize("setting", SETTINGS)
@LAYERS
def test_hardmax_matches_the_layer(cls, setting, save_memory):
    """Many gates are equal, and the first of them must be chosen."""
    B, options = SETTINGS[setting]
    for m, n in SIZES:
        layer = make_hardmax(cls, n, m, save_memory=save_memory)
        assert_same(layer, halves(torch.randn(B, T, 6)), None, options)


@needs_kernel
@LAYERS
def test_hardmax_of_the_rows_of_a_table(cls):
    for m, n in SIZES:
        layer = make_hardmax(cls, n, m)
        table, tokens = halves(torch.randn(7, 6)), torch.randint(0, 7, (2, T))
        assert is_one_op(layer, table, tokens)

        def call(x, state, layer=layer, tokens=tokens):
            return layer(Lookup(x, tokens), state)

        plain = without_fused_op(layer)

        def gathered(x, state, plain=plain, tokens=tokens):
            return plain(x[tokens], state)

        ours = everything_of(call, layer, table, None, {})
        exact = everything_of(gathered, plain, table.double(), None, {})
        for y, truth in zip(ours, exact, strict=True):
            assert (y - truth).norm() <= 2e-5 * truth.norm() + 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
@LAYERS
def test_given_states(cls, setting):
    B, options = SETTINGS[setting]
    layer = make(cls, 9, 3, save_memory=True)
    S = len(options["cu_seqlens"]) - 1 if "cu_seqlens" in options else B
    assert_same(layer, torch.randn(B, T, 6), torch.randn(S, 9, 3), options)


@pytest.mark.parametrize("setting", SETTINGS)
@LAYERS
def test_the_plain_body_matches_the_layer(cls, setting):
    """float64 has no kernel; chunks and the states passed between them must still be exact."""
    B, options = SETTINGS[setting]
    layer = make(cls, 4, 3, save_memory=True, learn_initial_state=True).double()
    assert_same(layer, torch.randn(B, T, 6).double(), None, options, rtol=1e-12)


@pytest.mark.parametrize("read_from", [0, 20, T])
@LAYERS
def test_the_plain_body_in_float32_matches_the_kernel(cls, read_from):
    layer = make(cls, 9, 4)
    arguments = (
        torch.randn(2, T, 6),
        None,
        layer.W_g.weight,
        layer.W_g.bias,
        layer.W_v.weight,
        layer.W_o.weight,
        None,
        None,
        None,
    )
    with torch.no_grad():
        plain = BODIES["recurrent_layer"](*arguments, "softmax", cls is BDLRU, read_from, False)
        ours = torch.ops.statemix.recurrent_layer(
            *arguments, "softmax", cls is BDLRU, read_from, False
        )
    torch.testing.assert_close(ours[:2], plain[:2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@LAYERS
def test_empty_sequences_and_single_steps(cls, save_memory):
    layer = make(cls, 3, 2, save_memory=save_memory)
    y, state = layer(torch.randn(2, 0, 6, requires_grad=True))
    y.sum().backward()
    assert y.shape == (2, 0, 6)
    assert state.abs().max() == 0
    if is_one_op(layer, torch.randn(2, 1, 6)):
        assert_same(layer, torch.randn(2, 1, 6), None, {})


@needs_kernel
@LAYERS
def test_nothing_large_is_saved(cls):
    """With `save_memory` the graph saves inputs, weights and a state per chunk, but no gates."""
    x, n, m = torch.randn(2, T, 6), 8, 4
    sizes = {}
    for save_memory in (False, True):
        layer = make(cls, n, m, save_memory=save_memory)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda y, saved=saved: saved.append(y.numel()) or y, lambda y: y
        ):
            layer(x)[0].sum()
        sizes[save_memory] = sum(saved) - sum(p.numel() for p in layer.parameters()) - x.numel()
    rows = n * m if cls is BDLRU else n
    assert sizes[False] >= 2 * T * rows * (m + 1)
    assert sizes[True] == -(-2 * T // 16) * n * m


@needs_kernel
@LAYERS
def test_no_gates_are_kept_without_a_backward_pass(cls):
    layer, x = make(cls, 8, 4), torch.randn(2, T, 6)
    with torch.no_grad():
        quiet = layer(x)
    torch.testing.assert_close(quiet, tuple(y.detach() for y in layer(x)), rtol=0, atol=0)


@LAYERS
def test_second_derivatives(cls):
    layer = make(cls, 2, 2, save_memory=True).double()
    x = torch.randn(1, 20, 6, dtype=torch.float64, requires_grad=True)
    assert is_one_op(layer, x)
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], x, atol=1e-6)


@LAYERS
def test_op_is_well_formed(cls):
    layer = make(cls, 3, 2)
    x = torch.randn(2, 20, 6, requires_grad=True)
    table, tokens = torch.randn(7, 6, requires_grad=True), torch.randint(0, 7, (2, 20))
    weights = (
        layer.W_g.weight,
        layer.W_g.bias,
        layer.W_v.weight,
        layer.W_o.weight,
        torch.randn(2, 3, 2),
        None,
        None,
    )
    for keep, inputs in itertools.product((False, True), ((x, None), (table, tokens))):
        tests = (
            "test_schema",
            "test_autograd_registration",
            "test_faketensor",
            "test_aot_dispatch_dynamic",
        )
        arguments = (*inputs, *weights, "softmax", cls is BDLRU, 1, keep)
        torch.library.opcheck(
            torch.ops.statemix.recurrent_layer.default, arguments, test_utils=tests
        )


TABLES = [
    pytest.param(torch.float32, False, marks=needs_kernel),
    (torch.float32, True),
    (torch.float64, True),
]


@pytest.mark.parametrize(
    ("dtype", "save_memory"), TABLES, ids=["kernel", "kernel, save", "plain body"]
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("m", "n"), SIZES)
@LAYERS
def test_rows_of_a_table(cls, m, n, dtype, save_memory, threads, monkeypatch):
    """A lookup inside the op matches `forward` of the embedded inputs, with all gradients.

    Some tokens occur repeatedly, others never.
    """
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    layer = make(cls, n, m, save_memory=save_memory, learn_initial_state=m % 2 == 0).to(dtype)
    table, tokens, plain = (
        torch.randn(11, 6, dtype=dtype),
        torch.randint(0, 9, (3, T)),
        without_fused_op(layer),
    )
    assert is_one_op(layer, table, tokens)
    ours = everything_of(lambda x, state: layer(Lookup(x, tokens), state), layer, table, None, {})
    exact = everything_of(lambda x, state: plain(x[tokens], state), plain, table.double(), None, {})
    for one, truth in zip(ours, exact, strict=True):
        assert (one - truth).norm() <= 2e-5 * truth.norm() + 1e-12


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@LAYERS
def test_compiled(cls, save_memory):
    layer = make(cls, 9, 3, save_memory=save_memory)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for B, length in ((2, 40), (3, 33)):
        x = torch.randn(B, length, 6)
        ours, truth = everything(compiled, x, None, {}), everything(layer, x, None, {})
        torch.testing.assert_close(ours, truth, rtol=1e-5, atol=1e-5)


@LAYERS
def test_hooked_and_replaced_projections_are_called(cls):
    x = torch.randn(2, 5, 6)
    layer, calls = make(cls, 3, 2, save_memory=True), []
    handle = layer.W_v.register_forward_hook(lambda *_: calls.append(1))
    layer(x)
    assert calls == [1]
    handle.remove()
    assert is_one_op(layer, x)
    nn.utils.parametrizations.weight_norm(layer.W_o)
    assert not is_one_op(layer, x)
    layer(x)


@LAYERS
def test_replaced_forwards_and_global_hooks_are_called(cls):
    layer, x, called = make(cls, 3, 2, save_memory=True), torch.randn(2, 5, 6), []
    layer.W_o.forward = lambda h: torch.zeros(*h.shape[:2], 6)
    assert layer(x)[0].abs().max() == 0
    del layer.W_o.forward
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: called.append(type(module).__name__)
    )
    layer(x)
    handle.remove()
    assert called.count("Linear") == 3
    assert is_one_op(layer, x)


@needs_kernel
@LAYERS
def test_outputs_may_be_changed_in_place(cls, monkeypatch):
    # Large outputs come from recycled blocks.
    monkeypatch.setattr("statemix.kernels.cpu.pool.SMALLEST", 1)
    layer, x = make(cls, 3, 2), torch.randn(2, 20, 6, requires_grad=True)
    y, state = layer(x)
    y += x
    state.mul_(2)
    (y.sum() + state.sum()).backward()
    expected = without_fused_op(layer)
    inputs = x.detach().double().requires_grad_()
    y, state = expected(inputs)
    ((y + inputs).sum() + 2 * state.sum()).backward()
    torch.testing.assert_close(x.grad.double(), inputs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", ["x", "W_g", "W_v", "W_o"])
@LAYERS
def test_frozen_inputs(cls, frozen):
    layer = make(cls, 3, 2, save_memory=True).double()
    x = torch.randn(1, 20, 6, dtype=torch.float64).requires_grad_(frozen != "x")
    if frozen != "x":
        getattr(layer, frozen).requires_grad_(False)
    leaves = [p for p in (x, *layer.parameters()) if p.requires_grad]

    def both(module):
        first = torch.autograd.grad(module(x)[0].pow(2).sum(), leaves, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)]

    ours = both(layer)
    layer._weights = lambda: None
    torch.testing.assert_close(ours, both(layer), rtol=1e-9, atol=1e-9)


@LAYERS
def test_meta_device(cls):
    layer = make(cls, 3, 2).to("meta")
    assert layer(torch.empty(2, 5, 6, device="meta"))[0].shape == (2, 5, 6)


@LAYERS
def test_small_inputs_do_not_use_the_fused_op(cls, monkeypatch):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 10**9)
    assert not is_one_op(make(cls, 3, 2), torch.randn(1, 2, 6))
    assert is_one_op(make(cls, 3, 2, save_memory=True), torch.randn(1, 2, 6))


@pytest.mark.parametrize(
    "sizes", [Sizes(5, 3, 3, 4), Sizes(8, 2, 1, 3), Sizes(17, 1, 1, 2), Sizes(16, 4, 4, 5)]
)
def test_packing_is_a_bijection(sizes):
    n, m, rows, _ = sizes
    W_g, W_v, W_o = (
        torch.randn(n * rows * (m + 1), 3),
        torch.randn(n * rows, 3),
        torch.randn(2, n * m),
    )
    packed = pack_inputs(W_g, W_v, sizes)
    assert packed.shape == (sizes.inputs, 3)
    torch.testing.assert_close(unpack_inputs(packed, sizes), (W_g, W_v), rtol=0, atol=0)
    torch.testing.assert_close(unpack_outputs(pack_outputs(W_o, sizes), sizes), W_o, rtol=0, atol=0)


@pytest.mark.parametrize(
    "sizes", [Sizes(5, 3, 3, 3), Sizes(8, 2, 1, 2), Sizes(17, 1, 1, 1), Sizes(16, 4, 4, 4)]
)
def test_packing_differences(sizes):
    """Packing ignores shifts that do not change a softmax, and unpacking is its adjoint."""
    n, m, rows, _ = sizes
    W_g, W_v = (
        torch.randn(n * rows * (m + 1), 3, dtype=torch.float64),
        torch.randn(n * rows, 3, dtype=torch.float64),
    )
    packed = pack_inputs(W_g, W_v, sizes)
    assert packed.shape == (sizes.inputs, 3)
    moved = (W_g.view(-1, m + 1, 3) + torch.randn(n * rows, 1, 3, dtype=torch.float64)).view(
        W_g.shape
    )
    torch.testing.assert_close(pack_inputs(moved, W_v, sizes), packed)
    gradient = torch.randn_like(packed)
    back = sum(
        (a * b).sum() for a, b in zip(unpack_inputs(gradient, sizes), (W_g, W_v), strict=True)
    )
    filled = pack_inputs(torch.ones_like(W_g), torch.ones_like(W_v), Sizes(n, m, rows, m + 1)).view(
        -1, m + 2, 8, 3
    )[:, 1:]
    real = filled.reshape(packed.shape) != 0  # these lanes hold a block
    torch.testing.assert_close(back, (gradient * packed * real).sum())


@needs_kernel
@LAYERS
@pytest.mark.parametrize("m", [1, 2, 3, 4, 9])
def test_gates_of_any_size_are_a_softmax(cls, m):
    """Differences of gates may be large, of either sign, or NaN."""
    layer, x = make(cls, 3, m), torch.randn(2, 700, 6)
    for scale in (30.0, 1000.0):
        with torch.no_grad():
            layer.W_g.weight.normal_(std=scale)
            assert is_one_op(layer, x)
            truth, final = copy.deepcopy(layer).double()(x.double())
            y, state = layer(x)
        torch.testing.assert_close(y.double(), truth, rtol=0, atol=2e-3 * float(truth.abs().max()))
        torch.testing.assert_close(
            state.double(), final, rtol=0, atol=2e-3 * float(final.abs().max())
        )
    x[0, 5, 0] = float("nan")
    with torch.no_grad():
        y, _ = layer(x)
    assert y[0, 5].isnan().all()
    assert y[:, :5].isfinite().all()


def test_save_memory_requires_gates_that_can_be_recomputed():
    with pytest.raises(ValueError, match="`save_memory` needs selectivity 'full'"):
        BDLRU(4, 2, 2, selectivity="pointwise", save_memory=True)
    with pytest.raises(ValueError, match="`save_memory` needs the form 'controller'"):
        HLRU(4, 2, 2, form="observer", save_memory=True)


@needs_kernel
@LAYERS
def test_gradients_of_a_table_do_not_depend_on_threads(cls, monkeypatch):
    """Gradients of shared rows are summed in an order that does not depend on the threads."""
    layer, table, tokens = make(cls, 40, 5), torch.randn(11, 6), torch.randint(0, 11, (16, T))
    each = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        each.append(
            everything_of(lambda x, state: layer(Lookup(x, tokens), state), layer, table, None, {})
        )
    torch.testing.assert_close(each[0], each[1], rtol=0, atol=0)


def peak_bytes(call):
    """The largest number of bytes that `call` holds at one time, counted by torch's allocator."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held, peak = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@LAYERS
def test_gates_of_a_chunk_at_a_time(cls, monkeypatch):
    """Without a kernel, as on GPUs, `save_memory` holds the gates of one chunk, not of all steps.

    Beyond that, inputs, outputs and their gradients grow with T, by a few numbers of width d.
    """
    monkeypatch.setattr(layer_dispatch, "find_layer_kernel", lambda call: None)
    monkeypatch.setattr(layer_op, "find_layer_kernel", lambda call: None)
    monkeypatch.setattr(layer_op, "STEPS", 128)
    monkeypatch.setattr(dispatch_cpu, "find_layer_kernel", lambda call: None)
    n, m = 16, 8
    rows = n * m if cls is BDLRU else n
    layer = make(cls, n, m, save_memory=True)
    peaks = []
    for length in (1024, 4096):
        x = torch.randn(1, length, 6, requires_grad=True)
        for dtype in (torch.float32, torch.bfloat16):

            def step(x=x, dtype=dtype):
                with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
                    y, _ = layer(x)
                y.float().sum().backward()

            step()
            peaks.append(peak_bytes(step))
    grown = max(peaks[2] - peaks[0], peaks[3] - peaks[1])
    gates = 4 * (4096 - 1024) * rows * (m + 1)
    assert grown < 0.35 * gates, (peaks, gates)
