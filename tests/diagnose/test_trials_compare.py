"""Comparing: runs in turn, ratios with intervals, losses compared; errors are in the result, not raised."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.diagnose.findings import on_gpu
from tests.diagnose.measured import on_cpu

from stoker.diagnose import wording
from stoker.diagnose.advice import value_of
from stoker.diagnose.measurements import Advice, Stretch
from stoker.diagnose.trials import (
    MOST_ROUNDS,
    SURE_ROUNDS,
    BaselineRuns,
    Comparison,
    Outcome,
    TrialProcess,
    compare_losses,
    difference_of,
    judge,
    judge_by,
    ratio_of,
    run_in_turn,
    try_with,
)

LOSSES = [1.0, 0.5, 0.25]
TIMES = 300


def steps(seconds: float, spread: float = 0.02) -> Stretch:
    return Stretch(seconds=[seconds * (1 + spread * (number % 5 - 2)) for number in range(40)])


class Fake:
    """A process that takes so many seconds a step; `ends_after` stretches it comes to its end."""

    def __init__(
        self,
        name: str,
        seconds: float,
        order: list[str],
        *,
        ends_after: int = 1000,
        outcome: Outcome | None = None,
        factor: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.name, self.seconds, self.order, self.left, self.factor = name, seconds, order, ends_after, factor
        self.outcome = outcome or Outcome(losses=LOSSES, peak_bytes=1000)
        self.losses = self.outcome.losses

    def is_ready(self) -> bool:
        self.order.append(f"+{self.name}")
        return self.outcome.error is None

    def stretch(self, seconds: float) -> Stretch | None:
        self.left -= 1
        if self.left < 0:
            return None
        self.order.append(self.name)
        return Stretch(seconds=[self.seconds / 10 * self.factor()] * 5)

    def end(self) -> Outcome:
        self.order.append(f"-{self.name}")
        return self.outcome


def tried_in_turn(
    by_fix: dict[str, float | Outcome],
    names: list[str],
    *,
    together: int = 2,
    base: float = 1.0,
    bases: Sequence[float] = (),
    noise: float = 0.0,
    slow: float = 0.0,
    process: float = 0.0,
    rng: random.Random | None = None,
    **options: Any,
) -> tuple[list[str], BaselineRuns, dict[str, Comparison]]:
    """Fixes with their seconds or with what goes wrong; `together` processes of the program can be there at once.

    `bases` are the seconds of each baseline process. Windows vary by `noise`, a share of them is `slow`, processes vary by `process`.
    """
    order: list[str] = []
    rng, seconds_of_base = rng or random.Random(7), iter(bases)

    def factor() -> float:
        return math.exp(rng.gauss(0, noise)) * (1.6 if rng.random() < slow else 1.0)

    def start(fix: str | None, value: int | None) -> Any:
        there = sum(one[0] == "+" for one in order) - sum(one[0] == "-" for one in order)
        given = by_fix.get(fix or "", next(seconds_of_base, base))
        outcome = given if isinstance(given, Outcome) else None
        if there >= together:
            outcome = Outcome(error="out of memory")
        name = fix or "base"
        seconds = (given if isinstance(given, float) else 1.0) * math.exp(rng.gauss(0, process))
        return Fake(name, seconds, order, outcome=outcome, factor=factor)

    itself, compared = run_in_turn(names, {}, start, **options)
    return order, itself, compared


def test_a_ratio_is_that_of_pairs_whatever_the_machine_does_meanwhile() -> None:
    base = [steps(1.0), steps(2.0), steps(4.0), steps(1.5)]
    ratio, deviation = ratio_of(base, [steps(one.median / 3) for one in base])
    assert ratio == pytest.approx(3.0)
    assert deviation < 0.01
    shifted = ratio_of(base, [steps(1 / 3)] * 4)[1]
    assert shifted > 0.2  # the program differs from itself, and the interval says so
    assert ratio_of([steps(2.0)] * 4, [steps(1.0)] * 2)[0] == pytest.approx(2.0)


def test_the_interval_holds_what_steps_differ_by() -> None:
    narrow = ratio_of([steps(2.0)], [steps(1.0)])[1]
    wide = ratio_of([steps(2.0, 0.2)], [steps(1.0, 0.2)])[1]
    assert 0 < narrow < 0.025 < wide


def test_the_interval_holds_what_two_processes_of_the_program_differ_by() -> None:
    compared = Comparison(base=[steps(2.0)] * 4, tried=[steps(1.0)] * 4, outcome=Outcome(losses=LOSSES))
    unsure = judge("fused", BaselineRuns(difference=0.3, losses=[LOSSES]), compared)
    assert "vary too much for one number" in str(unsure.error)
    narrow, wide = (judge("fused", BaselineRuns(difference=one, losses=[LOSSES]), compared) for one in (0.0, 0.1))
    assert narrow.low > 1.93
    assert wide.low == pytest.approx(2 * math.exp(-0.2), rel=0.02)


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
    assert compare_losses([LOSSES, LOSSES], [tried], tolerance)[0] == expected


def test_a_program_that_differs_from_itself_proves_nothing() -> None:
    assert compare_losses([LOSSES, [1.0, 0.7, 0.3]], [[1.0, 0.7, 0.3]], 1e-3) == ("not compared", None)


def test_losses_that_are_non_finite_values_in_both_are_the_same() -> None:
    assert difference_of([math.nan, math.inf], [math.nan, math.inf]) == 0
    assert difference_of([math.inf], [1.0]) == math.inf


def test_the_program_and_a_fix_have_their_turns_one_after_the_other() -> None:
    order, itself, compared = tried_in_turn({"fused": 0.5}, ["fused"])
    turns = ["base", "fused", "fused", "base"] * (SURE_ROUNDS // 2)
    assert order[:2] == ["+base", "+base"]
    assert order[order.index("+fused") :] == ["+fused", *turns, "-fused", "-base"]
    assert (itself.difference, itself.losses) == (0.0, [LOSSES] * 3)
    tried = judge("fused", itself, compared["fused"])
    assert tried.speedup == pytest.approx(2.0)
    assert (tried.losses, tried.peak_bytes) == ("equal", 1000)


def test_rounds_are_added_until_the_ratio_is_sure_and_fewer_where_steps_are_long() -> None:
    def rounds(seconds: float, noise: float) -> int:
        return tried_in_turn({"fused": seconds}, ["fused"], noise=noise, base=seconds)[0].count("fused")

    assert rounds(0.1, 0.0) == SURE_ROUNDS
    assert SURE_ROUNDS < rounds(0.1, 0.03) < MOST_ROUNDS
    assert rounds(0.1, 0.5) == MOST_ROUNDS
    assert rounds(9.0, 0.5) == 4


@pytest.mark.parametrize(
    ("window", "outliers", "process"), [(0.02, 0.0, 0.01), (0.1, 0.1, 0.0), (0.02, 0.3, 0.01), (0.05, 0.0, 0.02)]
)
def test_the_interval_covers_the_truth(window: float, outliers: float, process: float) -> None:
    # Windows vary, some are 1.6 times as slow, and processes differ. The truth is 2.
    rng, covered, third = random.Random(window + outliers + process), 0, 0
    for _ in range(TIMES):
        _, itself, compared = tried_in_turn(
            {"fused": 5e-4, "": 1e-3}, ["fused"], noise=window, slow=outliers, process=process, rng=rng
        )
        found = judge_by(itself, compared["fused"], tolerance=None, max_error=math.inf)
        covered += found.low <= 2 <= found.high
        third += abs(math.log(found.speedup / 2)) <= math.log(found.high / found.low) / 6
    assert covered >= 0.9 * TIMES
    assert third < 0.9 * TIMES, "the control: an interval of a third of the width does not"


def test_a_second_process_is_started_where_processes_differ() -> None:
    order, itself, compared = tried_in_turn({"fused": 0.5}, ["fused"], bases=[1.0, 1.2, 1.3], repeat=True)
    assert itself.varies
    assert (order.count("+fused"), order.count("+base")) == (2, 3)
    assert compared["fused"].processes == 2
    found = judge("fused", itself, compared["fused"])
    assert found.low < 2.0 < found.high
    order, itself, _ = tried_in_turn({"fused": 0.5}, ["fused"], bases=[1.0, 1.02], repeat=True)
    assert (itself.varies, order.count("+fused")) == (False, 1)


def test_processes_that_cannot_be_there_at_once_run_one_after_the_other() -> None:
    order, itself, compared = tried_in_turn({"fused": 0.5, "feed": 0.25}, ["fused", "feed"], together=1)
    assert [one for one in order if one[0] == "+"] == ["+base", "+base", "+base", "+fused", "+base", "+feed", "+base"]
    assert judge("feed", itself, compared["feed"]).speedup == pytest.approx(4.0)
    assert len(itself.losses) == 3


def test_a_program_that_comes_to_its_end_is_started_again() -> None:
    order: list[str] = []

    def start(fix: str | None, value: int | None) -> Any:
        return Fake(fix or "base", 0.1 if fix else 0.2, order, ends_after=2 * SURE_ROUNDS if fix is None else 1000)

    itself, compared = run_in_turn(["fused", "feed", "cached"], {}, start)
    assert judge("fused", itself, compared["fused"]).speedup == pytest.approx(2.0)
    assert "ended before it could be compared" in str(judge("feed", itself, compared["feed"]).error)
    assert judge("cached", itself, compared["cached"]).speedup == pytest.approx(2.0)
    assert order.count("+base") == 3  # two against each other, and one in place of the one that ended


def test_nothing_new_begins_when_time_is_up() -> None:
    order, itself, compared = tried_in_turn({}, ["fused", "workers"], at_most=0.0)
    assert "+fused" not in order
    assert judge("fused", itself, compared["fused"]).error == wording.TRIAL["no_time"]


def test_fixes_are_tried_with_the_number_that_is_advised() -> None:
    measured = on_cpu(fewer_threads={"1": 0.003, "2": 0.0098})
    assert value_of("threads", measured, "oversubscribed") == 1
    assert value_of("threads", on_cpu(), "data") == 2
    assert value_of("workers", measured, "data") == 1
    assert (value_of("compile", measured, "launch"), value_of("compile", measured, "memory")) == (1, None)


def test_a_fix_that_fails_or_changes_nothing_is_reported() -> None:
    by_fix: dict[str, float | Outcome] = {"compile": Outcome(error="no compiler"), "fused": Outcome(unused_reason="it is fused")}
    order, itself, compared = tried_in_turn(by_fix, ["compile", "fused"])
    assert "compile" not in order
    tried = judge("compile", itself, compared["compile"])
    assert (tried.error, tried.losses) == ("no compiler", "not compared")
    assert math.isnan(tried.speedup)
    assert judge("fused", itself, compared["fused"]).error == "it is fused"


def test_a_program_that_cannot_be_measured_is_not_tried() -> None:
    order, itself, compared = tried_in_turn({"": Outcome(error="raised ValueError")}, ["fused"])
    assert "raised ValueError" in str(judge("fused", itself, compared["fused"]).error)
    assert order == ["+base", "-base"]


def test_a_larger_batch_is_judged_by_samples() -> None:
    _, itself, compared = tried_in_turn({"batch": 1.25}, ["batch"])
    tried = judge("batch", itself, compared["batch"])
    assert tried.speedup == pytest.approx(1.6)
    assert tried.losses == "not compared"


def test_a_finding_gets_what_became_of_its_proposals() -> None:
    names = ["feed", "cached", "host", "workers"]
    finding = msgspec.structs.replace(
        on_gpu(), next=[Advice(name=name, sentence=name, predicted=2.0) for name in names], verdict="memory"
    )
    seconds = {"feed": 0.5, "cached": 0.4, "workers": 2.0, "sdpa": 0.8}

    def start(fix: str | None, value: int | None) -> Any:
        outcome = Outcome(losses=[2.0]) if fix == "workers" else None
        return Fake(fix or "base", seconds.get(fix or "", 1.0), [], outcome=outcome)

    after = try_with(finding, start)
    by_name = {step.name: step for step in after.next}
    assert list(by_name) == [*names, "sdpa"]  # what was not proposed is told where it helps
    assert by_name["host"].tried is None
    tried = {name: step.tried for name, step in by_name.items() if step.tried is not None}
    assert tried["feed"].speedup == pytest.approx(2.0)
    assert (tried["feed"].losses, tried["feed"].peak_bytes) == ("equal", 1000)
    assert tried["workers"].losses == "changed"
    assert by_name["cached"].sentence.endswith(wording.TRIED_AS["cached"])
    assert by_name["feed"].sentence.endswith("(tried: samples gathered from arrays in memory; no store was packed)")
    assert by_name["workers"].sentence == by_name["workers"].sentence.partition(" (tried")[0]


def test_without_measurements_nothing_is_tried() -> None:
    finding = msgspec.structs.replace(on_gpu(), measurements=None)
    assert try_with(finding, lambda fix, value: Fake("base", 1.0, [])) is finding


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


@pytest.mark.slow  # two processes that import torch
def test_a_program_without_a_seed_gives_the_same_losses_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    base, tried = (TrialProcess(program, fix=fix, quiet=True, limit_seconds=280) for fix in (None, "feed"))
    assert base.is_ready()
    assert tried.is_ready()
    for one in (base, tried, base):
        stretch = one.stretch(0.01)
        assert stretch is not None
        assert len(stretch.seconds) >= 4
    first, second = base.end(), tried.end()
    assert (first.error, second.error, second.unused_reason) == (None, None, None)
    assert compare_losses([first.losses], [second.losses], 1e-3) == ("equal", 0.0)
    assert len(first.losses) >= 6
    assert (first.peak_bytes or 0) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_goes_wrong_in_a_process_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise ValueError('no data')")
    running = TrialProcess(program, quiet=True, limit_seconds=280)
    assert not running.is_ready()
    assert running.stretch(0.01) is None
    assert "raised ValueError: no data" in str(running.end().error)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import os; os._exit(3)", "exited with code 3"),
        pytest.param("import time; time.sleep(60)", "took more than 3 s", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_says_nothing_is_reported(text: str, told: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(text)
    running = TrialProcess(program, quiet=True, limit_seconds=3.0 if "sleep" in text else 280.0)
    assert told in str(running.end().error)


@pytest.mark.parametrize(("tried_ms", "told"), [(10.0, False), (10.5, False), (12.0, True), (8.0, True)])
def test_a_machine_that_has_changed_its_speed_since_is_reported(tried_ms: float, told: bool) -> None:
    measured = on_cpu()
    before = measured.loop.median * 1e3
    finding = msgspec.structs.replace(
        on_gpu(), measurements=measured, verdict="optimizer", next=[Advice(name="fused", sentence="fused", predicted=2.0)]
    )

    def start(fix: str | None, value: int | None) -> Any:
        return Fake(fix or "base", (0.5 if fix else 1.0) * tried_ms / 10 * before / 100, [])

    after = try_with(finding, start)
    assert after.next[0].tried is not None
    assert after.next[0].tried.step_seconds == pytest.approx(tried_ms / 10 * before / 1e3)
    notes = after.measurements.notes if after.measurements is not None else []
    assert any("when fixes were tried" in note for note in notes) == told
