"""Stretches of a GPU: issuing a step (H), running it (G), waiting within it (S), and copying batches to the device (X)."""

from __future__ import annotations

import statistics

import torch

from stoker.diagnose.cuda import Asleep, Waits, copy_seconds, cycles_a_second
from stoker.diagnose.plan import Mode, Plan
from stoker.diagnose.training import Training


def issuing(training: Training, into: list[float]) -> Plan:
    """Seconds in which the host issues a step while the device has nothing to do."""
    for _ in range(7):
        times = yield Mode(cached=training.can_cache, before=torch.cuda.synchronize)
        into.append(times.without_data)


def alone(training: Training) -> Plan:
    """H, G and S: issuing a step, running it, and waiting within it."""
    cached, ledger = training.can_cache, training.ledger
    yield from issuing(training, ledger.host_issue)
    sleep = 2.5 * statistics.median(ledger.host_issue)
    speed = cycles_a_second()
    rounds: list[Asleep] = []
    for _ in range(7):
        asleep = Asleep(training.boundaries, sleep, speed)
        yield Mode(cached=cached, before=asleep.begin)
        asleep.end()
        rounds.append(asleep)
    ledger.sleeps = rounds
    waits = Waits()
    for _ in range(3):
        try:
            yield Mode(cached=cached, before=waits.begin)
        finally:  # the mode is that of the whole process: a step that fails must not leave it on
            waits.end()
    ledger.syncs = waits.syncs()


def copies(training: Training) -> None:
    """X: several distinct batches, again and again."""
    optimizer = training.boundaries.optimizer
    if optimizer is not None and training.batches:
        training.ledger.copies = copy_seconds(training.batches, optimizer.param_groups[0]["params"][0].device)
