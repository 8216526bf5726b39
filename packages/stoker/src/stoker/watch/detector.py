"""Finds a lasting slowdown in a sequence of step times, in constant time and memory.

Algorithm of a `Detector`, which gets the level of one block of steps after the other:

1. The level of a block is the logarithm of a mean of its step times; a slowdown of 10 % adds 0.095 to it.
2. The statistic is the least of the last levels. A checkpoint, a log line or the cold start of an epoch raises one block or a few, and so
   not the least of eight. A lasting slowdown raises all.
3. The baseline is the median of earlier statistics, and the noise their spread between the 10th and 90th percentile. As the spread is
   that of the statistic itself, it includes autocorrelation, mixed lengths and heavy tails. A detector that does not adapt takes the
   spread of differences over a window, so that a drift does not hide itself.
4. A slowdown is a statistic above the baseline by a least shift and by `NOISE_FACTOR` times the noise. With a short history the factor is
   larger, because the noise is known less well.
5. The window must also be slow without its `RARE` longest steps. A burst of 40 slow steps beside log lines and a checkpoint is not a
   slowdown; in a simulated run with all of these, the least of six blocks of 12 steps alone gave 16 false alarms per million steps.
6. A statistic enters the history `DELAY` blocks late, so that a slowdown does not hide itself.

After a slowdown the detector reports nothing until the level is back, or until `PATIENCE` blocks have passed: then the new level becomes
the baseline. A lasting speedup becomes the baseline at once. After `RECURRING` slowdowns that ended by themselves, the next one is reported
only if it is larger or lasts twice as long: a training run may have phases.

`SlowdownDetector` has two detectors. The fast one sees blocks of 10 steps and adapts to the last 8,000 steps: it finds a slowdown within 89
steps. The slow one sees at least 256 steps at a time and keeps its first baseline: it finds what the fast one cannot, such as a drift, a
device that the host waits for only now and then, or a slowdown in strong noise.

`UsualTimes` makes step times of batches of different sizes comparable.
Batches of 200 and of 2,000 tokens take different times without being slow, and such a mixture hides a slowdown of 10 %. So each step is
compared with earlier steps of about the same size: sizes within 9 % share a group, and a group knows the mean of the logarithms of its step
times. No shape of the dependence is assumed. A group adapts over its last 512 steps, so a slowdown of all groups stays visible for long.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Literal

BLOCK = 10  # steps
FAST_WINDOW = 8  # blocks: 9 steps of a block that has begun and 80 more are fewer than 100, with a block to ask other ranks
CAP = 8  # medians of its block: a longer step counts as this long, so that one checkpoint does not hide all else
LONG = CAP / (BLOCK // 2 + 1 + CAP * (BLOCK - BLOCK // 2 - 1))
"""Share of a block from which its longest step may be above the cap: all above the median take no more than the longest each."""
RARE = 3  # steps of the window that may be long for a reason of their own: log lines, checkpoints, pauses
SLOW_WINDOW = 8
SLOW_BLOCK = 256  # steps
LARGEST_BLOCK = 1 << 14
WARM_UP = 12  # blocks that are ignored: compilation, allocators, filling of queues
CALIBRATION = 38  # statistics before the first decision
FAST_HISTORY = 800  # statistics that make the baseline
SLOW_HISTORY = 64
DELAY = 12
PATIENCE = 204
RECURRING = 3  # slowdowns that ended, after which more of the same are usual: phases of a run, the time after an evaluation
RECENT = 4000  # blocks in which these have to lie
FAST_SHIFT = 0.055  # of the logarithm; no smaller rise is reported
SLOW_SHIFT = 0.075  # larger, as clocks wander by some percent within hours
TO_FIND = 0.085  # of the logarithm: a threshold above it would miss a slowdown of 10 %
NOISE_FACTOR = 6.0
SHORT_HISTORY = 24.0  # statistics; with as few as these the factor is twice as large
QUANTILE = 1.2816  # standard deviations from the median to the 90th percentile of a normal distribution

Change = Literal["slower", "recovered"]


class Detector:
    """Watches the levels of blocks.

    Args:
        window: Blocks that must all be slow.
        history: Statistics that make the baseline.
        least_shift: Rise of the level below which nothing is reported.
        warm_up: Blocks that are ignored.
        adapts: Whether the baseline follows the last statistics; otherwise it stays that of the first ones.
        confirm: Asked with the level that all blocks have passed, before a slowdown is reported.
    """

    def __init__(
        self,
        *,
        window: int,
        history: int,
        least_shift: float,
        warm_up: int,
        adapts: bool,
        confirm: Callable[[float], bool] = lambda level: True,
    ) -> None:
        self.baseline = math.nan  # level of normal steps
        self.threshold = math.inf  # rise of the level that is a slowdown
        self.is_slow = False
        self.is_suspicious = False  # whether the last block was above the threshold
        self._size, self._capacity = window, history
        self._window: deque[float] = deque(maxlen=window)
        self._least = math.inf  # of the window
        self._history: deque[float] = deque(maxlen=history)
        self._late: deque[float] = deque()
        self._least_shift = least_shift
        self._adapts = adapts
        self._confirm = confirm
        self._to_skip = warm_up
        self._until_estimate = 0
        self._slow_blocks = 0
        self._is_held = False  # whether the level is up as it was before, which is not reported
        self._highest = -math.inf  # statistic of the present slowdown
        self._count = 0
        self._passed: deque[tuple[int, int, float]] = deque(maxlen=RECURRING)
        """Slowdowns that have ended: when, how many blocks they took, and their highest statistic."""

    @property
    def current(self) -> float:
        """The statistic: the least of the last levels."""
        return self._least

    def add(self, level: float) -> Change | None:
        """Add the level of a block; returns what has changed by it."""
        if self._to_skip:
            self._to_skip -= 1
            return None
        window = self._window
        if len(window) == self._size and window[0] == self._least:
            window.append(level)
            self._least = min(window)  # the one that leaves may have been it
        else:
            window.append(level)
            if level < self._least:
                self._least = level
            if len(window) < self._size:
                return None
        baseline, threshold = self.baseline, self.threshold
        self.is_suspicious = is_above = level > baseline + threshold
        least = self._least
        self._count += 1
        if self.is_slow or self._is_held:
            self._slow_blocks += 1
            self._highest = max(self._highest, least)
            if level < baseline + threshold / 2 and max(window) < baseline + threshold / 2:
                self._passed.append((self._count, self._slow_blocks, self._highest))
                was_reported, self.is_slow, self._is_held = self.is_slow, False, False
                return "recovered" if was_reported else None
            if self._is_held and least > baseline + threshold and not self._is_recurring():
                self.is_slow, self._is_held = True, False
                return "slower"
            if self._slow_blocks >= PATIENCE:
                self.relearn()
            return None
        if is_above and least > baseline + threshold and self._confirm(baseline + threshold):
            self._slow_blocks, self._highest = 0, least
            self._late.clear()
            self._is_held = self._is_recurring()
            self.is_slow = not self._is_held
            return "slower" if self.is_slow else None
        if level < baseline - threshold and max(window) < baseline - threshold:
            self.relearn()
        elif self._adapts or len(self._history) < self._capacity:
            late = self._late
            late.append(least)
            if len(late) > DELAY:
                self._history.append(late.popleft())
                self._until_estimate -= 1
                if self._until_estimate <= 0:
                    self._estimate()
        return None

    def _is_recurring(self) -> bool:
        """Whether several slowdowns that have ended were as large as this one and not much shorter, and not long ago."""
        passed = self._passed
        if len(passed) < RECURRING or self._count - passed[0][0] > RECENT:
            return False
        longest = min(2 * max(blocks for _, blocks, _ in passed), PATIENCE - 1)
        return self._slow_blocks < longest and self._highest < max(highest for *_, highest in passed) + self._least_shift

    def relearn(self) -> None:
        """Forget the baseline: the level of now is normal."""
        self._window.clear()
        self._least = math.inf
        self._late.clear()
        self._history.clear()
        self.baseline, self.threshold = math.nan, math.inf
        self.is_slow = self.is_suspicious = self._is_held = False
        self._passed.clear()
        self._until_estimate = 0

    def _estimate(self) -> None:
        """Set the baseline and the threshold by the history, once there is enough of it."""
        history, size = self._history, len(self._history)
        if size < CALIBRATION:
            return
        self._until_estimate = max(4, size // 8)  # sorting is the most expensive part
        low, self.baseline, high = _quantiles(history)
        if not self._adapts:
            # Differences over a window, which a drift does not change: it is to be found, and not to be taken for noise.
            low, middle, high = _quantiles(
                [after - before for before, after in zip(history, [*history][self._size :], strict=False)]
            )
            noise = max(middle - low, high - middle) / math.sqrt(2)
        else:
            noise = max(self.baseline - low, high - self.baseline)
        factor = NOISE_FACTOR * (1 + SHORT_HISTORY / size) / QUANTILE
        self.threshold = max(self._least_shift, factor * noise)


def _quantiles(values: Collection[float]) -> tuple[float, float, float]:
    """The 10th percentile, the median and the 90th percentile."""
    ordered, size = sorted(values), len(values)
    return ordered[size // 10], ordered[size // 2], ordered[size - 1 - size // 10]


class SlowdownDetector:
    """Watches the times of steps.

    Example:
        >>> times = SlowdownDetector()
        >>> changes = [times.add([1000] * 10) for block in range(100)] + [times.add([1100] * 10) for block in range(8)]
        >>> changes.index("slower") - 99  # the number of slow blocks that it took
        8
    """

    def __init__(self) -> None:
        self._blocks: deque[Sequence[int]] = deque(maxlen=FAST_WINDOW)
        self.fast = Detector(
            window=FAST_WINDOW,
            history=FAST_HISTORY,
            least_shift=FAST_SHIFT,
            warm_up=WARM_UP,
            adapts=True,
            confirm=self._is_slow_without_rare_steps,
        )
        self._slow_block = SLOW_BLOCK
        self._new_slow(warm_up=2)

    def _new_slow(self, *, warm_up: int = 0) -> None:
        self.slow = Detector(window=SLOW_WINDOW, history=SLOW_HISTORY, least_shift=SLOW_SHIFT, warm_up=warm_up, adapts=False)
        self._sum, self._count = 0, 0

    @property
    def is_slow(self) -> bool:
        """Whether a slowdown was reported and lasts."""
        return self.fast.is_slow or self.slow.is_slow

    @property
    def smallest(self) -> float:
        """The least slowdown that would be found within 100 steps, as a share of a step; infinite before the detector is armed."""
        return math.expm1(self.fast.threshold)

    def add(self, block: Sequence[int]) -> Change | None:
        """Add the times of `BLOCK` steps; returns what has changed by them."""
        self._blocks.append(block)
        total = sum(block)
        capped = total
        longest = max(block)
        if longest > LONG * total and longest > CAP * min(block):  # else no step is as long as that
            ordered = sorted(block)
            most = CAP * ordered[BLOCK // 2]
            while ordered[-1] > most:
                capped += most - ordered.pop()
        fast = self.fast.add(math.log(capped / BLOCK + 1e-9))
        slow = None
        self._sum += total
        self._count += BLOCK
        if self._count >= self._slow_block:
            slow = self.slow.add(math.log(self._sum / self._count + 1e-9))
            self._sum = self._count = 0
            if TO_FIND < self.slow.threshold < math.inf and self._slow_block < LARGEST_BLOCK:
                # Too noisy to find 10 %: the mean of twice as many steps has less noise.
                self._slow_block *= 2
                self._new_slow()
        if fast == "slower":
            self._new_slow()  # one slowdown is reported once
        elif slow == "slower":
            self.fast.relearn()
        return fast or slow

    def _is_slow_without_rare_steps(self, level: float) -> bool:
        """Whether all blocks of the window are above a level without its `RARE` longest steps."""
        longest = sorted(chain.from_iterable(self._blocks))[-RARE:]
        for block in self._blocks:
            kept = [time for time in block if time < longest[0]]
            if kept and math.log(sum(kept) / len(kept) + 1e-9) <= level:
                return False
        return True

    @property
    def window_steps(self) -> int:
        """Steps that the last slowdown has lasted at least."""
        return FAST_WINDOW * BLOCK if self.fast.is_slow else SLOW_WINDOW * self._slow_block

    @property
    def change(self) -> tuple[float, float]:
        """Time of a step before and since the slowdown, in the unit of the times."""
        detector = self.fast if self.fast.is_slow else self.slow
        return math.exp(detector.baseline), math.exp(detector.current)


# Steps of batches of different sizes.

GROUPS_PER_DOUBLING = 8
MEMORY = 512  # steps of a group that make its usual time
FIRST_STEPS = 256  # whose mean is the time that all are scaled to


class UsualTimes:
    """The usual time of a step, by the size of its batch.

    Example:
        >>> usual = UsualTimes()
        >>> for _ in range(300):
        ...     found = usual.scale([1000, 4000], [10, 40])
        >>> [round(time / found[0], 3) for time in usual.scale([1100, 4400], [10, 40])]  # 10 % slower, whatever the size
        [1.1, 1.1]
    """

    def __init__(self) -> None:
        self._groups: dict[int, tuple[float, int]] = {}  # the mean logarithm, and its number of steps
        self._common, self._steps = 0.0, 0

    def scale(self, times: Sequence[int], sizes: Sequence[float]) -> list[int]:
        """Times of steps as if all batches had a usual size.

        Args:
            times: Times of steps in ns.
            sizes: The sizes of their batches; a size below 1 counts as 1.

        Returns:
            A time per step, in ns.
        """
        scaled = []
        for time, size in zip(times, sizes, strict=True):
            level = math.log(time + 1)
            group = round(GROUPS_PER_DOUBLING * math.log2(size)) if size > 1 else 0
            usual, number = self._groups.get(group, (level, 0))
            self._groups[group] = usual + (level - usual) / min(number + 1, MEMORY), number + 1
            if self._steps < FIRST_STEPS:
                self._steps += 1
                self._common += (level - self._common) / self._steps
            scaled.append(round(math.exp(level - usual + self._common)))
        return scaled
