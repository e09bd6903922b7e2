"""Blocks divided among two or three ranks match one process.

The tests compare outputs, states, gradients, training steps, and the gathered weights.
"""

import json
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ranks import attempt, on_ranks
from torch import nn

from statemix.layers import BDLRU, HLRU, divide_blocks, gather_blocks
from statemix.layers.split import DividedMixer, DividedSwiGLU
from statemix.models import LanguageModel, LMConfig

D, N, M = 6, 5, 3  # five blocks do not divide evenly
LAYERS = {
    "bdlru": lambda: BDLRU(D, N, M, learn_initial_state=True),
    "hlru": lambda: HLRU(D, N, M, learn_initial_state=True),
    "observer": lambda: HLRU(D, N, M, form="observer", gate="sigmoid"),
    "fixed gates": lambda: BDLRU(D, N, M, selectivity="none"),
    "save_memory": lambda: BDLRU(D, N, M, save_memory=True),
}
MODELS = {
    "bdlru": {"mixer": "bdlru", "options": {"n_blocks": N, "block_size": M}},
    "hlru": {"mixer": "hlru", "options": {"n_channels": N, "order": M}},
}
CASES = [*(f"layer {name}" for name in LAYERS), *(f"model {name}" for name in MODELS)]


def randomised(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Draw weights that are the same on every rank, and large enough for gates to matter."""
    module = module.to(dtype)
    generator = torch.Generator().manual_seed(0)
    for p in module.parameters():
        p.data.copy_(torch.randn(p.shape, generator=generator, dtype=dtype) / 2)
    return module


def check_layer(name: str) -> None:
    """Compare masked and packed sequences, initial and final states, and single steps."""
    group = dist.group.WORLD
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = slice(N * rank // ranks, N * (rank + 1) // ranks)
    full, divided = (
        randomised(LAYERS[name]()),
        nn.ModuleDict({"mixer": randomised(LAYERS[name]())}),
    )
    divide_blocks(divided, group)
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    x, state, upstream = draw(2, 7, D), draw(2, N, M), draw(2, 7, D)
    mask = torch.tensor([[True] * 7, [False] * 2 + [True] * 5])
    x_a, h_a = x.clone().requires_grad_(), state.clone().requires_grad_()
    x_b, h_b = x.clone().requires_grad_(), state[:, own].clone().requires_grad_()
    y_a, after_a = full(x_a, h_a, mask=mask)
    y_b, after_b = divided["mixer"](x_b, h_b, mask=mask)
    torch.testing.assert_close(y_b, y_a)
    torch.testing.assert_close(after_b, after_a[:, own])
    ((y_a * upstream).sum() + after_a.square().sum()).backward()
    ((y_b * upstream).sum() + after_b.square().sum()).backward()
    torch.testing.assert_close(x_b.grad, x_a.grad)
    torch.testing.assert_close(h_b.grad, h_a.grad[:, own])
    for key, p in divided["mixer"].part.named_parameters():
        expected, axis = full.get_parameter(key).grad, 1 if key == "W_o.weight" else 0
        if expected is None:  # the initial state was not used
            assert p.grad is None
            continue
        each = expected.shape[axis] // N
        torch.testing.assert_close(
            p.grad, expected.narrow(axis, own.start * each, (own.stop - own.start) * each)
        )
    with torch.no_grad():
        torch.testing.assert_close(divided["mixer"].step(x[:, 0])[0], full.step(x[:, 0])[0])
    packed = (x.flatten(0, 1)[None], None)
    bounds = torch.tensor([0, 3, 3, 14])
    torch.testing.assert_close(
        divided["mixer"](*packed, cu_seqlens=bounds)[0], full(*packed, cu_seqlens=bounds)[0]
    )


def check_model(name: str) -> None:
    """Three training steps in float32, with kernels, give the losses and weights of one process."""
    config = LMConfig(vocab=19, width=8, layers=2, **MODELS[name])
    full, divided = (randomised(LanguageModel(config), torch.float32) for _ in range(2))
    divide_blocks(divided, dist.group.WORLD)
    assert (
        sum(isinstance(module, DividedMixer | DividedSwiGLU) for module in divided.modules()) == 4
    )
    assert sum(p.numel() for p in divided.parameters()) < sum(p.numel() for p in full.parameters())
    optimisers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (full, divided)]
    tokens = torch.randint(0, 19, (2, 33), generator=torch.Generator().manual_seed(2))
    for _ in range(3):
        losses = []
        for model, optimiser in zip((full, divided), optimisers, strict=True):
            logits = model(tokens[:, :-1])[0]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)
    gathered = gather_blocks(divided)
    assert gathered.keys() == full.state_dict().keys()
    for key, p in full.state_dict().items():
        torch.testing.assert_close(gathered[key], p, rtol=1e-3, atol=1e-4)
    LanguageModel(config).load_state_dict(gathered)


def check_frozen() -> None:
    """Frozen parameters stay frozen."""
    model = nn.Sequential(BDLRU(D, N, M))
    model[0].W_v.weight.requires_grad_(False)
    divide_blocks(model, dist.group.WORLD)
    assert [name for name, p in model[0].part.named_parameters() if not p.requires_grad] == [
        "W_v.weight"
    ]


def check_errors() -> None:
    group = dist.group.WORLD
    with pytest.raises(ValueError, match="The 1 blocks of 0 cannot be divided among"):
        divide_blocks(nn.Sequential(BDLRU(D, 1, M)), group)
    with pytest.raises(ValueError, match="got 'pointwise' at 0"):
        divide_blocks(nn.Sequential(BDLRU(D, 2, M, selectivity="pointwise")), group)
    with pytest.raises(ValueError, match="Linear has no BD-LRU or H-LRU layer"):
        divide_blocks(nn.Linear(2, 2), group)
    with pytest.raises(ValueError, match="got a single layer, BDLRU"):
        divide_blocks(BDLRU(D, N, M), group)
    model = nn.Sequential(BDLRU(D, N, M))
    divide_blocks(model, group)
    with pytest.raises(ValueError, match="The blocks of 0 are already divided"):
        divide_blocks(model, group)
    layer = BDLRU(D, N, M)
    with pytest.raises(ValueError, match="uses the same layer twice"):
        divide_blocks(nn.Sequential(layer, layer), group)
    for alter in (
        add_bias,
        lambda layer: layer.register_forward_hook(print),
        lambda layer: nn.utils.parametrizations.weight_norm(layer.W_v),
    ):
        layer = BDLRU(D, N, M)
        alter(layer)
        with pytest.raises(
            ValueError, match="0 has hooks, biases or parametrisations, which its parts"
        ):
            divide_blocks(nn.Sequential(layer), group)
    x = torch.randn(1, 3, D, requires_grad=True)
    (dx,) = torch.autograd.grad(model[0](x)[0].sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.square().sum().backward()


def add_bias(layer: BDLRU) -> None:
    layer.W_o.bias = nn.Parameter(torch.zeros(D))


def work(rank: int, count: int, directory: str) -> None:
    found = {f"layer {name}": attempt(lambda name=name: check_layer(name)) for name in LAYERS}
    found |= {f"model {name}": attempt(lambda name=name: check_model(name)) for name in MODELS}
    found |= {"errors": attempt(check_errors), "frozen": attempt(check_frozen)}
    with open(f"{directory}/{rank}.json", "w") as file:
        json.dump(found, file)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Collect the errors of each rank, by number of ranks."""
    found = {}
    for ranks in (2, 3):
        directory = tmp_path_factory.mktemp(f"ranks{ranks}")
        on_ranks(ranks, work, directory, str(directory))
        found[ranks] = [
            json.loads((directory / f"{rank}.json").read_text()) for rank in range(ranks)
        ]
    return found


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("case", [*CASES, "errors", "frozen"])
def test_divided_blocks_match_one_process(results, case, ranks):
    for rank, found in enumerate(results[ranks]):
        assert not found[case], f"rank {rank}: {found[case]}"
