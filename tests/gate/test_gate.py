"""The gate: silent while a step does what it did, whatever the machine does, and loud when it does more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.errors import OptionError
from stoker.gate.budget import TITLES, Counts, Gate, budget_of, compare, read_budget, summarize
from stoker.gate.gate import gate_step

Step = Callable[[torch.Tensor], Any]
BATCHES = [torch.randn(4, 8) for _ in range(3)]


def make_step(extra: Callable[[torch.Tensor], Any] = lambda loss: None) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        extra(loss)

    return step


def written(path: Path) -> Path:
    gate_step(make_step(), BATCHES, budget=path, write=True)
    return path


def counted(**numbers: int) -> Counts:
    zeros = dict.fromkeys((name for name in TITLES if name not in ("kernels", "recompiles", "graph_breaks")), 0)
    return Counts(**{**zeros, **numbers})


def gated(before: list[Counts], now: list[Counts]) -> Gate:
    budget = budget_of(summarize(before, device="cpu", torch="2"))
    return compare(summarize(now, device="cpu", torch="2"), budget, {})


def test_the_same_step_is_within_its_budget(tmp_path: Path) -> None:
    path = written(tmp_path / "deep" / "budget.json")
    gate = gate_step(make_step(), BATCHES, budget=path)
    assert gate.ok
    assert gate.notes == []
    assert str(gate).startswith("within the budget: ")


@pytest.mark.promise("P22")
@pytest.mark.parametrize(
    ("extra", "grown", "line"),
    [
        (lambda loss: loss.item(), {"ops", "syncs"}, "loss.item()"),
        (lambda loss: loss.detach().clone(), {"ops", "allocations", "allocated_bytes"}, "loss.detach().clone()"),
        (
            lambda loss: torch.eye(8) @ torch.eye(8),
            {"ops", "flops", "allocations", "allocated_bytes"},
            "torch.eye(8) @ torch.eye(8)",
        ),
        (lambda loss: loss.detach().to("meta"), {"ops", "allocations", "allocated_bytes"}, 'loss.detach().to("meta")'),
    ],
)
def test_what_grows_is_named_with_its_line(
    tmp_path: Path, extra: Callable[[torch.Tensor], Any], grown: set[str], line: str
) -> None:
    gate = gate_step(make_step(extra), BATCHES, budget=written(tmp_path / "budget.json"))
    assert {growth.name for growth in gate.growths} == grown
    for growth in gate.growths:
        reason = growth.reasons[0]
        assert line in reason.what
        assert reason.place is not None
        assert Path(reason.place.file).name == "test_gate.py"
        assert growth.found > growth.allowed
    assert f"test_gate.py:{gate.growths[0].reasons[0].place.line})" in str(gate)  # type: ignore[union-attr]


def test_one_odd_step_in_sixteen_is_left_out() -> None:
    steady, odd = counted(ops=40), counted(ops=43)
    before = [*[steady] * 15, odd]
    assert gated(before, [odd, *[steady] * 15]).ok
    more = gated(before, [counted(ops=41)] * 16)
    assert [(growth.name, growth.found, growth.allowed) for growth in more.growths] == [("ops", 41, 40)]


@pytest.mark.promise("P22")
def test_data_of_any_lengths_raise_no_alarm() -> None:
    rng = np.random.default_rng(0)

    def run() -> list[Counts]:
        return [counted(ops=40 + int(rng.integers(2)), allocated_bytes=int(rng.integers(1000, 2000))) for _ in range(16)]

    alarms = sum(not gated(run(), run()).ok for _ in range(1000))
    assert alarms == 0


@pytest.mark.promise("P22", control=True)
def test_negative_control_comparing_single_steps_would_raise_alarms() -> None:
    rng = np.random.default_rng(0)
    found = [[int(rng.integers(1000, 2000)) for _ in range(2)] for _ in range(100)]
    assert any(now > before for before, now in found)


def test_an_iterator_is_read_once_and_lists_again(tmp_path: Path) -> None:
    gate_step(make_step(), iter(BATCHES * 4), budget=tmp_path / "a.json", write=True)
    assert read_budget(tmp_path / "a.json").steps == 8
    assert read_budget(written(tmp_path / "b.json")).steps == 16
    with pytest.raises(OptionError, match="batches is empty"):
        gate_step(make_step(), [], budget=tmp_path / "a.json")


def test_another_device_has_another_budget(tmp_path: Path) -> None:
    path = written(tmp_path / "budget.json")
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    with pytest.raises(OptionError, match=r"the budget was counted on cuda, but this run is on cpu\. Keep one budget per device\."):
        gate_step(make_step(), BATCHES, budget=path)


@pytest.fixture
def noisy() -> Iterator[None]:
    """Neighbours in this very process: threads that compute all the time."""
    stop = threading.Event()

    def compute() -> None:
        x = torch.randn(64, 64)
        while not stop.is_set():
            x @ x

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def false_alarms(path: Path, runs: int) -> int:
    return sum(not gate_step(make_step(), BATCHES, budget=path, steps=8, warmup=2).ok for _ in range(runs))


@pytest.mark.promise("P22")
@pytest.mark.usefixtures("noisy")
def test_no_false_alarm_in_20_runs_beside_noisy_neighbours(tmp_path: Path) -> None:
    path = written(tmp_path / "budget.json")
    assert false_alarms(path, 20) == 0
    assert not gate_step(make_step(lambda loss: loss.item()), BATCHES, budget=path).ok
