"""The course of a diagnosis: all stretches of it, one after the other, from top to bottom.

The law: until the first stretch of the loop as it is has ended, the program computes what it would have computed alone.
"""

from __future__ import annotations

from stoker.diagnose.boundaries import compiled
from stoker.diagnose.plan import Plan
from stoker.diagnose.ranks import find_ranks
from stoker.diagnose.steps import Steps
from stoker.diagnose.stretches import device, loader, loop, step
from stoker.diagnose.tries.inside import what_ifs


def course(steps: Steps) -> Plan:
    """From the first steps of a loop to all that can be known of it."""
    training = steps.training
    ranks = training.ranks = find_ranks()
    yield from loop.warm_up(steps)
    steps.begin()
    yield from loop.phases(steps)
    yield from loop.as_it_is(steps, seconds=1.0, least=loop.CLEAN_STEPS, periods=loop.periods_for(steps))
    training.endless = True
    # Taken in turn, because processors change their speed; not where each turn has queues to fill.
    rounds = 4 if training.device == "cpu" and not training.queue else 2
    for _ in range(rounds):
        if training.can_cache:
            yield from loop.without_data(steps, seconds=1.4 / rounds, least=3)
        if training.can_repeat:
            loader.alone(steps, seconds=1.2 / rounds)
        if ranks is not None:
            yield from loop.apart(steps, ranks, seconds=1.4 / rounds)
        if steps.late:
            break
        yield from loop.as_it_is(steps, seconds=1.4 / rounds, least=3)
    yield from loop.whole_periods(steps)
    if ranks is not None:  # how the others are waited for is known by now, and would hide what a step consists of
        ranks.part(training.boundaries.roots)
    yield from step.lines(steps)
    alone = ranks is None and not compiled()  # code is compiled anew for another number of threads
    if not steps.late and training.device == "cpu" and alone:
        yield from loop.other_threads(steps)
    yield from step.operations(steps)
    if training.device == "cuda":
        yield from device.alone(training)
        device.copies(training)
        if ranks is None:
            # A profile leaves the host slower to start kernels, by three quarters and for good: what can come before does.
            yield from what_ifs(steps, safe=True)
    yield from step.times_of_operations(steps)
    if training.device == "cuda" and ranks is None:
        yield from device.issuing(training, training.ledger.issue_after_profile)
    loader.look_into(steps)
    if ranks is not None:  # fixes are chosen by times, and not all processes would choose alike
        ranks.join()
        return
    if not steps.late:
        yield from loop.as_it_is(steps, seconds=0.4, least=4)
    yield from what_ifs(steps)
