"""Step times of batches of different sizes, made comparable.

Batches of 200 and of 2,000 tokens take different times without being slow, and such a mixture hides a slowdown of 10 %. So each step is
compared with earlier steps of about the same size: sizes within 9 % share a group, and a group knows the mean of the logarithms of its step
times. No shape of the dependence is assumed. A group adapts over its last 512 steps, so a slowdown of all groups stays visible for long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
        found = []
        for time, size in zip(times, sizes, strict=True):
            level = math.log(time + 1)
            group = round(GROUPS_PER_DOUBLING * math.log2(size)) if size > 1 else 0
            usual, number = self._groups.get(group, (level, 0))
            self._groups[group] = usual + (level - usual) / min(number + 1, MEMORY), number + 1
            if self._steps < FIRST_STEPS:
                self._steps += 1
                self._common += (level - self._common) / self._steps
            found.append(round(math.exp(level - usual + self._common)))
        return found
