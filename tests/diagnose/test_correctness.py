"""What is wrong with batches is found beside speed, within the time that is given, and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, TensorDataset

from stoker.diagnose import correctness
from stoker.diagnose.correctness import faults_of

X = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randn(400, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, Y)


def loader(data: Any = DATA, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=10, **options)


class Made:
    """Batches of given rows."""

    dataset = DATA

    def __init__(self, rows: torch.Tensor, *, shift: int = 0) -> None:
        self._rows, self._shift = rows, shift

    def __len__(self) -> int:
        return len(self._rows) // 10

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for rows in self._rows.split(10):
            yield X[rows], Y.roll(self._shift)[rows]


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return X[index] + torch.randn(4), Y[index]


class Broken(Augmented):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 333:
            raise ValueError("no such\nfile")
        return X[index], Y[index]


SHUFFLED = torch.randperm(400, generator=torch.Generator().manual_seed(2))


@pytest.mark.promise("P20", control=True)
@pytest.mark.parametrize(
    "batches",
    [
        loader(shuffle=True),
        loader(Augmented(), shuffle=True),
        loader(sampler=RandomSampler(DATA, replacement=True, num_samples=400)),
        loader(torch.randint(0, 3, (400, 2)), shuffle=True),
        Made(SHUFFLED),
        [["a"], ["b"]],
    ],
    ids=["shuffled", "augmented", "with replacement", "equal rows", "made", "texts"],
)
def test_what_is_right_is_not_blamed(batches: Any) -> None:
    assert faults_of(batches, seconds=20) == []


@pytest.mark.promise("P20")
@pytest.mark.parametrize(
    ("batches", "title"),
    [
        (loader(), "not shuffled: "),
        (Made(torch.cat([SHUFFLED, SHUFFLED[:40]])), "samples repeated: 40 of 440 rows"),
        (Made(SHUFFLED[:-50]), "samples missed: 50 of 400 samples never came"),
        (Made(SHUFFLED, shift=1), "entries of different samples in a row: 400 of 400 rows"),
        (loader(TensorDataset(X.where(X.max() > X, torch.nan), Y), shuffle=True), "values that are not finite: '[0]' has 1 NaN"),
        (loader(Broken(), shuffle=True), "samples that cannot be read: ValueError: no such file"),
    ],
    ids=["in order", "repeated", "missed", "mixed", "not finite", "broken"],
)
def test_what_is_wrong_is_reported(batches: Any, title: str) -> None:
    found = faults_of(batches, seconds=20)
    assert len(found) == 1
    assert found[0].startswith(title)


def test_a_buffer_that_is_shared_is_found() -> None:
    buffer = torch.zeros(10, 4)

    class Shared:
        def __iter__(self) -> Iterator[torch.Tensor]:
            for rows in SHUFFLED.split(10):
                yield buffer.copy_(X[rows])

    [found] = faults_of(Shared(), seconds=20)
    assert found.startswith("batches that change after they were handed out: 39 batches changed")


def test_validation_data_seen_in_training_is_found() -> None:
    train = loader(Subset(DATA, range(300)), shuffle=True)
    [found] = faults_of(train, loader(Subset(DATA, range(280, 400))), seconds=20)
    assert found.startswith("validation data seen in training: 20 of 300 samples")
    assert faults_of(train, loader(Subset(DATA, range(300, 400))), seconds=20) == []


@pytest.mark.promise("P20", control=True)
def test_negative_control_without_the_validation_data_the_leak_is_missed() -> None:
    assert faults_of(loader(Subset(DATA, range(300)), shuffle=True), seconds=20) == []


@pytest.mark.promise("P20")
def test_a_slow_loader_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    read = []

    class Slow(Dataset[Any]):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> torch.Tensor:
            now[0] += 1_000_000
            read.append(index)
            return X[index % 400] + index

    monkeypatch.setattr(correctness, "now_ns", lambda: now[0])
    assert faults_of(loader(Slow()), seconds=1) == ["not shuffled: the loader says that it takes samples in order."]
    assert now[0] < 1.5e9
    assert len(read) > 200


@pytest.mark.promise("P20")
def test_one_that_is_far_too_slow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    class Slow(Augmented):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            now[0] += 400_000_000
            return super().__getitem__(index)

    monkeypatch.setattr(correctness, "now_ns", lambda: now[0])
    assert faults_of(loader(Slow(), shuffle=True), seconds=1) == []
    assert now[0] <= 0.4e9
    assert faults_of(loader(Slow(), shuffle=True), seconds=4) == []
    assert now[0] <= 14e9
    assert faults_of(loader(Slow()), seconds=1) == ["not shuffled: the loader says that it takes samples in order."]
