from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stoker.errors import OptionError
from stoker.tune import BatchSizeChoice, batch_size, batch_sizes
from stoker.tune.batch_sizes import MOST_IN_TURN, _Measure

Rate = Callable[[int], float]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Replace the clock and the memory: a size has this rate, and does not fit above a limit. Returns the sizes that are tried."""

    def use(rate: Rate, *, fits_to: int = 2**40) -> list[int]:
        tried: list[int] = []

        def fake(self: _Measure, size: int) -> tuple[float, int] | None:
            tried.append(size)
            return (size / rate(size), size * 1000) if size <= fits_to else None

        monkeypatch.setattr(_Measure, "alone", fake)
        monkeypatch.setattr(_Measure, "rounds", lambda self, sizes: [[size / rate(size) for size in sizes]])
        return tried

    return use


def saturating(size: int) -> float:
    return 1e6 * size / (size + 100)


def choose(**options: Any) -> BatchSizeChoice:
    return batch_size(lambda: lambda batch: None, torch.zeros(4, 2), **options)


def smallest_within(rate: Rate, share: float, largest: int) -> int:
    best = max(rate(size) for size in range(1, largest + 1))
    return next(size for size in range(1, largest + 1) if rate(size) >= (1 - share) * best)


@pytest.mark.parametrize("tolerance", [0.05, 0.2])
def test_the_smallest_size_within_the_tolerance_is_chosen(measured: Callable[..., list[int]], tolerance: float) -> None:
    tried = measured(saturating)
    choice = choose(tolerance=tolerance, largest=8192)
    exact = smallest_within(saturating, tolerance, 8192)
    assert exact <= choice.size <= 1.3 * exact
    assert len(set(tried)) < 20
    assert choice.limit == "throughput"
    assert [one.size for one in choice.curve] == sorted({one.size for one in choice.curve})
    assert f"{choice.size:>8,}" in str(choice)
    assert "<- chosen" in str(choice)


def test_a_best_size_between_powers_of_two_is_found(measured: Callable[..., list[int]]) -> None:
    measured(lambda size: 2.0 * size if size <= 384 else 500.0)  # 512 no longer fits into a cache
    assert choose(largest=2048).size in range(365, 385)


def test_sizes_that_are_about_as_fast_are_compared_in_turn(
    measured: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured one after the other, other programs make a slow size look fast; in turn, they slow all down alike."""
    true = lambda size: min(size, 256.0)  # noqa: E731
    measured(lambda size: 250.0 if size == 128 else true(size))
    assert choose(largest=512).size <= 128  # the negative control: in turn it is the same
    monkeypatch.setattr(
        _Measure, "rounds", lambda self, sizes: [[load * size / true(size) for size in sizes] for load in (1.0, 3.0, 1.5)]
    )
    assert 0.95 * 256 <= choose(largest=512).size <= 256
    monkeypatch.setattr(_Measure, "rounds", lambda self, sizes: None)  # they do not fit together
    assert choose(largest=512).size <= 128


def test_sizes_compared_in_turn_are_spread_over_all_that_are_about_as_fast(
    measured: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many sizes, the smallest alone would not show that a larger one is faster than it seemed."""
    seen: list[int] = []
    alone = lambda size: 1.021 ** math.log2(size)  # noqa: E731
    measured(alone)

    def rounds(self: _Measure, sizes: list[int]) -> list[list[float]]:
        seen[:] = sizes
        return [[size / (1.2 if 8192 <= size < 65536 else 1.0) / alone(size) for size in sizes]]

    monkeypatch.setattr(_Measure, "rounds", rounds)
    assert choose().size >= 8192
    assert len(seen) == MOST_IN_TURN
    assert seen[-1] == 65536


def test_a_size_that_does_not_fit_bounds_the_search(measured: Callable[..., list[int]]) -> None:
    measured(lambda size: float(size), fits_to=700)
    choice = choose()
    assert choice.limit == "memory"
    assert 0.85 * 700 <= max(one.size for one in choice.curve if one.fits) <= 700
    assert choice.size >= 0.95 * 0.85 * 700
    assert any(not one.fits for one in choice.curve)
    assert "does not fit" in str(choice)
    measured(lambda size: 1.0, fits_to=0)
    with pytest.raises(OptionError, match="not even a batch of 1 sample fits"):
        choose()


def test_an_epoch_keeps_enough_steps(measured: Callable[..., list[int]]) -> None:
    tried = measured(lambda size: float(size))
    choice = choose(num_samples=1000, min_steps_per_epoch=25)
    assert max(tried) == 40
    assert choice.limit == "epoch"
    assert "1,000 samples in at least 25 steps" in str(choice)


def test_the_effective_batch_is_kept_by_accumulation(measured: Callable[..., list[int]]) -> None:
    measured(lambda size: min(size, 30.0))
    choice = choose(effective_batch=96)
    assert choice.size * choice.grad_accum_steps == 96
    assert choice.size >= 30 * 0.95
    assert f"{choice.grad_accum_steps} batches per update keep the effective batch of 96" in str(choice)


def test_a_learning_rate_is_offered_and_nothing_changed(measured: Callable[..., list[int]]) -> None:
    measured(lambda size: min(size, 64.0))
    choice = choose(largest=64)
    assert choice.scaled_lr(0.1, batch_size=choice.size // 4) == pytest.approx(0.4, rel=0.1)
    assert choice.scaled_lr(0.1, batch_size=choice.size // 4, rule="sqrt") == pytest.approx(0.2, rel=0.1)


def model_and_step(width: int = 64) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Callable[[torch.Tensor], None]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.5), nn.BatchNorm1d(width), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def make_step() -> Callable[[torch.Tensor], None]:
        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        return step

    return model, optimizer, make_step


def test_model_optimizer_and_random_numbers_are_left_alone() -> None:
    model, optimizer, make_step = model_and_step()
    make_step()(torch.ones(4, 8))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    random = torch.get_rng_state()
    choice = batch_size(make_step, torch.ones(4, 8), model=model, optimizer=optimizer, largest=4)
    assert all(one.samples_per_second > 0 for one in choice.curve)
    assert torch.equal(torch.get_rng_state(), random)
    for kept, now in zip(
        torch.utils._pytree.tree_leaves(before),
        torch.utils._pytree.tree_leaves((model.state_dict(), optimizer.state_dict())),
        strict=True,
    ):
        assert torch.equal(kept, now) if isinstance(kept, torch.Tensor) else kept == now
    make_step()(torch.ones(4, 8))  # the negative control: a step here changes them
    assert not torch.equal(before[0]["0.weight"], model.state_dict()["0.weight"])


def test_a_size_beyond_the_memory_limit_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizes, "ROUNDS", 2)
    monkeypatch.setattr(batch_sizes, "IN_TURN_ROUNDS", 2)

    def make_step() -> Callable[[torch.Tensor], None]:
        def step(batch: torch.Tensor) -> None:
            torch.empty(len(batch), 16 << 20)  # 64 MB per sample: threads of earlier tests give back 8 MB each as they end
            time.sleep(0.02)  # so that larger batches are faster

        return step

    choice = batch_size(make_step, torch.ones(4, 8), memory=1536 << 20, largest=256)
    assert 1 <= max(one.size for one in choice.curve if one.fits) < 32
    assert min(one.size for one in choice.curve if not one.fits) <= 32


def test_an_error_of_the_step_is_reported() -> None:
    def make_step() -> Callable[[torch.Tensor], None]:
        def step(batch: torch.Tensor) -> None:
            raise ValueError("bad shape")

        return step

    with pytest.raises(OptionError, match="a step with a batch of 2 failed: ValueError: bad shape"):
        batch_size(make_step, torch.ones(4, 8))


@pytest.mark.parametrize(
    ("name", "value"),
    [("tolerance", 1.0), ("largest", 0), ("num_samples", 0), ("effective_batch", -4), ("min_steps_per_epoch", 0)],
)
def test_an_invalid_option_is_an_error(name: str, value: float) -> None:
    with pytest.raises(OptionError) as caught:
        choose(**{name: value})
    assert caught.value.parameter == name


def test_a_batch_without_rows_is_an_error() -> None:
    with pytest.raises(OptionError, match="sample_batch has no rows"):
        batch_size(lambda: lambda batch: None, [])


def test_a_size_that_a_kernel_refuses_bounds_the_search() -> None:
    def make_step() -> Callable[[torch.Tensor], None]:
        def step(batch: torch.Tensor) -> None:
            if len(batch) > 10:
                raise RuntimeError("the batch exceeds 10 rows")

        return step

    choice = batch_size(make_step, torch.zeros(4, 2), largest=64)
    assert choice.size <= 10
    assert "fails: RuntimeError: the batch exceeds 10 rows" in str(choice)
    assert choice.limit != "memory"


def test_batches_of_other_sizes_repeat_rows_and_leave_other_tensors() -> None:
    from stoker.tune.batch_sizes import _repeating

    made = _repeating({"x": torch.arange(3), "weights": torch.ones(2), "name": "a"})(5)
    assert made["x"].tolist() == [0, 1, 2, 0, 1]
    assert len(made["weights"]) == 2
    assert made["name"] == "a"


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_left_behind() -> None:
    model, optimizer, _ = model_and_step(1024)
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def make_step() -> Callable[[torch.Tensor], None]:
        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(batch.repeat_interleave(64, 0)).square().mean().backward()
            optimizer.step()

        return step

    weights = copy.deepcopy(model.state_dict())
    sample = torch.ones(4, 8, device="cuda")
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
    try:
        # Libraries make workspaces in the first large step, and keep them.
        batch_size(make_step, sample, model=model, optimizer=optimizer, largest=1 << 12)
        before = torch.cuda.memory_allocated()
        choice = batch_size(make_step, sample, model=model, optimizer=optimizer, largest=1 << 22)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any(one.fits for one in choice.curve)
    assert any(not one.fits for one in choice.curve)
    assert torch.cuda.memory_allocated() == before
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state
