"""torch.compile with one graph for all sizes, and torch.export."""

import pytest
import torch
from cases import CASES, GATED_BLOCK, PLAIN, Case, bounds, random_mask
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

from statemix import BDLRU, HLRU

pytestmark = pytest.mark.usefixtures("unchecked")
LAYERS = {
    "bdlru": lambda: BDLRU(8, 3, 4),
    "bdlru pointwise, learned start": lambda: BDLRU(
        12, 3, 4, selectivity="pointwise", learn_initial_state=True
    ),
    "hlru": lambda: HLRU(8, 3, 4),
    "hlru observer, fixed": lambda: HLRU(8, 3, 4, form="observer", selectivity="none"),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Clear compiled graphs, and allow inductor to use non-deterministic ops."""
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(False)


def gradients(run, inputs):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    h, final = run(*leaves)
    return h.detach(), final.detach(), *torch.autograd.grad(h.sin().sum() + final.sum(), leaves)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "hop_scan"], ids=str)
def test_one_graph_for_all_sizes(case: Case):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(case.scan, fullgraph=True, dynamic=True, backend=counter)
    for B, T, n in ((2, 7, 3), (3, 12, 4), (5, 64, 2)):
        inputs = case.inputs(B, T, n, 4)
        torch.testing.assert_close(gradients(compiled, inputs), gradients(case.scan, inputs))
    assert counter.frame_count == 1


@pytest.mark.parametrize("case", [PLAIN[0], PLAIN[1], PLAIN[2], GATED_BLOCK[0]], ids=str)
def test_packed_masked_and_reversed(case: Case):
    compiled = torch.compile(case.scan, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ([3, 0, 4], [2, 3, 1, 2]):
        T = sum(lengths)
        inputs = case.inputs(1, T, 3, 4, S=len(lengths))
        settings = {"cu_seqlens": bounds(lengths), "mask": random_mask(1, T, 0), "reverse": True}
        compiled_run = gradients(lambda *x, s=settings: compiled(*x, **s), inputs)
        torch.testing.assert_close(
            compiled_run, gradients(lambda *x, s=settings: case.scan(*x, **s), inputs)
        )


@pytest.mark.parametrize("case", PLAIN[:2], ids=str)
def test_bad_bounds_raise_in_compiled_code(case: Case):
    compiled = torch.compile(case.scan, fullgraph=True, dynamic=True, backend="aot_eager")
    A, b, _ = PLAIN[0].inputs(1, 5, 2, 2)
    with pytest.raises(ValueError, match="must end at T = 5"):
        compiled(A, b, cu_seqlens=torch.tensor([0, 9]))


# Inductor itself uses the deprecated function.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor_compiles_a_scan():
    inputs = GATED_BLOCK[0].inputs(2, 9, 3, 2, dtype=torch.float32)
    compiled = torch.compile(GATED_BLOCK[0].scan, fullgraph=True, dynamic=True)
    torch.testing.assert_close(gradients(compiled, inputs), gradients(GATED_BLOCK[0].scan, inputs))


def test_compiled_backward_keeps_the_fused_op():
    """The backward graph contains the backward op, which has kernels, not its decomposition."""
    seen = []

    def record(graph, _):
        seen.append({str(node.target) for node in graph.graph.nodes})
        return make_boxed_func(graph.forward)

    inputs = GATED_BLOCK[0].inputs(2, 5, 2, 3)
    gradients(
        torch.compile(
            GATED_BLOCK[0].scan,
            fullgraph=True,
            backend=aot_autograd(fw_compiler=record, bw_compiler=record),
        ),
        inputs,
    )
    forward, backward = seen
    assert "statemix.gated_block_scan.default" in forward
    assert "statemix.gated_block_scan_backward.default" in backward


def test_hop_scan_shares_graphs_between_lengths():
    """One graph serves all lengths up to the next power of two."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(PLAIN[1].scan, fullgraph=True, dynamic=True, backend=counter)
    for T in (5, 6, 7):
        inputs = PLAIN[1].inputs(2, T, 3, 2)
        torch.testing.assert_close(gradients(compiled, inputs), gradients(PLAIN[1].scan, inputs))
    assert counter.frame_count == 1


def test_hop_scan_compiled_for_several_block_sizes():
    """Each m has its own graph; with a shared graph, inductor kept the strides of the first m."""
    compiled = torch.compile(PLAIN[1].scan, fullgraph=True)
    for m in (2, 3, 4):
        inputs = PLAIN[1].inputs(1, 2, 2, m)
        torch.testing.assert_close(gradients(compiled, inputs), gradients(PLAIN[1].scan, inputs))


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_layer(layer):
    mixer = layer()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(mixer, fullgraph=True, dynamic=True, backend=counter)
    for B, T in ((2, 7), (3, 12)):
        x = torch.randn(B, T, mixer.d_model)
        torch.testing.assert_close(compiled(x), mixer(x))
        compiled(x)[0].sum().backward()
    assert counter.frame_count == 1


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_layer_with_states_packing_and_mask(layer):
    mixer = layer()
    compiled = torch.compile(mixer, fullgraph=True, dynamic=True, backend="aot_eager")
    x, state = torch.randn(1, 9, mixer.d_model), torch.randn(3, *mixer.state_shape)
    settings = {"cu_seqlens": bounds([4, 3, 2]), "mask": random_mask(1, 9, 0)}
    torch.testing.assert_close(compiled(x, state, **settings), mixer(x, state, **settings))


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_export(layer):
    mixer = layer()
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("time")}
    program = torch.export.export(
        mixer, (torch.randn(2, 7, mixer.d_model),), dynamic_shapes=(sizes,)
    )
    for B, T in ((2, 7), (4, 3), (1, 30)):
        x = torch.randn(B, T, mixer.d_model)
        torch.testing.assert_close(program.module()(x), mixer(x))


def test_export_of_a_decoding_step():
    mixer = BDLRU(8, 3, 4)

    class Decode(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = mixer

        def forward(self, x_t, state):
            return self.mixer.step(x_t, state)

    x, state = torch.randn(2, 8), torch.randn(2, 3, 4)
    program = torch.export.export(Decode(), (x, state))
    torch.testing.assert_close(program.module()(x, state), mixer.step(x, state))
