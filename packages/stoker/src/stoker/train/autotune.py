"""The setup of a training run: precision, implementation of the optimizer, CUDA graph, compiling. And the choice between setups.

With `speed="exact"` a candidate is taken only if the weights, buffers and optimizer state after the measured steps are bit-equal to
those of the baseline, so a choice never changes a result. With `speed="measured"` it is taken if it is faster with the same losses.

A choice is a paired test. In each round both setups run the same steps from the same state, in swapped order every other round,
and give one ratio of their times. The interval of the median ratio is that of the sign test, so it holds for any noise that is
independent between rounds. A candidate is taken if the whole interval lies above `LEAST_GAIN`, and never while threads of this
process wait for cores that other programs hold.
"""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import msgspec

from stoker._clock import RunQueueDelay
from stoker._text import readable_seconds
from stoker.errors import TrainError
from stoker.train.numerics import Precision

ROUNDS = 9
SPARED = 1
"""Ratios at each end of the sorted ones that lie outside the interval. With 9 rounds it covers the true median in 96 % of cases.
A candidate whose true median is `LEAST_GAIN` or less is taken in at most 10 of 512: where at most one ratio is not above it."""
LEAST_GAIN = 1.03
LARGEST_WAIT = 0.10
"""Of the measured time, for a core that another program holds; diagnose found at most 0.05 alone, 0.27 and more beside others."""
ROUND_SECONDS = 0.1
MOST_STEPS = 16
HOPELESS = 4
"""A candidate whose first step takes longer than this multiple of the baseline's is measured no further."""
WARM_UP = 2
"""Steps of a setup that is new, before any is measured."""
CHECKED_STEPS = 5
"""Steps after which bits are compared, at least: the first one alone has no optimizer state and few random numbers behind it."""
WORTH_MEASURING = 200
"""Updates below which a run is over before a measurement has paid off."""
LARGEST_SHARE = 0.1
"""Of the updates of a run, that a choice may take."""
WORTH_COMPILING_SECONDS = 300.0
TOLERANCE = {"fused": 1e-3, "graph": 1e-3, "tf32": 2e-2, "bf16": 5e-2, "compile": 1e-2}
"""How far losses may be from those of the baseline, as a share of them."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How steps are computed. `precision`, `fused` and `compile` decide the bits of the weights; `graph` does not.

    Args:
        precision: `"fp32"`, `"tf32"`, `"bf16"` or `"fp16"`.
        fused: Whether one kernel updates all weights.
        graph: Whether the whole step is a CUDA graph.
        compile: Whether the model is compiled.

    Example:
        >>> print(Setup(precision="bf16", fused=True))
        bf16, fused optimizer
    """

    precision: Precision = "fp32"
    fused: bool = False
    graph: bool = False
    compile: bool = False

    def __str__(self) -> str:
        words = {"fused optimizer": self.fused, "CUDA graph": self.graph, "compiled": self.compile}
        return ", ".join([self.precision, *(word for word, is_on in words.items() if is_on)])


def parse_setup(value: Any, *, where: str) -> Setup:
    """The setup that a run has recorded; `where` names it in the error."""
    names = [field.name for field in fields(Setup)]
    try:
        if not isinstance(value, Mapping) or set(value) != set(names):
            raise msgspec.ValidationError(f"expected the keys {', '.join(names)}")
        return msgspec.convert(dict(value), Setup)
    except msgspec.ValidationError as invalid:
        raise TrainError(f"the setup in {where} is {repr(value)[:100]}, which is invalid ({invalid}).") from invalid


class Timed(NamedTuple):
    """Some steps from the first state on."""

    seconds: float
    """Per step."""
    losses: list[float]
    bits: str = ""
    """A digest of weights, buffers and optimizer state after the steps, where it was asked for."""


class TimedRun(Protocol):
    """Does `num_steps` steps in a setup, from the first state on, and measures them."""

    def __call__(self, setup: Setup, num_steps: int, *, shaken: bool = False, bits: bool = False) -> Timed:
        """With `shaken`, random numbers are other ones."""


class Gain(NamedTuple):
    """How many times faster a candidate is than the baseline: the median, and its interval."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        digits = 2 if self.median < 1.5 else 1
        return f"{self.median:.{digits}f}x faster ({self.low:.{digits}f}-{self.high:.{digits}f})"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate setup, measured against what it would replace.

    Args:
        name: `"fused"`, `"graph"`, `"tf32"`, `"bf16"` or `"compile"`; `"choice"` where nothing was measured.
        chosen: Whether it was taken.
        reason: Why, in words.
        seconds: Per step with it; None where it was not measured.
        seconds_before: Per step without it.
        gain: How many times faster it is: the median over the rounds.
        gain_low: The lower end of the interval of the median.
        gain_high: The upper end.

    Example:
        >>> print(Trial(name="graph", chosen=False, reason="there is no GPU"))
        graph    no   there is no GPU
    """

    name: str
    chosen: bool
    reason: str
    seconds: float | None = None
    seconds_before: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None

    def __str__(self) -> str:
        return f"{self.name:<8} {'yes' if self.chosen else 'no':<5}{self.reason}"


@dataclass
class Chooser:
    """Compares setups."""

    run: TimedRun
    trials: list[Trial] = field(default_factory=list)
    waiting: Callable[[], RunQueueDelay] = RunQueueDelay

    def note(self, name: str, reason: str) -> Trial:
        """Keep why something was not measured, or not taken."""
        self.trials.append(Trial(name=name, chosen=False, reason=reason))
        return self.trials[-1]

    def better(self, name: str, now: Setup, candidate: Setup, *, num_steps: int, exact: bool = False) -> Setup:
        """The faster of the two, if it gives the same bits (`exact`) or else the same losses."""
        return candidate if self.compare(name, now, candidate, num_steps=num_steps, exact=exact).chosen else now

    def compare(self, name: str, now: Setup, candidate: Setup, *, num_steps: int, exact: bool = False) -> Trial:
        """Measure a candidate against what it would replace; the trial says whether to take it, and why."""
        try:
            first = self.run(candidate, 1)
        except Exception as error:  # whatever a user's model does with it: it is not taken, and the reason is reported
            return self.note(name, str(error) if isinstance(error, TrainError) else f"not possible: {reason_of(error)}")
        base = self.run(now, 1)
        if first.seconds > HOPELESS * base.seconds:
            return self.note(name, f"{readable_seconds(first.seconds)} per step against {readable_seconds(base.seconds)}")
        if exact and (refusal := self._differs(name, now, candidate, num_steps)) is not None:
            return self.note(name, refusal)
        return self._race(name, now, candidate, num_steps, exact=exact)

    def _differs(self, name: str, now: Setup, candidate: Setup, num_steps: int) -> str | None:
        """Why a candidate does not give the bits of the baseline; None where it does."""
        num_steps = max(num_steps, CHECKED_STEPS)
        base, again = (self.run(now, num_steps, bits=True).bits for _ in range(2))
        if base != again:
            return "not taken: the same steps from the same state give other bits each time, so it cannot be shown to change none"
        if self.run(candidate, num_steps, bits=True).bits != base:
            return f"not taken: weights differ in some bits from those without it ({name}=True takes it all the same)"
        return None

    def _race(self, name: str, now: Setup, candidate: Setup, num_steps: int, *, exact: bool) -> Trial:
        pairs: list[tuple[Timed, Timed]] = []
        ratios: list[float] = []
        share, waiting = 0.0, self.waiting()
        while len(ratios) < ROUNDS:
            if len(ratios) % 2:
                after, before = self.run(candidate, num_steps), self.run(now, num_steps)
            else:
                before, after = self.run(now, num_steps), self.run(candidate, num_steps)
            pairs.append((before, after))
            ratios.append(before.seconds / max(after.seconds, 1e-12))
            waited_ns, spent_ns = waiting.end()
            share = (waited_ns or 0) / max(1, spent_ns)
            if len(ratios) > SPARED + 1 and share > LARGEST_WAIT:
                break
            if sum(ratio <= LEAST_GAIN for ratio in ratios) > SPARED:
                break  # whatever follows, the interval reaches below the least gain
        base_seconds, seconds = (statistics.median(pair[i].seconds for pair in pairs) for i in (0, 1))
        speed = f"{readable_seconds(seconds)} per step against {readable_seconds(base_seconds)}"
        if share > LARGEST_WAIT:
            reason = f"not measured: for {share:.0%} of the time threads waited for cores that other programs hold"
            return self.note(name, reason.replace("%", " %"))
        if len(ratios) < ROUNDS:
            return self.note(name, f"{speed}: {statistics.median(ratios):.2f}x, no gain")
        gain = gain_of(ratios)
        apart = difference(pairs[0][0].losses, pairs[0][1].losses)
        # Where steps draw random numbers, a candidate may draw others: losses then differ as much as with another seed.
        is_same = exact or apart <= max(
            TOLERANCE[name], 3 * difference(pairs[0][0].losses, self.run(now, num_steps, shaken=True).losses)
        )
        near = "losses within " + f"{apart:.0e}".replace("e-0", "e-").replace("e+00", "") if apart else "losses equal"
        losses = "weights bit-equal" if exact else near if is_same else f"but losses differ by {apart:.2g}"
        trial = Trial(
            name=name,
            chosen=is_same and gain.low > LEAST_GAIN,
            reason=f"{speed}: {gain}, {losses}",
            seconds=seconds,
            seconds_before=base_seconds,
            gain=gain.median,
            gain_low=gain.low,
            gain_high=gain.high,
        )
        self.trials.append(trial)
        return trial


def steps_of_choice(num_steps: int, *, exact: bool) -> int:
    """The most steps that one comparison makes, with rounds of `num_steps`."""
    checks = 3 * max(num_steps, CHECKED_STEPS) if exact else num_steps  # bits, or a run with other random numbers
    return 2 * WARM_UP + 2 + 2 * ROUNDS * num_steps + checks


def steps_per_round(seconds: float, *, total_updates: int | None, num_candidates: int, exact: bool) -> int:
    """Steps of a round, so that all comparisons stay within `LARGEST_SHARE` of the run; 0 where not even one step fits.

    Args:
        seconds: Of a step.
        total_updates: Updates of the run; None where that is not known, and nothing is bounded.
        num_candidates: Comparisons that are to be made.
        exact: Whether bits are compared.
    """
    wanted = max(1, min(MOST_STEPS, int(ROUND_SECONDS / max(seconds, 1e-6))))
    if total_updates is None:
        return wanted
    fitting = (n for n in range(wanted, 0, -1) if num_candidates * steps_of_choice(n, exact=exact) <= LARGEST_SHARE * total_updates)
    return next(fitting, 0)


def gain_of(ratios: list[float]) -> Gain:
    """The median of the ratios of all rounds, and the interval of the sign test around it."""
    ordered = sorted(ratios)
    return Gain(low=ordered[SPARED], median=statistics.median(ordered), high=ordered[-1 - SPARED])


def difference(losses: list[float], others: list[float]) -> float:
    """The largest difference of two runs' losses, as a share of their mean size."""
    size = sum(abs(loss) for loss in losses) / len(losses)
    apart = max(abs(loss - other) for loss, other in zip(losses, others, strict=True))
    return apart / size if size and apart == apart else float("inf") if apart else 0.0


def reason_of(error: BaseException) -> str:
    """The first line of an error, and the line of the user's code that it came from."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    libraries = ("/torch/", "/stoker/train/", "<frozen")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not any(part in frame.filename for part in libraries)]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
