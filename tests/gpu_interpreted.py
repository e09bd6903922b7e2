"""The Triton scans in Triton's interpreter, on CPU tensors, against the plain path in float64.

tests/test_gpu.py and `make test-gpu` run these tests in a separate process with TRITON_INTERPRET=1,
which Triton reads when kernels are defined, and STATEMIX_KERNELS=off, so that these kernels can be
registered in place of the compiled CPU kernels.
"""

import copy
import os
from dataclasses import replace

import pytest
import torch
from cases import CASES, GATED_BLOCK, GATED_COMPANION, PLAIN, Case, bounds, random_mask, run
from triton.runtime import interpreter

from statemix import BDLRU, HLRU
from statemix.bench.gpu import kernel_contests
from statemix.bench.measure import hold
from statemix.ops import gated_block_scan
from statemix.ops.dispatch import gpu, layer_op
from statemix.ops.dispatch.scans import Recurrence, register_scans

if os.environ.get("TRITON_INTERPRET") != "1" or os.environ.get("STATEMIX_KERNELS") != "off":
    raise RuntimeError(
        "Run these tests with `make test-gpu`: "
        "they need TRITON_INTERPRET=1 and STATEMIX_KERNELS=off."
    )

gpu.unavailable = lambda: ""
register_scans("cpu", gpu.SCANS_IN_TRITON, "Triton's interpreter")

BLOCK, COMPANION = GATED_BLOCK[0], GATED_COMPANION[0]
HARDMAX = [case for case in CASES if case.is_hardmax]
UNGATED = [PLAIN[0], PLAIN[2]]
SCANS = [BLOCK, COMPANION, *UNGATED]
TOLERANCE = 1e-6
REAL_PLAN = gpu.plan_of
REAL_VERDICT = gpu.verdict


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    """Skip the self-checks, which would compute everything twice; other tests cover them."""
    monkeypatch.setattr(gpu, "verdict", lambda kind: "")
    gpu.VERDICTS.clear()
    gpu.WARNED.clear()


@pytest.fixture
def rounding(monkeypatch):
    """Round bfloat16 to nearest, as GPUs do; the interpreter truncates."""
    convert = interpreter._convert_float
    nearest = interpreter._ir.ROUNDING_MODE.RTNE
    monkeypatch.setattr(
        interpreter,
        "_convert_float",
        lambda x, old, new, mode: convert(x, old, new, nearest if mode is None else mode),
    )


def in_chunks(monkeypatch, length: int) -> None:
    monkeypatch.setattr(gpu, "plan_of", lambda call: replace(REAL_PLAN(call), chunk=length))


def compare(
    case: Case, B: int, T: int, n: int, m: int, options, *, S: int | None = None, seed: int = 0
) -> None:
    inputs = [x.float() for x in case.inputs(B, T, n, m, S=S, seed=seed)]
    if "none" in case.name:  # raw gates must contract, or states overflow
        inputs[0] /= 2 * m
    ours, truth = (
        run(case.scan, inputs, options, dtype) for dtype in (torch.float32, torch.float64)
    )
    for name, y, right in zip(("h", "final", "dX", "dx", "dh0"), ours, truth, strict=True):
        error = (y - right).norm() / right.norm().clamp(min=1e-30)
        assert error <= TOLERANCE, f"{name} of {case} at m = {m}, T = {T}: {error:.1e}"


SIZES = [
    (1, 33, 6),
    (2, 3, 5),
    (3, 4, 3),
    (4, 9, 3),
    (5, 2, 3),
    (8, 5, 2),
    (16, 3, 2),
]  # (m, n, T): more than one tile at 1, 4, 8 and 16


@pytest.mark.parametrize(("m", "n", "T"), SIZES)
@pytest.mark.parametrize("case", [BLOCK, COMPANION], ids=str)
def test_every_size(case, m, n, T):
    compare(case, 1, T, n, m, {}, seed=m)


@pytest.mark.slow
@pytest.mark.parametrize("T", [1, 2, 33])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("case", SCANS, ids=str)
def test_every_size_and_length(case, m, T):
    compare(case, 2 if T < 33 else 1, T, 2, m, {}, seed=T)


def slow(*values):
    return [pytest.param(value, id=str(value), marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("case", [*GATED_BLOCK[1:], *UNGATED, *slow(*GATED_COMPANION[1:])], ids=str)
def test_every_gate_function(case):
    compare(case, 1, 3, 3, 3, {}, seed=1)


@pytest.mark.parametrize(
    ("m", "n", "T"),
    [
        pytest.param(*size, marks=pytest.mark.slow if size[0] in (2, 8, 16) else ())
        for size in SIZES
    ],
)
@pytest.mark.parametrize("case", HARDMAX, ids=str)
def test_hardmax(monkeypatch, case, m, n, T):
    """States are exact, also among equal gates, in sequences and in chunks."""
    gates, v, h0 = (x.float() for x in case.inputs(1, T, n, m, seed=m))
    for chunk in (0, 2):
        in_chunks(monkeypatch, chunk)
        for inputs in ([gates, v, h0], [gates.round(), v, h0]):
            (h, final, *ours), (truth, true_final, *right) = (
                run(case.scan, inputs, {}, dtype) for dtype in (torch.float32, torch.float64)
            )
            assert torch.equal(h, truth)
            assert torch.equal(final, true_final)
            for y, expected in zip(ours, right, strict=True):
                assert (y - expected).norm() <= TOLERANCE * expected.norm()


SETTINGS = {
    "masked reverse": (2, None, {"mask": random_mask(2, 7, 4), "reverse": True}),
    "packed": (1, 4, {"cu_seqlens": bounds([3, 0, 1, 3])}),
    "packed masked reverse": (
        1,
        4,
        {
            "cu_seqlens": bounds([3, 0, 3, 1], torch.int32),
            "mask": random_mask(1, 7, 5),
            "reverse": True,
        },
    ),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("case", [BLOCK, COMPANION], ids=str)
def test_packing_masks_and_reverse(case, settings):
    B, S, options = settings
    compare(case, B, 7, 3, 3, options, S=S)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("m", [1, 4, 5, 16])
@pytest.mark.parametrize("case", SCANS, ids=str)
def test_packing_masks_and_reverse_at_every_size(case, m, settings):
    B, S, options = settings
    compare(case, B, 7, 3, m, options, S=S)


@pytest.mark.parametrize("T", [*slow(8), 7])
@pytest.mark.parametrize("case", [BLOCK, COMPANION], ids=str)
def test_chunks(monkeypatch, case, T):
    """Lengths just below, at and above a multiple of the chunk size."""
    in_chunks(monkeypatch, 4)
    compare(case, 1, T, 2, 2, {})


@pytest.mark.parametrize("case", [BLOCK, COMPANION], ids=str)
def test_chunks_of_packed_sequences(monkeypatch, case):
    """Sequences are empty, shorter than a chunk, equal, or longer; with a mask, in reverse."""
    in_chunks(monkeypatch, 2)
    options = {"cu_seqlens": bounds([1, 0, 2, 3]), "mask": random_mask(1, 6, 1), "reverse": True}
    compare(case, 1, 6, 2, 2, options, S=4)


@pytest.mark.slow
@pytest.mark.parametrize("T", [1, 7, 8, 9, 33])
@pytest.mark.parametrize(
    ("m", "case"),
    [(1, BLOCK), (3, COMPANION), (4, UNGATED[0]), (5, BLOCK), (8, UNGATED[1]), (16, BLOCK)],
    ids=str,
)
def test_chunks_at_every_size(monkeypatch, case, m, T):
    in_chunks(monkeypatch, 16 if T == 33 else 4)
    compare(case, 1, T, 2, m, {})


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("case", SCANS, ids=str)
def test_chunks_with_every_setting(monkeypatch, case, settings):
    B, S, options = settings
    in_chunks(monkeypatch, 2)
    compare(case, B, 7, 3, 3, options, S=S)


@pytest.mark.parametrize("case", [BLOCK, UNGATED[1]], ids=str)
def test_without_initial_state(case):
    X, x, _ = (y.float() for y in case.inputs(1, 5, 3, 2))
    zero = torch.zeros(1, 3, 2)
    torch.testing.assert_close(
        run(case.scan, [X, x], {}, torch.float32),
        run(case.scan, [X, x, zero], {}, torch.float32)[:-1],
    )


@pytest.mark.parametrize("case", SCANS, ids=str)
def test_no_steps(case):
    X, x, h0 = (y.float() for y in case.inputs(2, 0, 3, 2))
    h, final = case.scan(X, x, h0)
    assert h.shape == x.shape
    assert torch.equal(final, h0)
    X, x, h0 = (y.float() for y in case.inputs(0, 4, 3, 2))
    assert case.scan(X, x, h0)[1].shape == (0, 3, 2)


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize(
    "dtypes",
    [(torch.bfloat16,) * 2, *slow((torch.float16,) * 2, (torch.bfloat16, torch.float32))],
    ids=str,
)
@pytest.mark.parametrize("case", [BLOCK, COMPANION], ids=str)
def test_low_precision_errors_are_at_most_twice_those_of_plain_torch(monkeypatch, case, dtypes):
    X, x, h0 = case.inputs(1, 6, 3, 2)
    inputs = [X.to(dtypes[0]), x.to(dtypes[1]), h0.float()]

    def differentiate():
        leaves = [y.clone().requires_grad_() for y in inputs]
        h, final = case.scan(*leaves)
        gradients = torch.autograd.grad(
            (h * torch.linspace(-1, 1, h.numel()).view(h.shape)).sum() + final.sum(), leaves
        )
        assert [g.dtype for g in gradients] == [y.dtype for y in inputs]
        return [y.detach().double() for y in (h, final, *gradients)]

    ours = differentiate()
    monkeypatch.setattr(gpu, "MAX_SIZE", dict.fromkeys(Recurrence, 0))
    with pytest.warns(
        UserWarning,
        match="scans go up to m = 0, got m = 2. Plain torch computes this scan instead",
    ):
        plain = differentiate()
    for y, theirs, right in zip(
        ours, plain, run(case.scan, inputs, {}, torch.float64), strict=True
    ):
        assert (y - right).norm() <= 2 * (theirs - right).norm() + TOLERANCE * right.norm()


@pytest.mark.parametrize("case", [BLOCK, COMPANION, *HARDMAX], ids=str)
def test_nan_stays_in_its_sequence_and_block(case):
    X, x, h0 = (y.float() for y in case.inputs(1, 6, 3, 3, S=2))
    X[0, 1, 1] = torch.nan
    h, final = case.scan(X, x, h0, cu_seqlens=bounds([3, 3]))
    assert h[0, 1:3, 1].isnan().all()
    assert h[0, 3:].isfinite().all()
    assert h[0, :, [0, 2]].isfinite().all()
    assert final[1].isfinite().all()


@pytest.mark.parametrize("case", [BLOCK, COMPANION, *HARDMAX], ids=str)
def test_closed_gates_and_masked_nan(case):
    """A gate of −inf is closed; values at masked steps affect neither states nor gradients."""
    X, x, h0 = (y.float() for y in case.inputs(1, 4, 2, 3))
    X[..., 1] = -torch.inf
    mask = torch.tensor([[True, False, True, True]])
    X[:, 1], x[:, 1] = torch.nan, torch.nan
    for y in run(case.scan, [X, x, h0], {"mask": mask}, torch.float32):
        assert y.isfinite().all()


@pytest.mark.parametrize(
    ("gate", "open_gate", "shut"),
    [
        ("softmax", 200.0, -200.0),
        ("hardmax", 1e-3, 0.0),
        ("linear", 41.0, 0.0),
        ("silu", 41.0, -200.0),
    ],
)
def test_saturated_permutations_are_exact(gate, open_gate, shut):
    """In float32 41 · (1 / 41) is not one, so signed rows must be divided by their norm."""
    T, m = 12, 3
    gates, h0 = torch.full((1, T, 2, m, m + 1), shut), torch.randn(1, 2, m)
    state = h0
    for t in range(T):
        order = torch.randperm(m)
        gates[0, t, :, torch.arange(m), order] = open_gate
        state = state[..., order]
    assert torch.equal(gated_block_scan(gates, torch.randn(1, T, 2, m), h0, gate=gate)[1], state)


def test_bad_bounds_raise():
    X, x, _ = (y.float() for y in BLOCK.inputs(1, 5, 2, 2))
    with pytest.raises(ValueError, match="`cu_seqlens` must end at T = 5"):
        BLOCK.scan(X, x, cu_seqlens=torch.tensor([0, 9]))


@pytest.mark.parametrize("name", [*slow("gated_block_scan"), "companion_scan"])
def test_opcheck(name):
    case = next(case for case in CASES if case.name.split("[")[0] == name)
    inputs = [y.float().requires_grad_() for y in case.inputs(1, 2, 2, 2)]
    op = getattr(torch.ops.statemix, name).default
    torch.library.opcheck(
        op, (*inputs, None, random_mask(1, 2, 0), False, *(["softmax"] if case.gated else []))
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layer", [BDLRU, HLRU])
def test_export_and_layers(layer):
    """An exported layer contains the fused op and runs on kernels, like the layer."""
    mixer = layer(8, 3, 2)
    program = torch.export.export(
        mixer, (torch.randn(2, 5, 8),), dynamic_shapes=({1: torch.export.Dim("time")},)
    )
    assert any("gated_" in str(node.target) for node in program.graph.nodes)
    x = torch.randn(2, 4, 8)
    y = program.module()(x)[0]
    torch.testing.assert_close(y, mixer(x)[0])
    torch.testing.assert_close(
        y.double(), copy.deepcopy(mixer).double()(x.double())[0], rtol=1e-5, atol=1e-7
    )


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("layer", [BDLRU, HLRU])
def test_a_layer_recomputes_its_gates_chunk_by_chunk(monkeypatch, layer, bf16):
    """With `save_memory`, gates exist for one chunk at a time: projected, scanned, and dropped."""
    monkeypatch.setattr(layer_op, "STEPS", 8)
    lengths = []
    kernel = gpu.run_forward

    def counted(call, plan):
        lengths.append(call.x.shape[1])
        return kernel(call, plan)

    monkeypatch.setattr(gpu, "run_forward", counted)
    mixer = layer(6, 3, 2, save_memory=True, learn_initial_state=True)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    plain = copy.deepcopy(mixer).double()
    plain._weights = lambda: None
    x = torch.randn(2, 10, 6)

    def everything(module, x):
        x = x.clone().requires_grad_()
        y, final = module(x)
        return y, final, *torch.autograd.grad(y.sum() + final.sum(), [x, *module.parameters()])

    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        ours = everything(mixer, x)
    assert lengths == [4, 4, 2, 2, 4, 4]  # forward, and again from the last chunk to the first
    tolerance = 5e-2 if bf16 else 1e-5
    for y, truth in zip(ours, everything(plain, x.double()), strict=True):
        assert (y - truth).norm() <= tolerance * truth.norm()


def kind(way: str, *, chunked: bool = False, masked: bool = False) -> gpu.Kind:
    return gpu.Kind(
        way,
        Recurrence.BLOCK,
        "softmax",
        2,
        (torch.float32,) * 2,
        True,
        False,
        masked,
        False,
        chunked,
        torch.device("cpu"),
    )


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_self_check_passes(way):
    assert REAL_VERDICT(kind(way, chunked=True, masked=True)) == ""


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_self_check_fails_for_a_wrong_kernel(monkeypatch, way):
    right = getattr(gpu, f"run_{way}")
    monkeypatch.setattr(
        gpu, f"run_{way}", lambda *arguments: tuple(1.01 * y for y in right(*arguments))
    )
    assert "differs from plain torch by 1" in REAL_VERDICT(kind(way))


def test_a_failing_kernel_falls_back_and_warns_once(monkeypatch):
    def broken(call, plan):
        raise RuntimeError("no compiler\nptxas: out of order")

    real = gpu.run_forward
    monkeypatch.setattr(gpu, "verdict", REAL_VERDICT)
    monkeypatch.setattr(
        gpu, "run_forward", lambda call, plan: broken(call, plan) if call.gate else real(call, plan)
    )
    X, x, h0 = (y.float() for y in BLOCK.inputs(1, 3, 2, 2))
    message = (
        "forward of gated_block_scan, gate softmax, m = 2, float32 failed its self-check: "
        "RuntimeError: ptxas: out of order"
    )
    with pytest.warns(UserWarning, match=message):
        h, _ = BLOCK.scan(X, x, h0)
    torch.testing.assert_close(BLOCK.scan(X, x, h0)[0], h)
    torch.testing.assert_close(
        h.double(), BLOCK.scan(X.double(), x.double(), h0.double())[0], rtol=1e-5, atol=1e-6
    )
    assert "2 kernels checked, 1 failed: forward of gated_block_scan" in gpu.describe()


@pytest.mark.parametrize("block", [True, False], ids=["block", "companion"])
def test_kernel_contests_of_the_benchmark(block):
    """The contests of `statemix bench speed --device cuda` run, and count their bytes correctly."""
    forward, backward = kernel_contests(block, (1, 3, 2, 2))
    gates, v = (2 * 3 if block else 3) * 2 * 3, (2 * 3 if block else 3) * 2
    assert forward.moved == 4 * (gates + 2 * v)
    assert backward.moved == 4 * (2 * gates + 4 * v)
    for contest in (forward, backward):
        rows = hold(contest, 1)
        assert [row.entrant for row in rows] == ["copy", "kernel"]
