"""The compiled CPU scans against plain torch: all sizes, gate functions, settings, 1 and 2 threads.

float32 uses the kernels.  float64 always uses plain torch, which other tests compare with the
oracles.
"""

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from cases import CASES, EACH_SCAN, Case, bounds, random_mask, run
from test_package import python

from statemix import BDLRU
from statemix.kernels.cpu import scans
from statemix.kernels.cpu.library import Missing, load
from statemix.ops.dispatch.registry import KERNELS

LIBRARY = load()
pytestmark = pytest.mark.skipif(
    isinstance(LIBRARY, Missing),
    reason="no compiled CPU library: " + (LIBRARY.reason if isinstance(LIBRARY, Missing) else ""),
)
KERNEL_CASES = [case for case in CASES if case.name != "hop_scan"]
SIZES = [
    (1, 20),
    (2, 3),
    (3, 8),
    (4, 17),
    (5, 1),
    (6, 9),
    (7, 3),
    (8, 20),
    (9, 5),
    (16, 8),
    (17, 11),
]
# For gate functions other than softmax: specialised, with a remainder, and generic.
FEW_SIZES = [
    (1, 3),
    (4, 9),
    (11, 8),
]
SETTINGS = {
    "plain": (3, None, {}),
    "masked reverse": (2, None, {"mask": random_mask(2, 13, 4), "reverse": True}),
    "packed": (1, 4, {"cu_seqlens": bounds([3, 0, 9, 1])}),
    "packed masked reverse": (
        1,
        4,
        {"cu_seqlens": bounds([3, 0, 9, 1]), "mask": random_mask(1, 13, 5), "reverse": True},
    ),
}


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_kernels_match_the_plain_scan(case: Case, settings, threads):
    B, S, options = settings
    for m, n in SIZES if case in EACH_SCAN else FEW_SIZES:
        inputs = [x.float() for x in case.inputs(B, 13, n, m, S=S, seed=m)]
        kernel, plain = (
            run(case.scan, inputs, options, dtype) for dtype in (torch.float32, torch.float64)
        )
        for ours, truth in zip(kernel, plain, strict=True):
            assert (ours - truth).norm() <= 5e-5 * truth.norm(), f"m = {m}, n = {n}"


@pytest.mark.parametrize("m", [1, 4, 8, 11, 16])
@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_errors_are_at_most_twice_those_of_plain_torch(case: Case, m):
    """The float32 error of a kernel is at most twice that of the definition in torch."""
    inputs = [x.float() for x in case.inputs(4, 65, 20, m, seed=m)]
    if "none" in case.name:  # raw gates must contract, or states overflow
        inputs[0] /= 4 * m
    kernel, plain = (
        run(case.scan, inputs, {}, torch.float32),
        run(case.loop, inputs, {}, torch.float32),
    )
    for ours, theirs, truth in zip(
        kernel, plain, run(case.loop, inputs, {}, torch.float64), strict=True
    ):
        assert (ours - truth).norm() <= 2 * (theirs - truth).norm()


@pytest.mark.parametrize("case", [case for case in EACH_SCAN if case.name != "hop_scan"], ids=str)
@pytest.mark.parametrize("B", [1, 2, 3])
def test_results_do_not_depend_on_threads(case: Case, B):
    inputs = case.inputs(B, 300, 40, 4)
    one = run(case.scan, inputs, {}, torch.float32)
    torch.set_num_threads(2)
    try:
        torch.testing.assert_close(run(case.scan, inputs, {}, torch.float32), one, rtol=0, atol=0)
    finally:
        torch.set_num_threads(1)


def copied(case: Case, gates, v, h0):
    """Hardmax by indices: h[t] is a copy of an entry of the last state or of the input.

    It is NaN where the softmax of the gates is NaN.
    """
    state, out = h0, []
    for g, v_t in zip(gates.unbind(1), v.unbind(1), strict=True):
        rows = state.unsqueeze(-2).expand(g[..., :-1].shape) if case.block else state
        h = (
            torch.cat([rows, v_t.unsqueeze(-1)], -1)
            .gather(-1, g.argmax(-1, keepdim=True))
            .squeeze(-1)
        )
        h = h.masked_fill(g.softmax(-1).isnan().any(-1), torch.nan)
        state = h if case.block else torch.cat([h.unsqueeze(-1), state[..., :-1]], -1)
        out.append(h)
    return torch.stack(out, 1), state


HARDMAX = [case for case in KERNEL_CASES if case.is_hardmax]


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("case", HARDMAX, ids=str)
def test_hardmax_copies_bits(case: Case, m, n):
    """Small integer gates, so that many are equal; states of every bit pattern except NaN."""
    gates, v, h0 = (x.float() for x in case.inputs(2, 65, n, m, seed=m))
    v, h0 = (torch.where(y > 1, -torch.zeros(()), torch.exp(50 * y) * y.sign()) for y in (v, h0))
    for raw in (gates, gates.round()):
        for ours, right in zip(case.scan(raw, v, h0), copied(case, raw, v, h0), strict=True):
            assert torch.equal(ours.view(torch.int32), right.view(torch.int32))


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("case", HARDMAX, ids=str)
def test_hardmax_in_every_size(case: Case, settings, m, n):
    """States are exact, and gradients equal those in float64 up to rounding, among equal gates."""
    B, S, options = settings
    inputs = [x.float() for x in case.inputs(B, 13, n, m, S=S, seed=m)]
    inputs[0] = inputs[0].mul(2).round().div(2)
    (h, final, *kernel), (truth, true_final, *plain) = (
        run(case.scan, inputs, options, dtype) for dtype in (torch.float32, torch.float64)
    )
    assert torch.equal(h, truth)
    assert torch.equal(final, true_final)
    for ours, right in zip(kernel, plain, strict=True):
        assert (ours - right).norm() <= 1e-6 * right.norm(), f"m = {m}, n = {n}"


@pytest.mark.parametrize("m", [1, 3, 4, 11])
@pytest.mark.parametrize("case", HARDMAX, ids=str)
def test_a_nan_gate_of_hardmax_reaches_every_gradient_of_its_row(case: Case, m):
    for place in range(m + 1):
        gates, v, h0 = (x.float() for x in case.inputs(1, 1, 9, m))
        row = (0, 0, 4, 0) if case.block else (0, 0, 4)
        gates[row][place] = torch.nan
        leaves = [y.requires_grad_() for y in (gates, v, h0)]
        h, _ = case.scan(*leaves)
        dgates, dv, dh0 = torch.autograd.grad(h.sum(), leaves)
        assert h[row].isnan()
        assert all(y.isnan().all() for y in (dgates[row], dv[row], dh0[0, 4]))
        others = [0, 1, 2, 3, 5, 6, 7, 8]
        assert all(y[0, 0, others].isfinite().all() for y in (h, dgates, dv))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", [0, 1], ids=["gates", "values"])
@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_nan_and_inf_propagate_as_in_plain_torch(case: Case, where, poison):
    inputs = case.inputs(2, 7, 9, 3)
    inputs[where][0, 3, 4] = poison
    h, final = case.scan(*[x.float() for x in inputs])
    # Kernels copy the chosen entry; plain torch also multiplies the others by zero.
    expected, expected_final = copied(case, *inputs) if case.is_hardmax else case.scan(*inputs)
    assert torch.equal(h.isnan(), expected.isnan())
    assert torch.equal(h.isfinite(), expected.isfinite())
    assert torch.equal(final.isfinite(), expected_final.isfinite())


@pytest.mark.parametrize("bits", [0x7FC00001, 0x7FC000FF, 0x7FC001FF, 0x7F800155])
@pytest.mark.parametrize("case", [case for case in KERNEL_CASES if case.gated], ids=str)
def test_every_nan_bit_pattern_stays_nan(case: Case, bits):
    inputs = [x.float() for x in case.inputs(2, 7, 9, 3)]
    inputs[0][0, 3, 4] = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    exact = [x.double() for x in inputs]
    expected, _ = copied(case, *exact) if case.is_hardmax else case.scan(*exact)
    assert torch.equal(case.scan(*inputs)[0].isnan(), expected.isnan())


@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_one_closed_gate_gives_finite_states(case: Case):
    """A raw gate of −inf closes that gate only."""
    if not case.gated or not any(
        f"[{gate}]" in case.name for gate in ("softmax", "hardmax", "sigmoid")
    ):
        return
    inputs = [x.float() for x in case.inputs(2, 7, 9, 3)]
    inputs[0][..., 1] = -torch.inf
    leaves = [x.requires_grad_() for x in inputs]
    h, _ = case.scan(*leaves)
    assert h.isfinite().all()
    torch.testing.assert_close(
        h.double(), case.scan(*[x.double() for x in inputs])[0], rtol=1e-5, atol=1e-6
    )


def test_strided_and_expanded_inputs_in_float32():
    for case in KERNEL_CASES:
        X, x, h0 = (y.float() for y in case.inputs(2, 6, 3, 4))
        strided = [y.transpose(0, 1).contiguous().transpose(0, 1) for y in (X, x, h0)]
        torch.testing.assert_close(case.scan(*strided), case.scan(X, x, h0), rtol=0, atol=0)
        fixed = X[:1, :1].expand_as(X)
        torch.testing.assert_close(
            case.scan(fixed, x, h0), case.scan(fixed.contiguous(), x, h0), rtol=0, atol=0
        )


def test_sizes_above_the_maximum_use_plain_torch():
    case = CASES[0]
    m = LIBRARY.max_size + 1
    inputs = case.inputs(1, 2, 1, m)
    torch.testing.assert_close(
        case.scan(*[x.float() for x in inputs])[0].double(),
        case.scan(*inputs)[0],
        rtol=1e-4,
        atol=1e-5,
    )


def test_every_scan_has_a_kernel():
    names = ("block_scan", "companion_scan", "gated_block_scan", "gated_companion_scan")
    for name in names:
        assert (
            KERNELS[name, "cpu"]
            == KERNELS[f"{name}_backward", "cpu"]
            == f"C++, {LIBRARY.instruction_set}"
        )


def test_outputs_are_the_same_without_kernels():
    """The same weights give the same outputs in a process that disables kernels."""
    code = """
import torch
from statemix import BDLRU
from statemix.kernels.cpu import scans
from statemix.ops.dispatch.registry import KERNELS
torch.manual_seed(0)
layer = BDLRU(8, 5, 3)
print(len(KERNELS), layer(torch.randn(2, 30, 8))[0].double().sum().item(), sep=",")
"""
    torch.manual_seed(0)
    layer = BDLRU(8, 5, 3)
    ours = layer(torch.randn(2, 30, 8))[0].double().sum().item()
    kernels, theirs = python(code, env={"STATEMIX_KERNELS": "off"}).split(",")
    assert int(kernels) == 0
    assert abs(float(theirs) - ours) < 1e-5


@pytest.mark.parametrize("block", [True, False], ids=["block", "companion"])
@pytest.mark.parametrize("m", [1, 3, 4, 9])
@pytest.mark.parametrize("gate", ["odds", "hardmax", "tanh"])
def test_lanes_need_no_alignment(block, m, gate):
    """Gates in lane order may start at any float, as in a slice of a tensor."""
    T, n, rows = 5, 11, m if block else 1
    tile = rows * (m + 1 if gate == "odds" else m + 2)
    # The widths of gates, h, dh and dgates, with two groups per step.
    widths = [
        2 * tile * 8,
        2 * m * 8,
        2 * m * 8,
        2 * tile * 8,
    ]
    state, bounds_ = torch.zeros(1, n, m), torch.tensor([0, T])
    values = [torch.randn(T * width) for width in widths]
    results = []
    for offset in (0, 1, 3):
        gates, h, dh, dgates = (
            torch.cat([torch.zeros(offset), value])[offset:] for value in values
        )
        assert gates.data_ptr() % 16 == 4 * offset
        scan = scans.Scan(
            1,
            T,
            n,
            1,
            m,
            scans.GATES[gate],
            False,
            1,
            True,
            0,
            *map(scans.pointer, (bounds_, None, None, gates, None, None, h, state)),
        )
        gradient = scans.ScanGradient(scan, *map(scans.pointer, (dh, None, dgates, None, state)))
        LIBRARY.handle.statemix_forward(ctypes.byref(scan), int(block))
        LIBRARY.handle.statemix_backward(ctypes.byref(gradient), int(block))
        results.append((h, dgates))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=0)


def kernels_with(isa: str) -> subprocess.CompletedProcess:
    """Run scans and layers with another instruction set, and check them.

    Three groups of blocks, the last one incomplete: with sixteen lanes, two share a vector and one
    has its own. The states of a permutation of one-hot values stay exact over 2,048 steps.
    """
    code = """
import copy, torch
from statemix import BDLRU, HLRU
from statemix.kernels.cpu.library import load
from statemix.ops import gated_block_scan
from statemix.ops.dispatch import layer
torch.manual_seed(0)
def gradients(gates, v):
    gates, v = gates.clone().requires_grad_(), v.clone().requires_grad_()
    h, _ = gated_block_scan(gates, v)
    return h, *torch.autograd.grad(h.square().sum(), (gates, v))
for m in (1, 2, 3, 4, 6, 9):
    gates, v = torch.randn(2, 30, 20, m, m + 1), torch.randn(2, 30, 20, m)
    exact = gradients(gates.double(), v.double())
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        found = gradients(gates.to(dtype), v.to(dtype))
        for y, truth in zip(found, exact, strict=True):
            assert (y - truth).norm() < tolerance * truth.norm(), (m, dtype)
layer.WORTHWHILE = 0
for cls in (BDLRU, HLRU):
    unit, x = cls(8, 20, 4), torch.randn(2, 40, 8)
    plain = copy.deepcopy(unit).double()
    runs = []
    for module, inputs in ((unit, x), (plain, x.double())):
        y, _ = module(inputs)
        runs.append((y, *torch.autograd.grad(y.square().sum(), list(module.parameters()))))
    for y, truth in zip(*runs, strict=True):
        assert (y - truth).norm() < 1e-5 * truth.norm(), cls
T, n, m = 2048, 20, 5
order = torch.stack([torch.randperm(m) for _ in range(T * n)]).view(1, T, n, m)
gates = torch.nn.functional.one_hot(order, m + 1) * 200.0 - 100.0
state = torch.rand(1, n, m)
_, final = gated_block_scan(gates, torch.rand(1, T, n, m), state)
for t in range(T):
    state = state.gather(2, order[:, t])
assert torch.equal(final, state)
print(load().instruction_set)
"""
    environment = {**os.environ, "STATEMIX_ISA": isa}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_the_environment_chooses_the_instruction_set():
    usable = ["generic", "avx2", "avx512"]
    usable = usable[: usable.index(LIBRARY.instruction_set) + 1]
    for isa in usable:
        run = kernels_with(isa)
        assert run.stdout.strip() == isa, run.stderr


def test_an_unknown_instruction_set_raises():
    assert "STATEMIX_ISA must be an instruction set of this" in kernels_with("sse9").stderr
