"""Memory blocks for large outputs: reused, bounded, and private to each process."""

import threading

import pytest
import torch
from test_package import python

from statemix.kernels.cpu import pool

LARGE = (1024, 1024)


@pytest.fixture(autouse=True)
def fresh_pool():
    pool.limit.cache_clear()
    pool.release()
    yield
    pool.release()
    pool.limit.cache_clear()


def test_a_block_is_reused_after_its_last_tensor_is_freed():
    tensor = pool.empty(LARGE)
    assert tensor.is_contiguous()
    assert tensor.dtype == torch.float32
    address, row = tensor.data_ptr(), tensor[3]
    del tensor
    assert pool.FREE == []
    row.fill_(1.0)
    del row
    assert len(pool.FREE) == 1
    again = pool.empty(LARGE)
    assert again.data_ptr() == address
    assert pool.FREE == []


def test_two_tensors_never_share_a_block():
    tensors = [pool.empty(LARGE).fill_(i) for i in range(5)]
    assert len({tensor.data_ptr() for tensor in tensors}) == 5
    for i, tensor in enumerate(tensors):
        assert (tensor == i).all()


def test_small_requests_do_not_use_much_larger_blocks():
    large = pool.empty((16 * 1024, 1024))
    address = large.data_ptr()
    del large
    assert pool.empty(LARGE).data_ptr() != address


def test_small_outputs_come_from_torch():
    tensor = pool.empty((8, 8))
    del tensor
    assert pool.FREE == []


def test_free_blocks_are_bounded(monkeypatch):
    monkeypatch.setenv("STATEMIX_POOL", "16")
    pool.limit.cache_clear()
    tensors = [pool.empty(LARGE) for _ in range(10)]
    del tensors
    assert 0 < sum(map(len, pool.FREE)) <= 16 << 20


def test_the_pool_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("STATEMIX_POOL", "off")
    pool.limit.cache_clear()
    tensor = pool.empty(LARGE)
    del tensor
    assert pool.FREE == []
    monkeypatch.setenv("STATEMIX_POOL", "much")
    pool.limit.cache_clear()
    with pytest.raises(
        ValueError, match="STATEMIX_POOL must be 'off' or a number of MiB, got 'much'"
    ):
        pool.empty(LARGE)


def test_recycled_memory_is_poisoned_like_torch_empty():
    tensor = pool.empty(LARGE).fill_(1.0)
    del tensor
    assert pool.empty(LARGE).isnan().all()


def test_threads_take_different_blocks():
    errors = []

    def work(value: float) -> None:
        for _ in range(50):
            tensor = pool.empty(LARGE)
            tensor.fill_(value)
            if not (tensor == value).all():
                errors.append(value)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_forked_child_has_its_own_memory():
    code = """
import os, torch
from statemix.kernels.cpu import pool
torch.set_num_threads(1)  # OpenMP threads do not survive a fork
kept = pool.empty((1024, 1024)).fill_(1.0)
freed = pool.empty((1024, 1024)); del freed
child = os.fork()
if child == 0:
    kept.fill_(2.0)
    mine = pool.empty((1024, 1024)).fill_(3.0)
    os._exit(0 if (mine == 3).all() and (kept == 2).all() else 1)
_, status = os.waitpid(child, 0)
print(status, bool((kept == 1).all()))
"""
    assert python(code) == "0 True\n"


def test_autograd_keeps_blocks_as_long_as_it_needs_them():
    from statemix import gated_block_scan

    gates = torch.randn(2, 512, 64, 4, 5, requires_grad=True)
    v = torch.randn(2, 512, 64, 4, requires_grad=True)
    first, _ = gated_block_scan(gates, v)
    expected = first.detach().clone()
    for _ in range(3):
        h, _ = gated_block_scan(gates, v)
        torch.autograd.grad(h.sum(), (gates, v))
    torch.testing.assert_close(first, expected, rtol=0, atol=0)
