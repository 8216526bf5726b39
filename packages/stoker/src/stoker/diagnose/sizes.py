"""Batches of different sizes are compared like with like: the same batches with a change and without it.

Sequences that are padded to the longest of a batch make steps of many lengths. The last batches of a window of the unchanged loop are
given again in the windows after it. What a batch takes there says how large it is: each step is brought to the time that it would take
with a usual batch.

The first step with a new size may take several times as long, because libraries choose kernels for each size (gpu-padded-reviews). A run
has few such steps, but they are many in its first minute. What they take longer is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from stoker.diagnose.hooks import BACKWARD, FORWARD, NEXT, StepTimes
from stoker.diagnose.thresholds import RULE

VARIED = 1.05  # ratio of the quartiles of sizes from which batches differ in size


def differ(sizes: Sequence[int]) -> bool:
    """Say whether batches differ in size, not only the last one of an epoch."""
    if len(sizes) < 4 or min(sizes) <= 0:
        return False
    low, _, high = statistics.quantiles(sizes, n=4)
    return high > VARIED * low


class BatchTimes:
    """What the step of each batch takes when the batch takes no time, by the number of the batch."""

    def __init__(self) -> None:
        self.usual: float | None = None
        self._seconds: dict[int, list[float]] = {}
        self._backward_ns: list[int] = []

    def add(self, steps: Sequence[StepTimes]) -> None:
        """Add the steps of a window without data."""
        for step in steps:
            if (spent := step.spent(with_data=False)) > 0:
                self._seconds.setdefault(step.batch, []).append(spent)
                self._backward_ns.append(step.phases_ns[BACKWARD])
        if self.usual is None and self._seconds:
            self.usual = statistics.fmean(statistics.median(spent) for spent in self._seconds.values())

    def usual_steps(self, step: StepTimes) -> list[StepTimes]:
        """Return a step brought to the time of a usual batch; empty if that is not known, or if it starts an epoch."""
        factor = None if step.new_epoch else self.factor(step.batch)
        if factor is None:
            return []
        on_device = step.device_seconds * factor if step.device_seconds is not None else None
        return [step._replace(phases_ns=tuple(round(spent * factor) for spent in step.phases_ns), device_seconds=on_device)]

    def of_known_size(self, step: StepTimes) -> StepTimes:
        """Return a step without what it took longer because its batch was the first of its size."""
        known = self._seconds.get(step.batch)
        if not known or step.new_epoch:
            return step
        usual, phases = statistics.median(known), list(step.phases_ns)
        longer, computing = step.spent(with_data=True) - phases[NEXT] / 1e9 - usual, phases[FORWARD] + phases[BACKWARD]
        # Code of the user in the forward pass has no backward pass.
        in_backward = phases[BACKWARD] > RULE.slow_step * statistics.median(self._backward_ns)
        if not in_backward or longer <= (RULE.slow_step - 1) * usual or computing < longer * 1e9:
            return step
        for phase in (FORWARD, BACKWARD):
            phases[phase] = round(phases[phase] * (1 - longer * 1e9 / computing))
        on_device = step.device_seconds - longer if step.device_seconds is not None else None
        return step._replace(phases_ns=tuple(phases), device_seconds=on_device)

    def factor(self, batch: int) -> float | None:
        """Return by what a step of this batch is to be multiplied to be that of a usual one; None if it was not measured."""
        known = self._seconds.get(batch)
        return self.usual / statistics.median(known) if known and self.usual is not None else None
