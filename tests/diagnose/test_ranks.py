"""Several processes: agreeing, parting, and what follows from what each takes by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from tests.diagnose.measured import MS, around, on_cpu

from stoker.diagnose import ranks as module
from stoker.diagnose.conclude import conclude
from stoker.diagnose.measurements import Measurements, Rank
from stoker.diagnose.parts import divide
from stoker.diagnose.ranks import Ranks, find_ranks


class Store:
    """What torch's processes share, without any."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def wait(self, keys: list[str], patience: Any) -> None:
        missing = [key for key in keys if key not in self.values]
        if missing:
            raise RuntimeError(f"nobody set {missing}")


def of_ranks(step: float, *apart: float, **more: Any) -> Measurements:
    """A training of several processes, in milliseconds; the first waits for the others in its backward pass."""
    own = apart[0]
    phases = {
        "forward": 0.4 * own,
        "backward": 0.5 * own + step - own,
        "optimizer": 0.1 * own - 0.02,
        "next": 0.01,
        "prepare": 0.01,
    }
    ranks = [Rank(rank=number, step_seconds=step * MS, apart_seconds=one * MS) for number, one in enumerate(apart)]
    return on_cpu(**{**phases, "rest": 0.0, "ops": 10.0, **more}, ranks=ranks)


def test_all_do_what_the_first_says() -> None:
    store = Store()
    first, second = Ranks(0, 2, store), Ranks(1, 2, store)
    assert [first.agree(12.0), second.agree(40.0)] == [12.0, 12.0]
    assert [first.agree(True), second.agree(False)] == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="agreed/3"):
        second.agree(5.0)  # before the first has said it


def test_the_first_gets_what_all_have_found() -> None:
    store = Store()
    both = [Ranks(number, 2, store) for number in range(2)]
    for one in both:
        one.tell(Rank(rank=one.rank, step_seconds=0.02, apart_seconds=0.01 * (1 + one.rank)))
    assert [one.apart_seconds for one in both[0].all()] == [0.01, 0.02]
    with pytest.raises(RuntimeError, match="measured"):
        both[1].take_turns(lambda: 2)
    assert both[0].take_turns(lambda: 1) == 1
    assert both[1].take_turns(lambda: 2) == 2


def test_parted_processes_exchange_no_gradients_and_are_as_before_when_they_join(monkeypatch: pytest.MonkeyPatch) -> None:
    class Parallel(torch.nn.Module):
        require_backward_grad_sync = True

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Parallel)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda value: value)
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr(module, "now_ns", lambda: next(clock))
    plain, model, ranks = torch.distributed.all_reduce, Parallel(), Ranks(0, 2, Store())
    ranks.part([model, torch.nn.Linear(1, 1)])
    assert not model.require_backward_grad_sync
    assert torch.distributed.all_reduce(3) == 3
    ranks.join()
    assert model.require_backward_grad_sync
    assert torch.distributed.all_reduce is plain
    assert ranks.exchanged_ns == 7


def test_one_process_alone_has_no_ranks() -> None:
    assert find_ranks() is None


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


def test_parts_of_several_processes_are_the_step() -> None:
    division = divide(of_ranks(20.0, 10.0, 15.0, rest=3.0))
    assert division.parts.total == pytest.approx(division.step)


def test_a_slow_first_process_is_told_why_it_is_slow() -> None:
    finding = conclude(of_ranks(20.0, 19.0, 8.0, rest=9.0, forward=3.0, backward=6.0, loop=around(20 * MS)))
    assert finding.verdict == "straggler"
    assert finding.second is not None
    assert finding.second.verdict == "host"


def test_steps_of_several_processes_may_vary_more() -> None:
    measured = of_ranks(20.0, 10.0, 19.0, spread=0.15)
    assert conclude(measured).verdict == "straggler"
    assert conclude(msgspec.structs.replace(measured, ranks=[])).verdict == "none"
