"""Stretches that look into a step: the user's lines that it spends its time in, and the operations that it consists of."""

from __future__ import annotations

import math
import statistics

from stoker.clock import now_ns
from stoker.diagnose.boundaries import compiled
from stoker.diagnose.plan import TRUE, Mode, Plan
from stoker.diagnose.rare import WORTH_SEEING
from stoker.diagnose.sampler import Sampler
from stoker.diagnose.steps import Steps
from stoker.diagnose.training import Training
from stoker.diagnose.work import Counting, Profiling, main_precision, with_times, work_of

PROFILED_STEPS, PROFILED_SECONDS = 5, 1.5
RARE_STEPS = 2
"""Whose lines are looked at."""


def lines(steps: Steps) -> Plan:
    """The user's lines, by phase."""
    training = steps.training
    yield from steps.settle(TRUE, training.queue + 1 if training.can_cache else 0)
    slow = training.ledger.slow_steps(bursts=training.queue > 0)
    # Half way between the two kinds of steps, because looking takes time, too.
    limit = (slow.others + slow.seconds) / 2 if slow is not None else math.inf
    until_ns = now_ns() + int(steps.patience * 1e9)
    with Sampler(training.boundaries, slow_from=limit) as sampler:
        wanted = RARE_STEPS if slow is not None and slow.share >= WORTH_SEEING else 0
        yield from steps.count(
            TRUE, 1.2, 4, [], each=sampler.end_step, go_on=lambda last, others: sampler.num_slow < wanted and now_ns() < until_ns
        )
    training.ledger.blames = sampler.blames()
    training.ledger.rare_line = sampler.rare_line()


def operations(steps: Steps) -> Plan:
    """What a step consists of, counted."""
    training, counting = steps.training, Counting()
    if not compiled():  # such code would be compiled anew for a mode that looks at its operations
        yield Mode(cached=training.can_cache, before=counting.__enter__)
        counting.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    training.ledger.work = work_of(counting)
    if counting.flops:
        training.boundaries.precision = main_precision(counting)


def times_of_operations(steps: Steps) -> Plan:
    """What the parts of a step take, from a profile."""
    training, profiling = steps.training, Profiling(steps.training.device)
    boundaries, ledger = training.boundaries, training.ledger
    yield from steps.settle(training.without_data, 1)
    for _ in range(int(training.agree(_profiled_steps(training)))):
        boundaries.on_edge = profiling.edge
        yield Mode(cached=training.can_cache, before=profiling.begin)
        boundaries.on_edge = None
        profiling.end()
    profiling.close()
    if ledger.work is not None:
        ledger.work = with_times(ledger.work, profiling)


def _profiled_steps(training: Training) -> int:
    """The median of a few, or one where steps are long."""
    loop = training.ledger.loop
    seconds = statistics.median(one.seconds for one in loop) if loop else PROFILED_SECONDS
    return max(1, min(PROFILED_STEPS, int(PROFILED_SECONDS / seconds)))
