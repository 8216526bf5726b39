"""The law of verdicts, for any training loop: the wall clock does not contradict what is printed by more than 15 %.

A loop is made up: phases, rare steps of any period and cost, work between epochs, a machine that changes its speed. What it takes per
step is then known, and so are the shares of loader and loop. A verdict must agree with both, or there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from tests.diagnose.clock import MACHINE
from tests.diagnose.measured import COMPUTING
from tests.harness import num_examples

from stoker.diagnose.finding import Finding
from stoker.diagnose.hooks import BACKWARD, FORWARD, NAMES, NEXT, OPTIMIZER, PREPARE, REST, StepHooks, StepTimes
from stoker.diagnose.loops import Source, Sources
from stoker.diagnose.measurements import SourceLine, Work
from stoker.diagnose.profilers import SlowLine
from stoker.diagnose.recorder import Recorder, StepSeries
from stoker.diagnose.rule import conclude

MS = 1_000_000
MOST = 0.15  # by which a verdict may miss the wall clock
LINE = SourceLine(file="train.py", line=41, function="upload")
PHASES = (NEXT, PREPARE, FORWARD, BACKWARD, OPTIMIZER, REST)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training loop: milliseconds of a step by phase, and what happens now and then."""

    phases: tuple[float, ...]
    every: int = 0  # steps from one rare step to the next; 0: there are none
    cost: float = 0.0  # milliseconds that a rare step takes longer
    in_next: bool = False  # whether that is in the wait for a batch, else after the optimizer's step
    line: bool = True  # whether the line of rare steps was found
    epoch: int = 0  # steps of an epoch; 0: it does not end
    between: float = 0.0  # milliseconds between two epochs
    slow_windows: tuple[bool, ...] = (False,) * 5  # windows in which the machine is slower by half
    seed: int = 0

    @property
    def step(self) -> float:
        """Milliseconds of a usual step."""
        return sum(self.phases)

    @property
    def wall(self) -> float:
        """Milliseconds of a step by the wall clock, at the machine's usual speed."""
        return self.step + (self.cost / self.every if self.every else 0.0) + (self.between / self.epoch if self.epoch else 0.0)

    def share(self, verdict: str) -> float:
        """The share of all time of the loader or of the loop."""
        rare = self.cost / self.every if self.every else 0.0
        spent = {
            "data": self.phases[NEXT] + self.phases[PREPARE] + (rare if self.in_next else 0.0),
            "host": self.phases[REST] + (0.0 if self.in_next else rare) + (self.between / self.epoch if self.epoch else 0.0),
        }
        return spent[verdict] / self.wall


def steps_of(
    loop: Loop, rng: np.random.Generator, number: int, speed: float, *, begin: int = 0, cached: bool = False
) -> StepSeries:
    """A window of steps; the loop has made `begin` steps before."""
    series = StepSeries()
    series.begin_window()
    for at in range(begin, begin + number):
        noise = speed * rng.normal(1, 0.02, len(PHASES))
        spent = [0] * len(NAMES)
        for phase, milliseconds, factor in zip(PHASES, loop.phases, noise, strict=True):
            spent[phase] = int(milliseconds * factor * MS)
        if loop.every and at % loop.every == loop.every - 1:
            spent[NEXT if loop.in_next else REST] += int(loop.cost * speed * MS)
        if cached:
            spent[NEXT] = 1000
        starts = bool(loop.epoch) and at % loop.epoch == 0 and not cached
        between = int(loop.between * speed * MS) if starts else 0
        spent[REST] += between
        series.add(StepTimes(tuple(spent), starts, between))
    return series


def diagnosed(loop: Loop) -> Finding:
    """What is said of a loop."""
    rng, recorder, hooks = np.random.default_rng(loop.seed), Recorder(), StepHooks()
    # The first window lasts until four rare steps, and some epochs, were seen.
    first = max(60, 4 * loop.every + loop.every // 2, 3 * loop.epoch + 1)
    begin = 0
    for number, slow in enumerate(loop.slow_windows):
        speed = 1.5 if slow else 1.0
        length = 40 if number else first
        window = steps_of(loop, rng, length, speed, begin=begin)
        begin += length
        recorder.loop.windows.append(window.steps if number else window.windows[0])
        if number:
            recorder.cached.windows += steps_of(loop, rng, 40, speed, begin=begin, cached=True).windows
            begin += 40
            alone = [loop.phases[NEXT] * speed * one / 1e3 for one in rng.normal(1, 0.02, 12)]
            recorder.loader_alone.append(alone)
    recorder.waited_ns, recorder.looped_ns = 0, 1
    recorder.work = Work(ops=100.0, flops=1e9, shares=COMPUTING)
    rare = SlowLine(phase="next" if loop.in_next else "rest", in_phase=1.0, place=LINE, called=None, alone=True)
    recorder.rare_line = rare if loop.every and loop.line else None
    recorder.epoch_line = SlowLine(phase="rest", in_phase=1.0, place=LINE, called=None, alone=True) if loop.epoch else None
    sources = Sources(hooks)
    sources.training = Source([1], None)
    sources.training.gives_batches = True
    return conclude(recorder.measurements(sources, hooks, "cpu", MACHINE))


def contradiction(loop: Loop, finding: Finding) -> float:
    """By how much the wall clock contradicts a finding: its steps per second, and the shares of loader and loop."""
    if finding.verdict == "none":
        return 0.0
    usual = sum(1.5 if slow else 1.0 for slow in loop.slow_windows) / len(loop.slow_windows)
    assert finding.measurements is not None
    now = 1e3 * (finding.measurements.wall_seconds or finding.measurements.loop.median)
    most = abs(now - loop.wall) / loop.wall if usual == 1.0 else 0.0  # else it depends on when the machine was slow
    shares = {one.verdict: one.share for one in finding.causes}
    if finding.verdict in ("data", "host"):
        more = shares[finding.verdict] - loop.share(finding.verdict)
        return max(
            most, abs(more) if sum(shares.values()) > 0.95 else more
        )  # without the parts of usual steps, it has at least that share
    # Waste from a tenth of the time on comes before work, except before an optimizer with more.
    least = shares["optimizer"] if finding.verdict == "optimizer" else 0.10
    return max(most, *(max(0.0, loop.share(waste) - least) for waste in ("data", "host")))


LOOPS = st.builds(
    Loop,
    phases=st.tuples(*(st.floats(low, high) for low, high in ((0.0, 20.0), (0.0, 3.0), (1.0, 10.0), (1.0, 10.0), (0.1, 6.0), (0.0, 20.0)))),
    every=st.sampled_from((0, 0, 2, 3, 4, 5, 7, 10, 25, 40, 60)),
    cost=st.floats(0.0, 7.0).map(lambda power: 2.0**power * 5),
    in_next=st.booleans(),
    line=st.booleans(),
    epoch=st.sampled_from((0, 0, 0, 8, 30)),
    between=st.floats(0.0, 400.0),
    slow_windows=st.one_of(st.just((False,) * 5), st.tuples(*[st.booleans()] * 5)),
    seed=st.integers(0, 1000),
)  # fmt: skip
UPLOAD = Loop(phases=(0.2, 0.1, 4.0, 4.0, 0.5, 0.2), every=25, cost=4000.0)


@pytest.mark.promise("P17")
@settings(max_examples=num_examples(200), deadline=None)
@given(loop=LOOPS)
@example(loop=UPLOAD)
def test_the_wall_clock_does_not_contradict_a_verdict(loop: Loop) -> None:
    finding = diagnosed(loop)
    assert contradiction(loop, finding) <= MOST, (finding.verdict, [(one.verdict, one.share) for one in finding.causes], loop.wall)


@pytest.mark.promise("P17", control=True)
def test_without_means_the_wall_clock_contradicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: by medians alone, a loop with an upload of 4 s in each 25th step computes 110 steps per second."""
    monkeypatch.setattr(Recorder, "slow_steps", lambda recorder, *, bursts: None)
    assert diagnosed(UPLOAD).verdict == "compute"
    assert contradiction(UPLOAD, diagnosed(UPLOAD)) > MOST
