"""Lines that make batches, found by making some in this process where workers make them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker.diagnose.loops import Source, batches_of_workers
from stoker.diagnose.measurements import Blame, SourceLine
from stoker.diagnose.session import Session
from stoker.diagnose.windows import measure_all, profile_batches

LINE = Blame(place=SourceLine(file="train.py", line=3, function="batches"), share=0.9)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> torch.Tensor:
        for _ in range(20_000):
            pass
        return torch.full((2,), float(number))


class Batches(Rows):
    """The same, as whole batches."""

    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        return [self[number] + 100 for number in numbers]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from torch.arange(3.0)


class InWorkers(Rows):
    def __getitem__(self, number: int) -> torch.Tensor:
        raise RuntimeError("no connection")


@pytest.mark.parametrize(
    ("loader", "batches"),
    [
        (DataLoader(Rows(), batch_size=4), [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]),
        (DataLoader(Rows(), batch_size=4, num_workers=2), [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]),
        (DataLoader(Batches(), batch_size=4), [[100, 101, 102, 103], [104, 105]]),
        (DataLoader(Rows(), batch_size=None), [0, 1, 2]),
        (DataLoader(Stream(), batch_size=2), [[0, 1], [2], [0, 1]]),
        (DataLoader(Stream(), batch_size=None, num_workers=1), [0, 1, 2, 0]),
    ],
)
def test_batches_of_this_process_are_those_of_the_loader_pass_after_pass(loader: DataLoader[Any], batches: list[Any]) -> None:
    made = batches_of_workers(loader, 0)
    for expected in batches:
        batch = next(made)
        assert (batch if isinstance(loader.dataset, Stream) else batch[..., 0]).tolist() == expected


def session_over(iterable: Any) -> Session:
    session = Session(measure_all, on_done=lambda: None, pace=0.1)
    session.sources.training = Source(iterable, None)
    session.sources.training.gives_batches = True
    session.recorder.blames = {"next": [LINE]}
    return session


def test_the_lines_that_make_a_batch_of_workers_are_sampled_in_this_process() -> None:
    session = session_over(DataLoader(Rows(), batch_size=4, num_workers=2))
    profile_batches(session)
    lines = session.recorder.batch_lines
    assert lines[0].place.file.endswith("test_profilers_batches.py")
    assert 0.5 < sum(line.share for line in lines) <= 1.0
    assert (session.recorder.batch_seconds or 0.0) > 0


def test_without_workers_they_are_those_in_which_the_loop_waited_for_its_batch() -> None:
    session = session_over(DataLoader(Rows(), batch_size=4))
    profile_batches(session)
    assert session.recorder.batch_lines == [LINE]
    assert session.recorder.batch_seconds is None
    session = session_over([torch.ones(3)])  # it makes nothing
    profile_batches(session)
    assert session.recorder.batch_lines == []


def test_a_dataset_that_works_in_its_workers_only_is_noted() -> None:
    session = session_over(DataLoader(InWorkers(), batch_size=4, num_workers=2))
    profile_batches(session)
    assert "no connection" in session.recorder.notes[0]
    assert session.recorder.batch_lines == []
