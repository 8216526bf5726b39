"""What is wrong with batches is found beside speed, within the time that is given, and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, SubsetRandomSampler, TensorDataset

from stoker.diagnose import correctness
from stoker.diagnose.correctness import faults_of, find_faults, in_process, validation_loaders
from stoker.diagnose.hooks import StepHooks
from stoker.diagnose.loops import Sources
from stoker.diagnose.measurements import SourceLine

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


# ---- validation data is found in the loaders that are not trained on; training data that is looked at again is not taken for it ----

DATA_APART = TensorDataset(torch.randn(300, 4, generator=torch.Generator().manual_seed(0)))
TRAIN, VALID, LEAKY = Subset(DATA_APART, range(200)), Subset(DATA_APART, range(200, 300)), Subset(DATA_APART, range(190, 300))


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


def loader_apart(data: Dataset[Any], **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=10, **options)


def train(sources: Sources, batches: Any, *, line: int = 1) -> None:
    for _ in sources.watched(batches, SourceLine(file="train.py", line=line, function="main")):
        sources.hooks.steps += 1
        if not sources.settled:
            sources.find_training_loop()


def wrong(sources: Sources) -> list[str]:
    return [sentence.split(":")[0] for sentence in find_faults(sources, [], seconds=20)]


LEAK = "validation data seen in training"


def test_a_loader_that_was_not_iterated_yet(sources: Sources, alive: list[Any]) -> None:
    train(sources, loader_apart(TRAIN, shuffle=True))
    assert wrong(sources) == []
    alive.append(loader_apart(VALID))
    assert wrong(sources) == []
    alive.append(loader_apart(LEAKY))
    assert wrong(sources) == [LEAK]


@pytest.mark.parametrize("before", [True, False], ids=["before", "within"])
def test_a_loader_that_was_gone_through_without_a_step(sources: Sources, before: bool) -> None:
    valid, batches = loader_apart(LEAKY, shuffle=True), loader_apart(TRAIN, shuffle=True)
    if before:
        list(valid)
    train(sources, batches)
    if not before:
        list(valid)
    assert validation_loaders(batches, sources) == [valid]
    assert wrong(sources) == [LEAK]


def test_two_parts_of_one_dataset_by_samplers(sources: Sources, alive: list[Any]) -> None:
    batches = loader_apart(DATA_APART, sampler=SubsetRandomSampler(range(200)))
    train(sources, batches)
    alive.append(loader_apart(DATA_APART, sampler=SubsetRandomSampler(range(200, 300))))
    assert wrong(sources) == []
    alive.append(loader_apart(DATA_APART, sampler=SubsetRandomSampler(range(195, 300))))
    assert wrong(sources) == [LEAK]


@pytest.mark.promise("P20", control=True)
def test_training_data_is_not_validation_data(sources: Sources, alive: list[Any]) -> None:
    """Its statistics, its accuracy, another stage on it, and its own loader_apart in another form."""
    batches, stage = loader_apart(TRAIN, shuffle=True), loader_apart(Subset(DATA_APART, range(200)), shuffle=True)
    again = loader_apart(TRAIN)
    list(again)
    list(batches)
    train(sources, batches)
    alive += [batches, again, stage]
    assert validation_loaders(batches, sources) == []


def test_a_loader_that_is_trained_on_too_is_not_validation_data(sources: Sources, alive: list[Any]) -> None:
    """As the discriminator's and the generator's of a GAN."""
    one, other = loader_apart(TRAIN), loader_apart(Subset(DATA_APART, range(200)))
    for _ in zip(one, other, strict=True):
        sources.hooks.steps += 1
        if not sources.settled:
            sources.find_training_loop()
    alive += [one, other]
    assert sources.training is not None
    assert validation_loaders(sources.training.loader, sources) == []


def test_data_that_cannot_be_compared_hides_nothing_else(sources: Sources, alive: list[Any]) -> None:
    train(sources, loader_apart(TRAIN))
    alive.append(loader_apart(["a text"] * 20))  # type: ignore[arg-type]
    assert wrong(sources) == ["not shuffled"]
    alive.append(loader_apart(LEAKY))
    assert sorted(wrong(sources)) == ["not shuffled", LEAK]


@pytest.mark.promise("P20", control=True)
def test_labels_alone_report_no_leak(sources: Sources, alive: list[Any]) -> None:
    """Where the rest of a sample is drawn anew each time, its label is all that it is known by."""

    class Augmented(Dataset[Any]):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.randn(4), index * 7 % 10

    train(sources, loader_apart(Augmented(), shuffle=True))
    alive.append(loader_apart(Augmented()))
    assert wrong(sources) == []


def test_a_loader_whose_workers_start_slowly_is_read_without_them() -> None:
    slow = loader_apart(TRAIN, num_workers=2, multiprocessing_context="spawn", timeout=5, persistent_workers=True)
    assert len(list(in_process(slow))) == 20
    assert in_process(slow).num_workers == 0
    assert slow.num_workers == 2
    quick = loader_apart(TRAIN, num_workers=2, multiprocessing_context="fork")
    assert in_process(quick) is quick
