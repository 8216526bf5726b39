"""A baseline and changed programs have their turns; how many, and what happens if processes fail, end early or do not fit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from tests.diagnose.fake_process import LOSSES, FakeProcess

from stoker.diagnose import wording
from stoker.diagnose.comparison import SURE_ROUNDS, Comparison, judge
from stoker.diagnose.measurements import TrialResult
from stoker.diagnose.rounds import MOST_ROUNDS, Rounds

TIMES = 300


class Machine:
    """Starts played processes; `together` of them can run at once. Windows vary by `noise`, a share of them is `slow`."""

    def __init__(
        self,
        base: float = 0.1,
        *,
        together: int = 2,
        windows: int = 1000,
        noise: float = 0.0,
        slow: float = 0.0,
        process: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        self.log: list[str] = []
        self.base, self.together, self.windows = base, together, windows
        self.noise, self.slow, self.process, self.rng = noise, slow, process, rng or random.Random(7)

    def start(self, seconds: float | None = None, *, name: str = "base", error: str | None = None) -> Callable[[], FakeProcess]:
        """Return the function that starts a process."""

        def factor() -> float:
            return math.exp(self.rng.gauss(0, self.noise)) * (1.6 if self.rng.random() < self.slow else 1.0)

        def process() -> FakeProcess:
            running = sum(entry[0] == "+" for entry in self.log) - sum(entry[0] == "-" for entry in self.log)
            failure = "out of memory" if running >= self.together else error
            length = (self.base if seconds is None else seconds) * math.exp(self.rng.gauss(0, self.process))
            windows = self.windows if name == "base" else 1000
            return FakeProcess(length, name=name, log=self.log, windows=windows, error=failure, factor=factor)

        return process

    def compare(self, seconds: float, *, name: str = "fused", at_most: float | None = None) -> tuple[Rounds, Comparison]:
        """Return the rounds of one comparison, and its result."""
        with Rounds(self.start(), seconds=1.5, at_most=at_most) as rounds:
            return rounds, rounds.compare(self.start(seconds, name=name))


def result_of(rounds: Rounds, compared: Comparison) -> TrialResult:
    return judge(rounds.baseline, compared, tolerance=1e-3)


def test_the_program_and_a_fix_have_their_turns_one_after_the_other() -> None:
    machine = Machine()
    rounds, compared = machine.compare(0.05)
    turns = ["base", "fused", "fused", "base"] * (SURE_ROUNDS // 2)
    assert machine.log[:2] == ["+base", "+base"]
    assert machine.log[machine.log.index("+fused") :] == ["+fused", *turns, "-fused", "-base"]
    assert (rounds.baseline.difference, rounds.baseline.losses) == (0.0, [LOSSES] * 2)
    result = result_of(rounds, compared)
    assert result.speedup == pytest.approx(2.0)
    assert (result.losses, result.peak_bytes) == ("equal", 1000)


def test_rounds_are_added_until_the_ratio_is_sure_and_fewer_where_steps_are_long() -> None:
    def rounds(seconds: float, noise: float) -> int:
        machine = Machine(seconds, noise=noise)
        machine.compare(seconds)
        return machine.log.count("fused")

    assert rounds(0.01, 0.0) == SURE_ROUNDS
    assert SURE_ROUNDS < rounds(0.01, 0.03) < MOST_ROUNDS
    assert rounds(0.01, 0.5) == MOST_ROUNDS
    assert rounds(0.9, 0.5) == 4


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("window", "outliers", "process"), [(0.02, 0.0, 0.01), (0.1, 0.1, 0.0), (0.02, 0.3, 0.01), (0.05, 0.0, 0.02)]
)
def test_the_interval_covers_the_truth(window: float, outliers: float, process: float) -> None:
    # Windows vary, some are 1.6 times as slow, and processes differ. The truth is 2.
    rng, covered, third = random.Random(window + outliers + process), 0, 0
    for _ in range(TIMES):
        rounds, compared = Machine(1e-4, noise=window, slow=outliers, process=process, rng=rng).compare(5e-5)
        result = judge(rounds.baseline, compared, tolerance=None, max_error=math.inf)
        covered += result.low <= 2 <= result.high
        third += abs(math.log(result.speedup / 2)) <= math.log(result.high / result.low) / 6
    assert covered >= 0.9 * TIMES
    assert third < 0.9 * TIMES, "the control: an interval of a third of the width does not"


def test_processes_that_cannot_run_at_once_run_one_after_the_other() -> None:
    machine = Machine(together=1)
    with Rounds(machine.start(), seconds=1.5) as rounds:
        rounds.compare(machine.start(0.05, name="fused"))
        compared = rounds.compare(machine.start(0.025, name="feed"))
    assert [entry for entry in machine.log if entry[0] == "+"] == ["+base", "+base", "+base", "+fused", "+base", "+feed", "+base"]
    assert result_of(rounds, compared).speedup == pytest.approx(4.0)
    assert len(rounds.baseline.losses) == 3


def test_a_program_that_comes_to_its_end_is_started_again() -> None:
    machine = Machine(windows=2 * SURE_ROUNDS)
    with Rounds(machine.start(), seconds=1.5) as rounds:
        first, second, third = (rounds.compare(machine.start(0.05, name=name)) for name in ("fused", "feed", "cached"))
    assert [result_of(rounds, compared).speedup for compared in (first, third)] == pytest.approx([2.0, 2.0])
    assert "ended before it could be compared" in str(result_of(rounds, second).error)
    assert machine.log.count("+base") == 3  # two against each other, and one in place of the one that ended


def test_nothing_new_starts_when_time_is_up() -> None:
    machine = Machine()
    rounds, compared = machine.compare(0.05, at_most=0.0)
    assert "+fused" not in machine.log
    assert result_of(rounds, compared).error == wording.TRIAL["no_time"]


def test_a_fix_that_fails_or_changes_nothing_is_reported() -> None:
    machine = Machine()
    with Rounds(machine.start(), seconds=1.5) as rounds:
        compared = rounds.compare(machine.start(name="compile", error="no compiler"))
    assert "compile" not in machine.log
    assert (compared.error, result_of(rounds, compared).losses) == ("no compiler", "not compared")


def test_a_program_that_cannot_be_measured_is_not_tried() -> None:
    log: list[str] = []
    with Rounds(lambda: FakeProcess(log=log, error="raised ValueError"), seconds=1.5) as rounds:
        compared = rounds.compare(lambda: FakeProcess(log=log, name="fused"))
    assert "raised ValueError" in str(compared.error)
    assert log == ["+base", "-base"]
