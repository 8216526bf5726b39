"""Which loop trains: told by steps between its turns, whatever else is gone through meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stoker.diagnose.hooks import StepHooks
from stoker.diagnose.loops import Sources, WatchedIterator
from stoker.diagnose.measurements import SourceLine


def place(line: int) -> SourceLine:
    return SourceLine(file="train.py", line=line, function="main")


@pytest.fixture
def sources() -> Iterator[Sources]:
    sources = Sources(StepHooks())
    sources.watch_loaders()
    yield sources
    sources.remove()


def step(sources: Sources) -> None:
    """What the hook of an optimizer does."""
    sources.hooks.steps += 1
    if not sources.settled:
        sources.find_training_loop()


BATCHES = [torch.ones(2) * n for n in range(20)]


def test_the_innermost_loop_with_steps_between_its_turns_trains(sources: Sources) -> None:
    for _ in sources.watched(range(2), place(1)):
        for batch in sources.watched(BATCHES, place(2)):
            for _ in sources.watched([1, 2], place(3)):
                pass
            for _ in sources.watched(BATCHES[:3], place(4)):  # a validation
                pass
            assert batch is not None
            step(sources)
    assert sources.training is not None
    assert sources.training.place == place(2)


def test_a_loop_over_numbers_is_found_where_nothing_gives_batches(sources: Sources) -> None:
    for _ in sources.watched(range(6), place(2)):
        step(sources)
    assert sources.training is not None
    assert not sources.training.gives_batches


@pytest.mark.parametrize("known", [True, False])
def test_a_loop_that_runs_beside_the_training_in_another_thread_does_not_train(sources: Sources, known: bool) -> None:
    """As one that keeps statistics: steps happen between its turns, too. Where the training thread is unknown, it comes first."""
    sources.hooks.thread = threading.get_ident() if known else None

    def in_another_thread() -> None:
        sources.iteration(place(1))
        for _ in sources.watched(BATCHES[:2], place(3)):
            pass

    def turn() -> None:
        thread = threading.Thread(target=in_another_thread)
        thread.start()
        thread.join()

    turn()
    for _ in sources.watched(range(8), place(2)):
        step(sources)
        turn()
    assert sources.training is not None
    assert sources.training.place == place(2 if known else 1)


def test_several_steps_per_batch_belong_to_the_loop_over_batches(sources: Sources) -> None:
    for _ in sources.watched(BATCHES, place(1)):
        for _ in sources.watched(range(2), place(2)):
            step(sources)
    assert sources.training is not None
    assert sources.training.place == place(1)


MODEL = torch.nn.Linear(2, 1)


@pytest.mark.parametrize(
    "parts",
    [
        [torch.optim.SGD(MODEL.parameters(), lr=0.1)],
        [MODEL],
        list(MODEL.parameters()),
        [("net", MODEL, torch.optim.SGD(MODEL.parameters()))],
    ],
    ids=["optimizers", "modules", "parameters", "pairs"],
)
def test_a_loop_over_what_is_trained_does_not_train(sources: Sources, parts: list[Any]) -> None:
    for _ in sources.watched(BATCHES, place(1)):
        for _ in sources.watched(parts, place(2)):
            step(sources)
    assert sources.training is not None
    assert sources.training.place == place(1)


def test_a_generator_that_prepares_batches_is_what_the_loop_goes_through(sources: Sources) -> None:
    loader = DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=2)

    def prepared() -> Iterator[Any]:
        for (x,) in loader:
            yield x * 2

    for _ in sources.watched(prepared(), place(1)):
        step(sources)
    assert sources.training is not None
    assert sources.training.place == place(1)
    assert sources.training.loader is loader


def test_what_only_passes_batches_on_is_seen_through(sources: Sources) -> None:
    loader = DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=2)
    for _ in sources.watched(zip(loader, range(100), strict=False), place(1)):
        step(sources)
    assert sources.training is not None
    assert sources.training.iterable is loader


def test_a_loader_that_no_user_iterates_is_found(sources: Sources) -> None:
    """As in the trainers of others."""
    loader = DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=2)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
        step(sources)
    assert sources.training is not None
    assert sources.training.iterable is loader


ROWS = TensorDataset(torch.ones(40, 2))


def epoch(sources: Sources, loader: DataLoader[Any], *, line: int = 3, trains: bool = True) -> Any:
    """A pass of a loop that stands at a line of the user's; returns what it goes through."""
    iterator = iter(sources.watched(loader, place(line)))
    for _ in iterator:
        if trains:
            step(sources)
    return iterator


@pytest.mark.parametrize("batch_size", [20, 4], ids=["before the loop is known", "after it is known"])
def test_a_loader_that_each_epoch_makes_again_is_known_by_its_place(sources: Sources, batch_size: int) -> None:
    handed: list[int] = []
    sources.next_batch = lambda watched: (handed.append(1), next(watched.iterator))[1]
    for _ in range(4):
        loader = DataLoader(ROWS, batch_size=batch_size)
        iterator = epoch(sources, loader)
        assert isinstance(iterator, WatchedIterator)
    assert sources.training is not None
    assert sources.training.iterable is loader
    assert sources.training is iterator.source
    assert len(handed) >= 3
    assert len(sources._loaders) == 1, "those of earlier epochs are let go"


def test_worker_processes_of_such_loaders_start_and_end(sources: Sources) -> None:
    for _ in range(3):
        epoch(sources, DataLoader(ROWS, batch_size=8, num_workers=2))
    assert sources.training is not None
    assert sources.training.loader is not None
    assert sources.training.loader.num_workers == 2
    assert sources.hooks.steps == 15


def test_a_loader_of_a_validation_does_not_take_over(sources: Sources) -> None:
    known = DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2)
    for _ in range(3):
        training = DataLoader(ROWS, batch_size=4)
        epoch(sources, training)
        assert not isinstance(epoch(sources, DataLoader(ROWS, batch_size=4), line=9, trains=False), WatchedIterator), "another line"
        assert not isinstance(epoch(sources, known, trains=False), WatchedIterator), "there before"
        with torch.no_grad():
            assert not isinstance(epoch(sources, DataLoader(ROWS, batch_size=4), trains=False), WatchedIterator), (
                "without gradients"
            )
            assert not isinstance(epoch(sources, training, trains=False), WatchedIterator), "a look at what is trained on"
        assert sources.training is not None
        assert sources.training.iterable is training
    assert known in sources.passed


def test_negative_control_without_a_check_of_what_was_there_a_validation_takes_over(sources: Sources) -> None:
    known = DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2)
    epoch(sources, DataLoader(ROWS, batch_size=4))
    assert sources._existing is not None
    sources._existing.clear()
    assert isinstance(epoch(sources, known, trains=False), WatchedIterator)


def test_a_while_loop_is_known_by_its_turns(sources: Sources) -> None:
    for _ in range(6):
        sources.iteration(place(1))
        step(sources)
    assert sources.training is not None
    assert sources.training.iterable is None


def test_steps_without_any_loop_end_the_search(sources: Sources) -> None:
    for _ in range(6):
        step(sources)
    assert sources.settled
    assert sources.training is None
