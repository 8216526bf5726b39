"""Trying: runs in turn, ratios with intervals, losses compared, and what goes wrong told and not raised."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.findings import on_gpu

from stoker.diagnose import trying
from stoker.diagnose.finding import Step
from stoker.diagnose.measurements import Stretch
from stoker.diagnose.trying import Runs, compare, difference_of, judge, ratio_of, run_in_turn, run_once, try_with

LOSSES = [1.0, 0.5, 0.25]


def steps(seconds: float, spread: float = 0.02) -> Stretch:
    return Stretch(seconds=[seconds * (1 + spread * (number % 5 - 2)) for number in range(40)])


def runs(*seconds: float, losses: list[float] | None = None) -> Runs:
    return Runs(seconds=[steps(one) for one in seconds], losses=[list(losses or LOSSES) for _ in seconds], peak_bytes=1000)


def test_a_ratio_is_taken_of_runs_next_to_each_other() -> None:
    ratio, half = ratio_of([steps(1.0), steps(2.0), steps(4.0)], [steps(math.sqrt(2) / 3), steps(math.sqrt(8) / 3)])
    assert ratio == pytest.approx(3.0)
    assert half > 0.5  # the program differs from itself, and the interval says so


def test_the_interval_holds_what_steps_differ_by() -> None:
    narrow = ratio_of([steps(2.0)], [steps(1.0)])[1]
    wide = ratio_of([steps(2.0, 0.2)], [steps(1.0, 0.2)])[1]
    assert 0 < narrow < 0.05 < wide


@pytest.mark.parametrize(
    ("tried", "tolerance", "expected"),
    [
        (LOSSES, 1e-3, "equal"),
        ([1.0, 0.5, 0.25, 9.0], 1e-3, "equal"),
        ([1.0, 0.5001, 0.25], 1e-3, "within tolerance"),
        ([1.0, 0.51, 0.25], 1e-3, "changed"),
        ([1.0, 0.51, 0.25], 5e-2, "within tolerance"),
        ([1.0, math.nan, 0.25], 5e-2, "changed"),
        (LOSSES, None, "not compared"),
        ([], 1e-3, "not compared"),
    ],
)
def test_losses_are_compared_step_by_step(tried: list[float], tolerance: float | None, expected: str) -> None:
    assert compare([LOSSES, LOSSES], [tried], tolerance)[0] == expected


def test_a_program_that_differs_from_itself_proves_nothing() -> None:
    assert compare([LOSSES, [1.0, 0.7, 0.3]], [[1.0, 0.7, 0.3]], 1e-3) == ("not compared", None)


def test_losses_that_are_no_numbers_in_both_are_the_same() -> None:
    assert difference_of([math.nan, math.inf], [math.nan, math.inf]) == 0
    assert difference_of([math.inf], [1.0]) == math.inf


def test_the_program_runs_before_and_after_each_fix() -> None:
    order: list[str] = []

    def run(fix: str | None, value: int | None) -> Runs:
        order.append(f"{fix}:{value}" if fix else "-")
        return runs(1.0)

    base, by_name = run_in_turn(["fused", "workers"], {"fused": None, "workers": 3}, run)
    assert order == ["-", "fused:None", "workers:3", "-", "workers:3", "fused:None", "-"]
    assert (len(base.seconds), len(by_name["fused"].seconds)) == (3, 2)


def test_a_fix_that_fails_or_changes_nothing_is_told_and_not_run_again() -> None:
    order: list[str | None] = []

    def run(fix: str | None, value: int | None) -> Runs:
        order.append(fix)
        return {"compile": Runs(error="no compiler"), "fused": Runs(nothing="it is fused")}.get(fix or "", runs(1.0))

    base, by_name = run_in_turn(["compile", "fused"], {}, run)
    assert order == [None, "compile", "fused", None, None]
    tried = judge("compile", base, by_name["compile"])
    assert (tried.error, tried.losses) == ("no compiler", "not compared")
    assert math.isnan(tried.speedup)
    assert judge("fused", base, by_name["fused"]).error == "it is fused"


def test_a_program_that_cannot_be_measured_is_not_tried() -> None:
    base, by_name = run_in_turn(["fused"], {}, lambda fix, value: Runs(error="raised ValueError"))
    assert "raised ValueError" in str(judge("fused", base, by_name["fused"]).error)


def test_a_larger_batch_is_judged_by_samples() -> None:
    tried = judge("batch", runs(1.0, 1.0), runs(1.25))
    assert tried.speedup == pytest.approx(1.6)
    assert tried.losses == "not compared"


def test_a_finding_gets_what_became_of_its_proposals() -> None:
    finding = on_gpu()
    names = ["feed", "cached", "host", "workers"]
    finding = msgspec.structs.replace(
        finding, next=[Step(name=name, sentence=name, predicted=2.0) for name in names], verdict="memory"
    )
    by_fix = {"feed": runs(0.5), "cached": runs(0.4), "workers": runs(2.0, losses=[2.0]), "sdpa": runs(0.8), "cudnn": runs(1.0)}
    after = try_with(finding, lambda fix, value: by_fix[fix] if fix else runs(1.0))
    by_name = {step.name: step for step in after.next}
    assert list(by_name) == [*names, "sdpa"]  # what was not proposed is told where it helps
    assert by_name["host"].tried is None
    tried = {name: step.tried for name, step in by_name.items() if step.tried is not None}
    assert tried["feed"].speedup == pytest.approx(2.0)
    assert (tried["feed"].losses, tried["feed"].peak_bytes) == ("equal", 1000)
    assert tried["workers"].losses == "changed"
    assert by_name["cached"].sentence.endswith(trying.BOUND)


def test_without_measurements_nothing_is_tried() -> None:
    finding = msgspec.structs.replace(on_gpu(), measurements=None)
    assert try_with(finding, lambda fix, value: runs(1.0)) is finding


PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(1000):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""


def test_a_program_without_a_seed_gives_the_same_losses_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    base, tried = (run_once(program, fix=fix, quiet=True, seconds=0.05) for fix in (None, "feed"))
    assert (base.error, tried.error, tried.nothing) == (None, None, None)
    assert len(base.seconds[0].seconds) >= 12
    assert compare(base.losses, tried.losses, 1e-3) == ("equal", 0.0)
    assert (base.peak_bytes or 0) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_goes_wrong_in_a_process_is_told(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent("raise ValueError('no data')"))
    assert "raised ValueError: no data" in str(run_once(program, quiet=True, seconds=0.05).error)
