"""The stretches, on a function: by a clock that ticks only when the program says so, each number is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.diagnose.clock import Clock, install_clock
from tests.diagnose.measuring import measure_step
from torch.utils.data import DataLoader, Dataset

from stoker.diagnose.api import diagnose_step
from stoker.diagnose.recorder import Recorder
from stoker.diagnose.session import PROFILED
from stoker.diagnose.windows import BASELINE_STEPS
from stoker.errors import BatchError, OptionError

pytestmark = pytest.mark.slow  # a whole diagnosis for each


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(Recorder, "add_waiting", lambda self, waiting: None)  # a busy machine is another matter
    return install_clock(monkeypatch)


class Rows(Dataset[torch.Tensor]):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> torch.Tensor:
        self.clock.tick(2)
        return torch.full((4,), float(number))


def training(clock: Clock) -> tuple[torch.nn.Module, Callable[[torch.Tensor], None]]:
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def train_step(x: torch.Tensor) -> None:
        clock.tick(3)  # prepare
        loss = net(x).sum()
        clock.tick(20)  # forward
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick(7)  # rest

    return net, train_step


@pytest.mark.promise("P17")
def test_each_number_comes_from_a_measurement_window_of_its_own(clock: Clock) -> None:
    _, train_step = training(clock)
    measured = measure_step(train_step, DataLoader(Rows(clock), batch_size=5), pace=0.2)
    assert set(measured.loop.seconds) == {0.040}
    assert measured.cached is not None
    assert set(measured.cached.seconds) == {0.030}
    assert measured.loader_alone is not None
    assert set(measured.loader_alone.seconds) == {0.010}
    assert measured.phases.next == 0.010
    assert measured.phases.prepare == 0.003
    assert measured.phases.forward == 0.020
    assert measured.phases.rest == 0.007
    assert len(measured.loop.seconds) >= BASELINE_STEPS
    assert measured.loader.kind == "DataLoader"
    assert measured.loader.dataset == "Rows"
    assert measured.optimizer == "SGD"
    assert measured.work is not None
    assert measured.work.flops > 0


@pytest.mark.promise("P17")
def test_the_begin_of_an_epoch_is_the_loaders_and_each_step_has_its_part(clock: Clock) -> None:
    _, train_step = training(clock)

    class Short:
        def __iter__(self) -> Iterator[torch.Tensor]:
            clock.tick(70)  # beginning is expensive
            for _ in range(len(self)):
                clock.tick(10)
                yield torch.ones(5, 4)

        def __len__(self) -> int:
            return 7

    measured = measure_step(train_step, Short(), pace=0.2)
    assert measured.loop.seconds == pytest.approx([0.050] * len(measured.loop.seconds))
    assert measured.phases.next == pytest.approx(0.020)
    assert measured.between_epochs == pytest.approx({"loader": 0.2, "other": 0.0})
    assert measured.notes == []
    assert measured.loader.kind == "Short"


@pytest.mark.promise("P18")
def test_the_model_trains_as_it_would_alone_until_control_is_taken(clock: Clock) -> None:
    batches = [torch.randn(3, 4) for _ in range(40)]
    torch.manual_seed(1)
    net, train_step = training(clock)
    seen: list[Any] = []
    for batch in batches[:20]:
        train_step(batch)
        seen.append(net.weight.detach().clone())
    torch.manual_seed(1)
    net, train_step = training(clock)
    again: list[Any] = []

    def kept(batch: torch.Tensor) -> None:
        train_step(batch)
        again.append(net.weight.detach().clone())

    measure_step(kept, batches, pace=0.2)
    assert len(again) > 20
    assert all(torch.equal(one, other) for one, other in zip(seen, again, strict=False))


def test_batches_that_end_for_good_give_what_there_was(clock: Clock) -> None:
    _, train_step = training(clock)
    measured = measure_step(train_step, iter([torch.ones(2, 4)] * 9), pace=0.2)
    assert measured.cached is None
    assert 0 < len(measured.loop.seconds) <= 9


@pytest.mark.promise("P20")
@pytest.mark.parametrize(("first", "wrong"), [(60, []), (50, ["validation data seen in training"])], ids=["clean", "leaks"])
def test_what_is_wrong_is_reported_beside_speed(clock: Clock, first: int, wrong: list[str]) -> None:
    _, train_step = training(clock)
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    batches, valid = DataLoader(x[:60], batch_size=5, shuffle=True), DataLoader(x[first:], batch_size=5)  # type: ignore[arg-type]
    finding = diagnose_step(train_step, batches, valid_batches=valid)
    assert [sentence.split(":")[0] for sentence in finding.correctness] == wrong


def test_losses_that_are_non_finite_values_are_reported(clock: Clock) -> None:
    net, train_step = training(clock)
    torch.nn.init.constant_(net.weight, float("nan"))
    [found] = diagnose_step(train_step, [torch.ones(5, 4)] * 4).correctness
    assert found.startswith("losses that are not finite: ")


def test_a_cell_of_a_notebook_is_the_users_own(clock: Clock) -> None:
    """As IPython runs it: the text of a cell has a name that is no file."""
    _, train_step = training(clock)
    names = {"diagnose_step": diagnose_step, "train_step": train_step, "batches": [torch.ones(5, 4)] * 4}
    exec(compile("\nmeasured = diagnose_step(train_step, batches, pace=0.2).measurements", "<ipython-input-7-abc>", "exec"), names)
    measured: Any = names["measured"]
    assert (measured.loader.place.file, measured.loader.place.line) == ("<ipython-input-7-abc>", 2)


def test_what_is_invalid_is_one_line() -> None:
    with pytest.raises(OptionError, match="expected a function"):
        measure_step("step", [])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expected a loader"):
        measure_step(print, 3)  # type: ignore[arg-type]
    with pytest.raises(BatchError, match="at least one"):
        measure_step(print, [])


def test_an_error_of_the_step_is_the_users_own_and_leaves_nothing_behind(clock: Clock) -> None:
    before = torch.autograd.backward

    def broken(batch: Any) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        measure_step(broken, [torch.ones(1)])
    assert torch.autograd.backward is before


def test_steps_that_are_profiled_by_the_program_are_measured_without_its_profile(clock: Clock) -> None:
    _, train_step = training(clock)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        measured = measure_step(train_step, DataLoader(Rows(clock), batch_size=5), pace=0.2)
    assert PROFILED in measured.notes
    assert measured.work is not None
    assert measured.work.shares["gemm"] > 0
    assert profile.key_averages().table()
    # Negative control: a program without a profiler has no such note.
    assert PROFILED not in measure_step(train_step, DataLoader(Rows(clock), batch_size=5), pace=0.2).notes
