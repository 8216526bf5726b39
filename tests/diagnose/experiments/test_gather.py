"""Columns give what the dataset gives, bit for bit, or are not found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.diagnose.experiments.samples import Endless, Pairs, epoch, installed
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, default_collate

from stoker.diagnose.experiments import gather
from stoker.diagnose.experiments.gather import Columns, GatheredLoader, columns_of, gathering


class Series(torch.utils.data.Dataset[Any]):
    """Windows of one series, with the value after each."""

    def __init__(self, length: int = 7, stride: int = 3) -> None:
        self.values = np.random.default_rng(0).standard_normal((100, 2), dtype=np.float32)
        self.length, self.stride = length, stride

    def __len__(self) -> int:
        return (len(self.values) - self.length - 1) // self.stride + 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        start = number * self.stride
        stop = start + self.length
        return {"x": torch.from_numpy(self.values[start:stop]), "y": self.values[stop], "next": self.values[stop - 1 : stop + 1]}


class Rows(torch.utils.data.Dataset[Any]):
    """Rows of two arrays, one of them as another type."""

    def __init__(self) -> None:
        self.data = {"x": torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), "y": np.arange(30)}

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> Any:
        return self.data["x"][number].double(), int(self.data["y"][number])


def padded(samples: list[Any]) -> torch.Tensor:
    longest = max(len(sample) for sample in samples)
    return torch.stack([torch.nn.functional.pad(sample, (0, longest - len(sample))) for sample in samples])


def assert_same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("dataset", [Series(), Rows(), [float(number) for number in range(30)]])
def test_columns_gather_what_the_dataset_makes(dataset: Any) -> None:
    found = columns_of(dataset, default_collate)
    assert isinstance(found, Columns)
    numbers = np.random.default_rng(1).permutation(len(dataset)).tolist()
    assert_same(found.__getitems__(numbers), default_collate([dataset[number] for number in numbers]))


def test_what_depends_on_its_batch_has_no_columns() -> None:
    samples = [torch.ones(1 + number % 3) for number in range(30)]
    assert columns_of(samples, padded) == "samples of list differ in their shapes"


def test_what_is_too_large_or_takes_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [torch.rand(3) for _ in range(30)]
    monkeypatch.setattr(gather, "MAX_BYTES", 100)
    assert "too much to read" in str(columns_of(samples, default_collate))
    monkeypatch.setattr(gather, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(gather, "MAX_SECONDS", 0.0)
    assert "too long" in str(columns_of(samples, default_collate))


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


def test_samples_that_differ_from_call_to_call_are_not_those_of_the_program(request: pytest.FixtureRequest) -> None:
    class Noisy(Pairs):
        def __getitem__(self, number: int) -> Any:
            x, y = super().__getitem__(number)
            return x + torch.rand(2), y

    before = epoch(Noisy())
    installed(GatheredLoader(), request)
    after = epoch(Noisy())
    assert not any(torch.equal(a[0], b[0]) for a, b in zip(before, after, strict=True)), "so that the losses of a trial differ"


def test_loaders_of_whole_batches_have_nothing_to_gather(request: pytest.FixtureRequest) -> None:
    fix = installed(GatheredLoader(), request)
    DataLoader(TensorDataset(torch.arange(40)), batch_size=None, sampler=BatchSampler(RandomSampler(range(40)), 5, True))
    DataLoader(Endless(), batch_size=2)
    assert not fix.used


def test_gathered_batches_are_like_those_of_the_program() -> None:
    batches = [{"x": torch.full((4, 3), float(number)), "y": torch.full((4,), number)} for number in range(3)]
    made = gathering(batches, 100, 4)
    assert made is not None
    for _ in range(60):  # more than an epoch
        batch = next(made)
        assert (batch["x"].shape, batch["y"].dtype) == ((4, 3), torch.int64)
        assert torch.equal(batch["x"][:, 0], batch["y"].float())  # rows stay together
    assert gathering([{"x": torch.ones(4), "name": "a"}], 100, 4) is None
    assert gathering([torch.ones(4, 2), torch.ones(4, 3)], 100, 4) is None
    assert gathering([], 100, 4) is None
