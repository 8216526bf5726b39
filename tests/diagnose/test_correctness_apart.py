"""Validation data is found in the loaders that are not trained on; training data that is looked at again is not taken for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from stoker.diagnose import correctness
from stoker.diagnose.correctness import find_faults, in_process, validation_loaders
from stoker.diagnose.hooks import StepHooks
from stoker.diagnose.loops import Sources
from stoker.diagnose.measurements import SourceLine

DATA = TensorDataset(torch.randn(300, 4, generator=torch.Generator().manual_seed(0)))
TRAIN, VALID, LEAKY = Subset(DATA, range(200)), Subset(DATA, range(200, 300)), Subset(DATA, range(190, 300))


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Loaders that are there, in place of those of other tests."""
    there: list[Any] = []
    monkeypatch.setattr(correctness, "_alive", lambda: iter(there))
    return there


@pytest.fixture
def sources() -> Iterator[Sources]:
    sources = Sources(StepHooks())
    sources.watch_loaders()
    yield sources
    sources.remove()


def loader(data: Dataset[Any], **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=10, **options)


def train(sources: Sources, batches: Any, *, line: int = 1) -> None:
    for _ in sources.watched(batches, SourceLine(file="train.py", line=line, function="main")):
        sources.hooks.steps += 1
        if not sources.settled:
            sources.find_training_loop()


def wrong(sources: Sources) -> list[str]:
    return [one.split(":")[0] for one in find_faults(sources, [], seconds=20)]


LEAK = "validation data seen in training"


def test_a_loader_that_was_not_iterated_yet(sources: Sources, alive: list[Any]) -> None:
    train(sources, loader(TRAIN, shuffle=True))
    assert wrong(sources) == []
    alive.append(loader(VALID))
    assert wrong(sources) == []
    alive.append(loader(LEAKY))
    assert wrong(sources) == [LEAK]


@pytest.mark.parametrize("before", [True, False], ids=["before", "within"])
def test_a_loader_that_was_gone_through_without_a_step(sources: Sources, before: bool) -> None:
    valid, batches = loader(LEAKY, shuffle=True), loader(TRAIN, shuffle=True)
    if before:
        list(valid)
    train(sources, batches)
    if not before:
        list(valid)
    assert validation_loaders(batches, sources) == [valid]
    assert wrong(sources) == [LEAK]


def test_two_parts_of_one_dataset_by_samplers(sources: Sources, alive: list[Any]) -> None:
    batches = loader(DATA, sampler=SubsetRandomSampler(range(200)))
    train(sources, batches)
    alive.append(loader(DATA, sampler=SubsetRandomSampler(range(200, 300))))
    assert wrong(sources) == []
    alive.append(loader(DATA, sampler=SubsetRandomSampler(range(195, 300))))
    assert wrong(sources) == [LEAK]


@pytest.mark.promise("P20", control=True)
def test_training_data_is_not_validation_data(sources: Sources, alive: list[Any]) -> None:
    """Its statistics, its accuracy, another stage on it, and its own loader in another form."""
    batches, stage = loader(TRAIN, shuffle=True), loader(Subset(DATA, range(200)), shuffle=True)
    again = loader(TRAIN)
    list(again)
    list(batches)
    train(sources, batches)
    alive += [batches, again, stage]
    assert validation_loaders(batches, sources) == []


def test_a_loader_that_is_trained_on_too_is_not_validation_data(sources: Sources, alive: list[Any]) -> None:
    """As the discriminator's and the generator's of a GAN."""
    one, other = loader(TRAIN), loader(Subset(DATA, range(200)))
    for _ in zip(one, other, strict=True):
        sources.hooks.steps += 1
        if not sources.settled:
            sources.find_training_loop()
    alive += [one, other]
    assert sources.training is not None
    assert validation_loaders(sources.training.loader, sources) == []


def test_data_that_cannot_be_compared_hides_nothing_else(sources: Sources, alive: list[Any]) -> None:
    train(sources, loader(TRAIN))
    alive.append(loader(["a text"] * 20))  # type: ignore[arg-type]
    assert wrong(sources) == ["not shuffled"]
    alive.append(loader(LEAKY))
    assert sorted(wrong(sources)) == ["not shuffled", LEAK]


@pytest.mark.promise("P20", control=True)
def test_labels_alone_report_no_leak(sources: Sources, alive: list[Any]) -> None:
    """Where the rest of a sample is drawn anew each time, its label is all that it is known by."""

    class Augmented(Dataset[Any]):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.randn(4), index * 7 % 10

    train(sources, loader(Augmented(), shuffle=True))
    alive.append(loader(Augmented()))
    assert wrong(sources) == []


def test_a_loader_whose_workers_start_slowly_is_read_without_them() -> None:
    slow = loader(TRAIN, num_workers=2, multiprocessing_context="spawn", timeout=5, persistent_workers=True)
    assert len(list(in_process(slow))) == 20
    assert in_process(slow).num_workers == 0
    assert slow.num_workers == 2
    quick = loader(TRAIN, num_workers=2, multiprocessing_context="fork")
    assert in_process(quick) is quick
