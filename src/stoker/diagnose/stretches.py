"""Stretches of a GPU: issuing a step (H), running it (G), waiting within it (S), and copying batches to the device (X)."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Generator

import torch

from stoker._clock import Waiting, busy_ns, now_ns
from stoker.diagnose.attribution import Periods, slow_of
from stoker.diagnose.cuda import Asleep, Waits, copy_seconds, cycles_a_second
from stoker.diagnose.distributed import Ranks
from stoker.diagnose.hardware import pages_so_far
from stoker.diagnose.hooks import BACKWARD, Times, compiled
from stoker.diagnose.loaders import Watched
from stoker.diagnose.ops import Counting, Profiling, main_precision, with_times, work_of
from stoker.diagnose.profilers import Sampler, profile_iterable, profile_loader
from stoker.diagnose.steps import CACHED, TRUE, Mode, Plan, Steps, Training
from stoker.diagnose.thresholds import RULE


def issuing(training: Training, into: list[float]) -> Plan:
    """Seconds in which the host issues a step while the device has nothing to do."""
    for _ in range(7):
        times = yield Mode(cached=training.can_cache, before=torch.cuda.synchronize)
        into.append(times.without_data)


def device_alone(training: Training) -> Plan:
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


# The loader by itself, while the loop waits: how fast it makes batches (D), and which part of making one takes the time.


def loader_alone(steps: Steps, *, seconds: float) -> None:
    """D: batches one after the other, the queue thrown away first."""
    training, ledger = steps.training, steps.training.ledger
    watched = training.watched
    if watched is None:
        return
    for _ in range(training.queue + 1):
        _pull(watched)
    ledger.begin(ledger.loader_alone)
    begin, count = now_ns(), 0
    while count < 200 and (count < 4 or now_ns() - begin < steps.length(seconds) * 1e9):
        spent, whole = _pull(watched)
        if whole:
            ledger.loader_alone.append(spent)
        count += 1


def _pull(watched: Watched) -> tuple[float, bool]:
    """Seconds to make a batch and to let it go, and whether a pass went on with it."""
    start = now_ns()
    try:
        next(watched.iterator)
    except StopIteration:
        watched.restart()
        next(watched.iterator)
        return (now_ns() - start) / 1e9, False
    return (now_ns() - start) / 1e9, True


def look_into(steps: Steps) -> None:
    """Which part of making a batch takes the time, and what it reads."""
    training = steps.training
    source, watched = training.sources.found, training.watched
    if source is None or not source.gives_batches:
        return
    seconds, loader = steps.length(0.5), source.loader
    if loader is None:
        if watched is not None and training.can_repeat and _makes_batches(source.iterable):
            training.ledger.profile = profile_iterable(functools.partial(_pull, watched), seconds=seconds)
        return
    try:
        training.ledger.profile = profile_loader(loader, seconds=seconds)
    except Exception as error:  # the user's: a dataset may need what only its workers have
        if not loader.num_workers:
            raise
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        training.ledger.notes.append(f"The dataset works in its workers only ({told}), so making a batch could not be looked into.")


def _makes_batches(iterable: object) -> bool:
    """Whether going through it does the work, and not a list that has all batches or threads of our own."""
    return type(iterable).__module__.split(".")[0] not in ("builtins", "stoker")


# Stretches of the training loop: as it is (T), without its data (C), apart from other processes, with other numbers of threads.

CLEAN_STEPS = 12
RANKED_WARM_UP = 10
"""Steps, where several processes must do alike."""
SHORT_STEP = 8e-3
"""Below it, what hooks cost is more than half a per cent of a step."""
FAR_SLOWER = 3.0


def warm_up(steps: Steps) -> Plan:
    """Until the queue of a loader is empty and the times of steps have settled."""
    training = steps.training
    training.keeping = training.can_cache and not training.can_repeat  # else they are taken when they are needed
    yield from _until_settled(steps)
    training.keeping = False


def _until_settled(steps: Steps) -> Plan:
    training = steps.training
    seen: list[float] = []
    least = max(3, training.queue + 1)
    if training.ranks is not None:
        for _ in range(max(RANKED_WARM_UP, least)):
            training.ledger.early.append((yield TRUE))
        return
    while len(seen) < 60:
        times = yield TRUE
        training.ledger.early.append(times)
        seen.append(times.seconds)
        if len(seen) < least:
            continue
        if sum(seen[1:]) > 4.0:
            break
        if len(seen) >= 6:
            before, after = statistics.median(seen[-6:-3]), statistics.median(seen[-3:])
            if abs(before - after) <= 0.1 * max(before, after):
                break
    yield TRUE


def phases(steps: Steps) -> Plan:
    """How a step divides. Steps that are short have a stretch for this alone, because looking costs; it comes first, so that the
    first losses are seen."""
    training, ledger = steps.training, steps.training.ledger
    early, one_batch = ledger.early[-6:], max(ledger.batches_a_step, default=1) <= 1
    may_be = training.sources.found is not None and one_batch
    training.light = bool(training.agree(may_be and statistics.median(one.seconds for one in early) < SHORT_STEP))
    short = statistics.median(one.without_data for one in early) < SHORT_STEP
    training.light_without_data = bool(training.agree(training.light or (may_be and short and training.device == "cpu")))
    if training.light:
        yield from steps.count(TRUE, 0.5, CLEAN_STEPS, ledger.phased)


def as_it_is(steps: Steps, *, seconds: float, least: int, periods: Periods | None = None) -> Plan:
    """T: the loop as it is; with `periods` until rare steps were seen often enough."""
    training = steps.training
    if training.light:
        training.boundaries.silence()
    if training.endless or training.light:
        yield from steps.settle(TRUE, training.queue + 1)
    yield from _clean(steps, TRUE, seconds, least, training.ledger.loop, periods)


def whole_periods(steps: Steps) -> Plan:
    """T once more, where rare steps were seen since the first window, whose share of the time is not known yet."""
    ledger = steps.training.ledger
    known, elsewhere = ledger.slow_steps(bursts=steps.training.queue > 0), slow_of([one.without_data for one in ledger.cached])
    hold = max((one.share for one in (known, elsewhere) if one is not None), default=0.0)
    if hold >= RULE.rare_min_share and (known is None or len(known.at) <= 2) and steps.training.ranks is None:
        yield from as_it_is(steps, seconds=0.4, least=4, periods=periods_for(steps, expected=True))


def periods_for(steps: Steps, *, expected: bool = False) -> Periods:
    """Rare steps are waited for so long."""
    return Periods(until_ns=now_ns() + int(steps.patience * 1e9), expected=expected)


def without_data(steps: Steps, *, seconds: float, least: int) -> Plan:
    """C: the loop with its data for nothing."""
    training = steps.training
    training.collect()
    if training.is_light(CACHED):
        training.boundaries.silence()
    yield from steps.settle(CACHED, 1)
    yield from _clean(steps, CACHED, seconds, least, training.ledger.cached)


def _clean(steps: Steps, mode: Mode, seconds: float, least: int, into: list[Times], periods: Periods | None = None) -> Plan:
    """A stretch of which it is seen, too, how long threads waited for cores, how many they used, and what memory came anew."""
    ledger, number = steps.training.ledger, len(into)
    ledger.begin(into)
    waiting, pages, busy, begin = Waiting(), pages_so_far(), busy_ns(), now_ns()
    yield from steps.count(mode, seconds, least, into, go_on=periods.go_on if periods is not None else None)
    kind = "cached" if mode.cached else "loop"
    if len(into) > number:
        ledger.cores_used.setdefault(kind, []).append((busy_ns() - busy) / max(1, now_ns() - begin))
        ledger.pages.setdefault(kind, []).append((pages_so_far() - pages) / (len(into) - number))
    ledger.add_waiting(waiting)
    steps.training.boundaries.listen()


def apart(steps: Steps, ranks: Ranks, *, seconds: float) -> Plan:
    """The loop as it is, but for the exchange with other processes; and with it, where all begin it at the same time."""
    ledger = steps.training.ledger
    ranks.part(steps.training.boundaries.roots)
    yield from steps.settle(TRUE, 1)
    ledger.begin(ledger.apart)
    number, waiting = len(ledger.apart), Waiting()
    exchanged = yield from _exchanged(steps, ranks, seconds, ledger.apart)
    waited_ns, spent_ns = waiting.end()
    if waited_ns is not None and not exchanged:  # threads that exchange what a program does by hand need cores, too
        ledger.waited_apart.append(waited_ns / spent_ns)
    ledger.exchanged.append(exchanged)
    alone = ledger.apart[number:]
    if steps.training.device == "cuda":
        return  # its host does not wait for an exchange
    together: list[Times] = []
    meeting = ranks.meet(steps.training.boundaries.roots)
    yield from steps.settle(TRUE, 1)
    exchanged = yield from _exchanged(steps, ranks, seconds, together)
    if meeting.held and not meeting.missed and together and alone:
        backward, own = (statistics.median(one.phases_ns[BACKWARD] for one in some) / 1e9 for some in (together, alone))
        ledger.exchanges.append(max(0.0, backward - own) + exchanged)


def _exchanged(steps: Steps, ranks: Ranks, seconds: float, into: list[Times]) -> Generator[Mode, Times, float]:
    """Steps of a stretch, at whose end all is as before; returns seconds a step in collectives that the program called itself."""
    before, number = ranks.exchanged_ns, len(into)
    yield from steps.count(TRUE, seconds, 3, into)
    ranks.join()
    return (ranks.exchanged_ns - before) / 1e9 / max(1, len(into) - number)


def other_threads(steps: Steps) -> Plan:
    """The loop without its data, with other numbers of threads."""
    mode, ledger = steps.training.without_data, steps.training.ledger
    given, cores, known = torch.get_num_threads(), ledger.cores, ledger.by_threads
    wanted = sorted({1, max(1, cores // 2), cores, given})
    if len(wanted) < 2:
        return
    try:
        for number in (*wanted, *reversed(wanted)):  # once more backwards, because processors change their speed
            if number != given and known.get(number, 0.0) > FAR_SLOWER * min(known.values(), default=0.0):
                continue  # threads that wait for one that has no core can take a hundred times as long
            torch.set_num_threads(number)
            yield from steps.settle(mode, 1)
            times: list[Times] = []
            yield from steps.count(mode, 0.15, 3, times)
            if times:
                seconds = statistics.median(one.without_data for one in times)
                known[number] = min(seconds, known.get(number, seconds))
    finally:
        torch.set_num_threads(given)


# Stretches that look into a step: the user's lines that it spends its time in, and the operations that it consists of.

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
        wanted = RARE_STEPS if slow is not None and slow.share >= RULE.rare_min_share else 0
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
