"""Several processes: agreeing, parting, and what follows from what each takes by itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
import torch
from tests.diagnose.measured import MS, TWO_CORES, around, on_cpu

from stoker.diagnose import distributed as module
from stoker.diagnose.distributed import MeasuredRanks
from stoker.diagnose.hooks import StepTimes
from stoker.diagnose.measurements import Measurements, Rank
from stoker.diagnose.rule import conclude
from stoker.diagnose.session import Session
from stoker.diagnose.windows import apart, measure_all


class Store:
    """What torch's processes share, without any."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def add(self, key: str, number: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + number)
        return int(self.values[key])

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def wait(self, keys: list[str], patience: Any) -> None:
        missing = [key for key in keys if key not in self.values]
        if missing:
            raise RuntimeError(f"nobody set {missing}")


class Parallel(torch.nn.Module):
    """Stands for DistributedDataParallel."""

    require_backward_grad_sync: Any = True


def times(*, backward: int) -> StepTimes:
    """A step in milliseconds, with two for the rest."""
    return StepTimes((0, 0, 1_000_000, backward * 1_000_000, 1_000_000, 0), False)


def of_ranks(step: float, *apart: float, waited: list[float] | None = None, **more: Any) -> Measurements:
    """A training of several processes, in milliseconds; the first waits for the others in its backward pass."""
    own = apart[0]
    phases = {
        "forward": 0.4 * own,
        "backward": 0.5 * own + step - own,
        "optimizer": 0.1 * own - 0.02,
        "next": 0.01,
        "prepare": 0.01,
    }
    ranks = [
        Rank(
            rank=number,
            step_seconds=step * MS,
            apart_seconds=one * MS,
            waited_for_cores=waited[number] if waited is not None else None,
        )
        for number, one in enumerate(apart)
    ]
    return on_cpu(**{**phases, "rest": 0.0, "ops": 10.0, **more}, ranks=ranks)


def test_all_do_what_the_first_says() -> None:
    store = Store()
    first, second = MeasuredRanks(0, 2, store), MeasuredRanks(1, 2, store)
    assert [first.agree(12.0), second.agree(40.0)] == [12.0, 12.0]
    assert [first.agree(True), second.agree(False)] == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="agreed/3"):
        second.agree(5.0)  # before the first has said it


def test_the_first_gets_what_all_have_found() -> None:
    store = Store()
    both = [MeasuredRanks(number, 2, store) for number in range(2)]
    for one in both:
        one.publish(Rank(rank=one.rank, step_seconds=0.02, apart_seconds=0.01 * (1 + one.rank)))
    assert [one.apart_seconds for one in both[0].all()] == [0.01, 0.02]
    with pytest.raises(RuntimeError, match="measured"):
        both[1].take_turns(lambda: 2)
    assert both[0].take_turns(lambda: 1) == 1
    assert both[1].take_turns(lambda: 2) == 2


def test_parted_processes_exchange_no_gradients_and_are_as_before_when_they_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Parallel)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda value: value)
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr(module, "now_ns", lambda: next(clock))
    plain, model, ranks = torch.distributed.all_reduce, Parallel(), MeasuredRanks(0, 2, Store())
    ranks.part([model, torch.nn.Linear(1, 1)])
    assert not model.require_backward_grad_sync
    assert torch.distributed.all_reduce(3) == 3
    ranks.join()
    assert model.require_backward_grad_sync
    assert torch.distributed.all_reduce is plain
    assert ranks.collective_ns == 7


def test_a_process_by_itself_takes_a_step_without_what_it_waits_in_collectives() -> None:
    """Measured by the windows of one process, whose backward pass takes 1 ms without the others and 9 ms with them."""
    session = Session(measure_all, on_done=lambda: None, pace=0.1)
    session.ranks = MeasuredRanks(0, 1, Store())
    session.recorder.loop.windows.append([times(backward=9)] * 8)
    plan = apart(session, session.ranks, seconds=1.0)
    window = next(plan).window
    with suppress(StopIteration):
        while True:
            step = times(backward=1)
            if window is None or window.add(step):
                window = plan.send(step).window
    found = session.recorder.of_rank(0)
    assert found is not None
    assert found.apart_seconds == pytest.approx(3 * MS)
    assert found.step_seconds == pytest.approx(11 * MS)


@pytest.mark.parametrize(
    ("step", "apart", "verdict", "share"),
    [
        (20.0, (10.0, 19.0), "straggler", 0.45),
        (20.0, (19.0, 10.0), "straggler", 0.45),
        (20.0, (10.0, 10.5), "communication", 0.475),
        (20.0, (9.0, 9.0, 9.0, 18.5), "straggler", 0.475),
    ],
)
def test_who_is_slow_and_what_the_exchange_costs(step: float, apart: tuple[float, ...], verdict: str, share: float) -> None:
    finding = conclude(of_ranks(step, *apart))
    assert finding.verdict == verdict
    assert finding.causes[0].share == pytest.approx(share, abs=0.01)
    assert finding.second is not None
    assert finding.next
    assert finding.place is None


def test_processes_that_hardly_wait_get_the_verdict_of_one() -> None:
    measured = of_ranks(20.0, 19.5, 19.0)
    assert conclude(measured).verdict == conclude(msgspec.structs.replace(measured, ranks=[])).verdict == "compute"


def test_a_slow_first_process_is_reported_why_it_is_slow() -> None:
    finding = conclude(of_ranks(20.0, 19.0, 8.0, rest=9.0, forward=3.0, backward=6.0, loop=around(20 * MS)))
    assert finding.verdict == "straggler"
    assert finding.second is not None
    assert finding.second.verdict == "host"


@pytest.mark.parametrize(("step", "apart"), [(7.0, (0.7, 3.7)), (7.0, (3.7, 0.7)), (10.0, (0.7, 4.5, 0.8))])
def test_who_is_slow_comes_first_though_the_others_wake_up_late(step: float, apart: tuple[float, ...]) -> None:
    """Times of programs on two cores: the others sleep until the slow one comes, and their all-reduce then takes longer."""
    finding = conclude(of_ranks(step, *apart))
    assert finding.verdict == "straggler"
    assert finding.second is not None
    assert finding.second.verdict == "communication"
    assert finding.second.share > finding.causes[0].share, "negative control: by their shares alone the order is another"


def on_one_thread(*waited: float, spread: float) -> Measurements:
    machine = msgspec.structs.replace(TWO_CORES, threads=1)
    apart = [0.7] * (len(waited) - 1)
    return of_ranks(7.0, *apart, 3.7, waited=list(waited), spread=spread, machine=machine)


def test_who_had_the_cores_is_seen_where_nothing_is_exchanged() -> None:
    """Steps of processes vary by themselves, so a spread says little; but without the exchange each has a core of its own."""
    assert conclude(on_one_thread(0.01, 0.03, spread=0.4)).verdict == "straggler"
    for waited in ((0.3, 0.5), (0.01, 0.3)):
        told = conclude(on_one_thread(*waited, spread=0.1))
        assert told.verdict == "none"
        assert told.why is not None
        assert "other programs had the cores" in told.why


def test_more_processes_than_cores_are_in_their_own_way() -> None:
    assert conclude(on_one_thread(0.3, 0.3, 0.3, spread=0.15)).verdict == "straggler"
