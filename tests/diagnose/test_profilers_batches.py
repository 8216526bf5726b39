"""Batches that are made in this process as a worker would make them, while lines are sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker.diagnose import profilers
from stoker.diagnose.profilers import lines_of_batches, maker

MS = 1_000_000


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((2,), float(number))


class Batches(Rows):
    """The same, as whole batches."""

    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        return [self[number] + 100 for number in numbers]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from torch.arange(3.0)


@pytest.mark.parametrize(
    ("loader", "batches"),
    [
        (DataLoader(Rows(), batch_size=4), [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]),
        (DataLoader(Rows(), batch_size=4, num_workers=2), [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]),
        (DataLoader(Batches(), batch_size=4), [[100, 101, 102, 103], [104, 105]]),
        (DataLoader(Rows(), batch_size=None), [0, 1, 2]),
        (DataLoader(Stream(), batch_size=2), [[0, 1], [2, 0], [1, 2]]),
        (DataLoader(Stream(), batch_size=None), [0, 1, 2, 0]),
    ],
)
def test_batches_are_those_of_the_loader_pass_after_pass(loader: DataLoader[Any], batches: list[Any]) -> None:
    make = maker(loader)
    for batch in batches:
        made: Any = make()
        assert (made if isinstance(loader.dataset, Stream) else made[..., 0]).tolist() == batch


@pytest.mark.parametrize(("each", "seconds", "made"), [(100, 0.35, 4), (1000, 0.5, 2), (1, 10.0, profilers.MOST_BATCHES)])
def test_batches_are_made_for_a_while_but_never_one_alone(
    each: int, seconds: float, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, count = [0], [0]

    def make() -> None:
        now[0] += each * MS
        count[0] += 1

    monkeypatch.setattr(profilers, "now_ns", lambda: now[0])
    _, spent = lines_of_batches(make, seconds=seconds)
    assert (count[0], spent) == (made, pytest.approx(each / 1000))


def test_the_lines_that_make_a_batch_are_the_users() -> None:
    def slow() -> int:
        return sum(number * number for number in range(200_000))

    lines, _ = lines_of_batches(slow, seconds=0.05)
    assert lines[0].place.file.endswith("test_profilers_batches.py")
    assert 0.5 < sum(line.share for line in lines) <= 1.0
