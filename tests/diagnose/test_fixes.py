"""Each fix changes what it says and nothing else: losses stay, and torch is as before when it is removed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stoker.diagnose.edit_sites import SiteFinder
from stoker.diagnose.experiments import Experiment
from stoker.diagnose.fixes import (
    FIXES,
    Autocast,
    Batch,
    Cudnn,
    Fix,
    Float32,
    Fused,
    FusedAttention,
    GatheredLoader,
    KeptBatches,
    LoaderFix,
    ModuleFix,
    Pinned,
    Tf32,
    Threads,
    Workers,
    _unblocked,
    doubled,
    draw_each_epoch,
    fix_named,
)
from stoker.diagnose.windows import OtherBatches
from stoker.errors import OptionError


class Pairs(torch.utils.data.Dataset[Any]):
    """Samples that are made one by one."""

    def __init__(self, count: int = 40) -> None:
        self.texts = [f"{number},{number + 0.5}" for number in range(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, float]:
        a, b = self.texts[number].split(",")
        return torch.tensor([float(a), float(b)]), float(b)


class Endless(IterableDataset[int]):
    """Samples without numbers."""

    def __iter__(self) -> Any:
        return iter(range(8))


def epoch(dataset: Any, **options: Any) -> list[Any]:
    torch.manual_seed(3)
    return list(DataLoader(dataset, **{"batch_size": 6, "shuffle": True, **options}))


def installed(fix: Fix, request: pytest.FixtureRequest) -> Fix:
    request.addfinalizer(fix.remove)
    fix.install()
    return fix


def losses(fix: Fix | None, optimizer: Any = torch.optim.AdamW, **options: Any) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    stepper = optimizer(model.parameters(), lr=1e-2, **options)
    if fix is not None:
        fix.begin([model, nn.MSELoss()], stepper)
    kept = []
    for _ in range(5):
        x = torch.randn(32, 6)
        loss = (model(x) - x[:, :1]).square().mean()
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        kept.append(loss.item())
    return kept


def test_the_registry_holds_every_fix() -> None:
    def subclasses(kind: type[Fix]) -> set[type[Fix]]:
        return {kind, *(inner for one in kind.__subclasses__() for inner in subclasses(one))}

    assert set(FIXES.values()) == subclasses(Fix) - {Fix, ModuleFix, LoaderFix, SiteFinder, OtherBatches} - subclasses(Experiment)
    assert all(issubclass(fix_named(name), Fix) for name in FIXES)
    with pytest.raises(OptionError, match="there is no fix 'magic'"):
        fix_named("magic")


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}])
def test_fused_takes_any_implementation_and_keeps_the_losses(options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    before = losses(None, **options)
    fix = installed(Fused(), request)
    assert losses(fix, **options) == pytest.approx(before, rel=1e-5)
    assert fix.used
    fix.remove()
    assert losses(None, **options) == before


def test_fused_finds_nothing_in_an_optimizer_without_it(request: pytest.FixtureRequest) -> None:
    fix = installed(Fused(), request)
    losses(fix, torch.optim.RMSprop)
    losses(fix, torch.optim.Adam, fused=True)
    assert not fix.used


def test_autocast_computes_in_bfloat16_and_gives_float32() -> None:
    fix = Autocast()
    seen = []

    class Watched(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            out = super().forward(input)
            seen.append(out.dtype)
            return out

    model = nn.Sequential(Watched(4, 4))
    fix.begin([model], None)
    assert model(torch.ones(2, 4)).dtype is torch.float32
    assert seen == [torch.bfloat16]
    assert losses(Autocast()) == pytest.approx(losses(None), rel=0.05)


def test_threads_are_set_after_the_program_has_set_its_own() -> None:
    given = torch.get_num_threads()
    try:
        Threads(given + 1).begin([], None)
        assert torch.get_num_threads() == given + 1
    finally:
        torch.set_num_threads(given)


def test_flags_of_torch_are_put_back() -> None:
    before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.get_num_threads())
    for fix in (Tf32(), Cudnn(), Threads(before[2] + 1)):
        fix.begin([nn.Conv1d(1, 1, 1)], None)
        assert fix.used
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.get_num_threads()) != before
        fix.remove()
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.get_num_threads()) == before


def test_what_was_inherited_is_inherited_again() -> None:
    fix, model = Autocast(), nn.Linear(4, 4)
    fix.begin([model], None)
    assert "forward" in vars(model)
    fix.remove()
    assert "forward" not in vars(model)
    pinned = Pinned()
    assert pinned.on([], None, [{"x": np.ones(3)}]) == [{"x": pytest.approx(np.ones(3))}]
    assert "to" in vars(torch.Tensor)
    pinned.remove()
    assert "to" not in vars(torch.Tensor)
    assert not pinned.used


def test_batches_are_pinned_once_where_they_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    fix, batch = Pinned(), (torch.ones(2), torch.ones(2))
    first = fix.batch(batch)
    assert fix.used
    assert first is not batch
    assert fix.batch(batch) is first
    assert fix.batch((torch.ones(2), torch.ones(2))) is not first
    monkeypatch.setattr(KeptBatches, "MAX_BYTES", 0)
    other = (torch.ones(2),)
    assert fix.batch(other) is not fix.batch(other)


def test_two_batches_are_joined_once_where_they_come_again() -> None:
    """To join them takes time that no larger batch of the user's would take."""
    batches = itertools.cycle([torch.zeros(2), torch.ones(2)])
    fix = Batch()
    first = fix.next_batch(lambda: next(batches))
    assert first.tolist() == [0, 0, 1, 1]
    assert fix.next_batch(lambda: next(batches)) is first


def test_an_optimizer_is_as_before_when_it_was_fused_for_a_while(request: pytest.FixtureRequest) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], foreach=True)
    weight.grad = torch.ones(3)
    optimizer.step()
    fix = installed(Fused(), request)
    optimizer.step()
    assert optimizer.param_groups[0]["fused"]
    fix.remove()
    assert (optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]) == (None, True)
    optimizer.step()
    assert optimizer.state[weight]["step"].item() == 3


def test_gradients_that_are_sparse_are_not_fused(request: pytest.FixtureRequest) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    fix = installed(Fused(), request)
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert not fix.used


def test_two_batches_in_one() -> None:
    batch = {"x": torch.zeros(2, 3), "y": torch.zeros(2)}
    twice = doubled(batch, {"x": torch.ones(2, 3), "y": torch.ones(2)})
    assert twice["y"].tolist() == [0, 0, 1, 1]
    assert twice["x"].shape == (4, 3)
    assert doubled((torch.ones(2), "a"), (torch.ones(2), "b")) is None
    assert doubled((torch.ones(2, 3),), (torch.ones(2, 4),)) is None
    assert doubled((torch.ones(2, 3), torch.ones(7)), (torch.ones(2, 3), torch.ones(7))) is None
    fix = Batch()
    assert len(fix.on([], None, [torch.ones(2), torch.ones(2)])[1]) == 4
    assert fix.used


def test_two_batches_are_one_in_a_trial_where_no_loader_makes_them(request: pytest.FixtureRequest) -> None:
    fix, batches = Batch(), iter([torch.zeros(2), torch.ones(2), torch.ones(2)])
    assert fix.next_batch(lambda: next(batches)).tolist() == [0, 0, 1, 1]
    assert fix.used
    assert len(Fused().next_batch(lambda: next(batches))) == 2, "the control: other fixes take one"
    ragged = iter([torch.zeros(2, 3), torch.ones(2, 4), torch.ones(2, 5)])
    assert [fix.next_batch(lambda: next(ragged)).shape[1] for _ in range(2)] == [3, 5]
    assert not fix.used
    assert "one row per sample" in fix.unused_reason
    fix = installed(Batch(), request)
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=6)
    whole = iter(loader)
    assert len(fix.next_batch(lambda: next(whole))[0]) == 12, "doubled once"


def test_sdpa_leaves_out_the_weights_of_attention(request: pytest.FixtureRequest) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    before, weights = attention(x, x, x)
    assert weights is not None
    fix = installed(FusedAttention(), request)
    after, weights = attention(x, x, x)
    assert weights is None
    torch.testing.assert_close(before, after)
    assert fix.used
    fix.used = False
    attention(x, x, x, need_weights=False)
    assert not fix.used


def test_workers_are_given_to_loaders_of_numbered_samples_alone(request: pytest.FixtureRequest) -> None:
    fix = installed(Workers(1), request)
    DataLoader(Endless(), batch_size=2)
    assert not fix.used
    assert "IterableDataset" in fix.unused_reason
    loader = DataLoader(Pairs(), 6, num_workers=0)
    assert (loader.num_workers, loader.persistent_workers, fix.used) == (1, True, True)
    fix.remove()
    assert DataLoader(Pairs(), 6).num_workers == 0


@pytest.mark.parametrize("drawing", [True, False])
def test_epochs_with_workers_have_the_order_of_those_without(
    drawing: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def orders() -> list[list[int]]:
        torch.manual_seed(3)
        loader = DataLoader(TensorDataset(torch.arange(40)), 8, shuffle=True)
        return [[int(one) for (batch,) in loader for one in batch] for _ in range(3)]

    before = orders()
    installed(Workers(1), request)
    if drawing:  # else without the guard
        monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_reset", _MultiProcessingDataLoaderIter._reset)  # put back in the end
        draw_each_epoch()
    after = orders()
    assert after[0] == before[0]
    assert (after == before) == drawing


def test_batches_are_doubled_once_however_loaders_are_made(request: pytest.FixtureRequest) -> None:
    fix = installed(Batch(), request)
    dataset = Pairs()
    loader = DataLoader(dataset, batch_size=6)
    assert len(next(iter(loader))[1]) == 12
    again = DataLoader(dataset, batch_sampler=loader.batch_sampler)
    assert len(next(iter(again))[1]) == 12
    whole = DataLoader(TensorDataset(torch.arange(40)), batch_size=None, sampler=BatchSampler(RandomSampler(range(40)), 5, True))
    assert len(next(iter(whole))[0]) == 10
    assert fix.used


def test_batches_that_the_program_makes_are_not_doubled(request: pytest.FixtureRequest) -> None:
    fix = installed(Batch(), request)
    assert DataLoader(Pairs(), batch_size=None).batch_size is None
    assert not fix.used
    assert "itself" in fix.unused_reason


@pytest.mark.parametrize("dataset", [Pairs(), TensorDataset(torch.randn(40, 3), torch.arange(40))])
def test_gathered_batches_are_those_of_the_program(dataset: Any, request: pytest.FixtureRequest) -> None:
    before, drawn = epoch(dataset), torch.rand(1)
    fix = installed(GatheredLoader(), request)
    after = epoch(dataset)
    assert torch.equal(drawn, torch.rand(1))  # nothing more was drawn
    assert fix.used
    for a, b in zip(before, after, strict=True):
        assert type(a) is type(b)
        assert all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_samples_that_differ_from_call_to_call_are_left_as_they_are(request: pytest.FixtureRequest) -> None:
    class Noisy(Pairs):
        def __getitem__(self, number: int) -> Any:
            x, y = super().__getitem__(number)
            return x + torch.rand(2), y

    before = epoch(Noisy())
    fix = installed(GatheredLoader(), request)
    after = epoch(Noisy())
    assert not fix.used
    assert fix.unused_reason == "samples of Noisy differ from one call to the next"
    assert all(torch.equal(a[0], b[0]) for a, b in zip(before, after, strict=True))


def test_loaders_of_whole_batches_have_nothing_to_gather(request: pytest.FixtureRequest) -> None:
    fix = installed(GatheredLoader(), request)
    DataLoader(TensorDataset(torch.arange(40)), batch_size=None, sampler=BatchSampler(RandomSampler(range(40)), 5, True))
    DataLoader(Endless(), batch_size=2)
    assert not fix.used


def test_copies_from_pinned_memory_alone_are_not_waited_for() -> None:
    class Fake:
        device = torch.device("cpu")

        def __init__(self, pinned: bool) -> None:
            self.is_pinned = lambda: pinned

    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return kwargs

    copied = _unblocked(copy)
    assert copied(Fake(True), "cuda") == {"non_blocking": True}
    assert copied(Fake(True), "cuda", non_blocking=False) == {"non_blocking": False}
    assert copied(Fake(False), "cuda") == {}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tf32", "cudnn"])
def test_fixes_of_a_gpu_keep_the_losses(name: str) -> None:
    def run(fix: Fix | None) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.Flatten(), nn.Linear(48, 1)).cuda()
        if fix is not None:
            fix.begin([model], None)
        stepper = torch.optim.SGD(model.parameters(), lr=1e-2)
        kept = []
        for _ in range(5):
            loss = model(torch.randn(16, 4, 8, device="cuda")).square().mean()
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            kept.append(loss.item())
        return kept

    before, precision = run(None), torch.get_float32_matmul_precision()
    fix = fix_named(name)()
    try:
        assert run(fix) == pytest.approx(before, rel=fix.tolerance)
        assert fix.used
    finally:
        fix.remove()
    assert torch.get_float32_matmul_precision() == precision
    assert run(None) == before


def test_float32_halves_weights_state_and_batches_and_gives_them_back(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"x": torch.randn(3, 4, dtype=torch.float64), "n": torch.arange(3)}

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(batch)
    before = [one.detach().clone() for one in model.parameters()]
    fix = Float32()
    request.addfinalizer(fix.remove)
    [changed] = fix.on([model], optimizer, [batch])
    assert fix.used
    assert changed["x"].dtype is torch.float32
    assert changed["n"].dtype is torch.int64
    assert step(changed).dtype is torch.float32
    fix.remove()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    assert step(batch).dtype is torch.float64
    untouched = Float32()
    untouched.on([nn.Linear(2, 2)], None, [])
    assert not untouched.used


def test_float32_also_works_where_the_loop_takes_samples_from_a_tensor() -> None:
    """Its batches are rows of indices; the model gets float64 from somewhere else."""
    model, table = nn.Linear(4, 1).double(), torch.ones(8, 4, dtype=torch.float64)
    fix = Float32()
    [rows] = fix.on([model], None, [torch.tensor([1, 2])])
    assert model(table[rows]).dtype is torch.float32
    assert model(input=table[rows]).dtype is torch.float32
    fix.remove()
    assert model(table[rows]).dtype is torch.float64
