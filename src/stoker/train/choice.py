"""The choice of how steps are done, by measuring: each candidate runs the same few steps from the same state as what it would
replace, and is kept where it is faster and its losses are the same.

Nothing is guessed: on some CPUs bf16 is eleven times slower, compiling loses, and a graph is no gain for large kernels. Where a
candidate cannot run, the reason is kept and said.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stoker.errors import TrainError
from stoker.train.precision import Precision
from stoker.units import readable_seconds

ROUNDS = 3
"""Times that two candidates are measured in turn; the best counts, as noise only adds."""
ROUND_SECONDS = 0.2
MOST_STEPS = 16
LEAST_GAIN = 1.03
WORTH_MEASURING = 200
"""Updates below which a training is over before a measurement has paid off."""
WORTH_COMPILING_SECONDS = 300.0
TOLERANCE = {"fused": 1e-3, "graph": 1e-3, "tf32": 2e-2, "bf16": 5e-2, "fp16": 5e-2, "compile": 1e-2}
"""How far losses may be from those of what is replaced, as a share of them."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How steps are done."""

    precision: Precision = "fp32"
    fused: bool = False
    graph: bool = False
    compile: bool = False


class Timed(NamedTuple):
    """Some steps from the first state on."""

    seconds: float
    """For each step."""
    losses: list[float]


class Run(Protocol):
    """Does so many steps in a setup, from the first state on, and says how long they took."""

    def __call__(self, setup: Setup, num_steps: int, *, shaken: bool = False) -> Timed:
        """With `shaken`, random numbers are other ones."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate against what it would replace."""

    name: str
    chosen: bool
    reason: str
    seconds: float | None = None
    seconds_before: float | None = None

    def __str__(self) -> str:
        return f"{self.name:<9}{'yes' if self.chosen else 'no':<5}{self.reason}"


@dataclass
class Chooser:
    """Tries setups against each other."""

    run: Run
    total_updates: int | None
    trials: list[Trial] = field(default_factory=list)

    def note(self, name: str, reason: str) -> None:
        """Keep why something was not tried."""
        self.trials.append(Trial(name=name, chosen=False, reason=reason))

    def better(self, name: str, now: Setup, candidate: Setup) -> Setup:
        """The faster of the two, if its losses are the same."""
        try:
            first = self.run(candidate, 1)
        except Exception as error:  # whatever a user's model does with it: it is not taken, and the reason is told
            self.note(name, str(error) if isinstance(error, TrainError) else f"not possible: {reason_of(error)}")
            return now
        base = self.run(now, 1)
        if first.seconds > 4 * base.seconds and first.seconds > 1.0:
            self.note(name, f"{readable_seconds(first.seconds)} a step against {readable_seconds(base.seconds)}")
            return now
        num_steps = max(2, min(MOST_STEPS, int(ROUND_SECONDS / max(base.seconds, 1e-6))))
        pairs = [(self.run(now, num_steps), self.run(candidate, num_steps)) for _ in range(ROUNDS)]
        before, after = (min(pair[i].seconds for pair in pairs) for i in (0, 1))
        apart = difference(pairs[0][0].losses, pairs[0][1].losses)
        # Where steps draw random numbers, a candidate may draw others: losses then differ as much as with another seed.
        allowed = max(TOLERANCE[name], 3 * difference(pairs[0][0].losses, self.run(now, num_steps, shaken=True).losses))
        is_same, is_faster = apart <= allowed, before > LEAST_GAIN * after
        reason = f"{readable_seconds(after)} a step against {readable_seconds(before)} ({before / after:.2f}x)"
        reason += (
            f", losses {'equal' if apart == 0 else f'within {apart:.1g}'}" if is_same else f", but losses differ by {apart:.2g}"
        )
        self.trials.append(Trial(name=name, chosen=is_same and is_faster, reason=reason, seconds=after, seconds_before=before))
        return candidate if is_same and is_faster else now

    def is_worth_compiling(self, now: Setup) -> bool:
        """Whether the training is long enough that compiling, which takes minutes, can pay off."""
        seconds = self.run(now, 1).seconds
        expected = seconds * self.total_updates if self.total_updates is not None else None
        if expected is None or expected < WORTH_COMPILING_SECONDS:
            length = "of unknown length" if expected is None else f"over in {readable_seconds(expected)}"
            self.note("compile", f"not tried: the training is {length}, and compiling takes minutes")
            return False
        return True


def difference(losses: list[float], others: list[float]) -> float:
    """The largest difference of two runs' losses, as a share of their mean size."""
    size = sum(abs(loss) for loss in losses) / len(losses)
    apart = max(abs(one - other) for one, other in zip(losses, others, strict=True))
    return apart / size if size and apart == apart else float("inf") if apart else 0.0


def reason_of(error: BaseException) -> str:
    """The first line of an error, and the line of the user's code that it came from."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    own = ("/torch/", "/stoker/train/", "<frozen")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not any(part in frame.filename for part in own)]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
