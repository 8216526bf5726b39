"""What a diagnosis measures, and in which order.

`measure_all` is the plan of a session: all windows, from the first steps of the loop to everything that can be known of it. Until the
first window of the baseline has ended, the program computes what it would have computed alone. `plan_fixes` decides, from what is
known by then, which fixes to switch on and off in the running program.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple

import torch

from stoker._clock import now_ns
from stoker.diagnose import windows
from stoker.diagnose.advice import best_threads
from stoker.diagnose.distributed import find_ranks
from stoker.diagnose.feed_fix import gathering
from stoker.diagnose.fixes import Fix, fix_named
from stoker.diagnose.hooks import compiled
from stoker.diagnose.measurements import Device, Machine, Measurements
from stoker.diagnose.session import CACHED, MAX_CACHED, REAL, Plan, Session
from stoker.diagnose.verdict import conclude

FIXES = ("feed", "fused", "threads", "tf32", "pinned", "autocast", "batch", "graph")
"""The safest first: a program that raises an error with a fix has ended, and what comes after is not measured."""
FIXES_OF_BATCHES = ("pinned", "batch")
"""Fixes that change cached batches."""
MIN_OPTIMIZER_SHARE = 0.03
MIN_GAIN = 1.02
MAX_FIX_SECONDS: dict[Device, float] = {"cpu": 6.0, "cuda": 1.4}
"""After this time no other fix is measured."""
STEPS_PER_ROUND = 13
"""Where steps are long: four with a fix, four without, and those that do not count."""


def measure_all(session: Session) -> Plan:
    """All windows of a diagnosis."""
    ranks = session.ranks = find_ranks()
    yield from windows.warm_up(session)
    session.start_time_limit()
    yield from windows.phases(session)
    yield from windows.baseline(session, seconds=1.0, least=windows.BASELINE_STEPS, periods=windows.periods_for(session))
    session.endless = True
    # Taken in turn, because processors change their speed; fewer rounds where each one has queues to fill.
    rounds = 4 if session.device == "cpu" and not session.queue else 2
    for _ in range(rounds):
        if session.can_cache:
            yield from windows.without_data(session, seconds=1.4 / rounds, least=3)
        if session.can_repeat:
            windows.loader_alone(session, seconds=1.2 / rounds)
        if ranks is not None:
            yield from windows.apart(session, ranks, seconds=1.4 / rounds)
        if session.out_of_time:
            break
        yield from windows.baseline(session, seconds=1.4 / rounds, least=3)
    yield from windows.rare_steps(session)
    if ranks is not None:  # waits for other ranks are known by now, and would hide what a step consists of
        ranks.part(session.hooks.roots)
    yield from windows.lines(session)
    alone = ranks is None and not compiled()  # code is compiled again for another number of threads
    if not session.out_of_time and session.device == "cpu" and alone:
        yield from windows.other_threads(session)
    yield from windows.operations(session)
    measured_fixes: set[str] = set()
    if session.device == "cuda":
        yield from windows.device_alone(session)
        windows.copies(session)
        if ranks is None:
            # After a profile the host starts kernels slower, by three quarters and for good: what can come before does.
            yield from measure_fixes(session, measured_fixes, safe=True)
    yield from windows.operation_times(session)
    if session.device == "cuda" and ranks is None:
        yield from windows.issuing(session, session.recorder.issue_after_profile)
    windows.profile_batches(session)
    if ranks is not None:  # fixes are chosen by times, and not all ranks would choose the same
        ranks.join()
        return
    if not session.out_of_time:
        yield from windows.baseline(session, seconds=0.4, least=4)
    yield from measure_fixes(session, measured_fixes)


# ---- which fixes to measure ----


class PlannedFix(NamedTuple):
    """A fix to switch on and off in the running program."""

    name: str
    fix: Fix | None
    """None if it is measured in another way, or does not fit the device."""
    rounds: int
    seconds: float
    """Of all rounds, where steps are long."""


def plan_fixes(measured: Measurements, *, may_fail: bool) -> list[PlannedFix]:
    """The fixes that would be advised and can be measured here; with `may_fail` also those with which a program may fail."""
    found = []
    for name in fixes_wanted(measured):
        fix = fix_inside(name, measured)
        if fix is not None and fix.may_fail and not may_fail:
            continue
        round_seconds = STEPS_PER_ROUND * measured.loop.median
        rounds = 2 if measured.device == "cpu" and 2 * round_seconds < MAX_FIX_SECONDS[measured.device] / 2 else 1
        found.append(PlannedFix(name, fix, rounds, rounds * round_seconds))
    return found


def fixes_wanted(measured: Measurements) -> list[str]:
    """Names of fixes that would be advised, as far as they can be measured in the running program."""
    finding = conclude(measured)
    if finding.verdict == "none":
        return []
    advised = {step.name for step in finding.next}
    by_threads, best = measured.fewer_threads, best_threads(measured)
    now = by_threads.get(str(measured.machine.threads))
    if best is not None and now is not None and now >= MIN_GAIN * by_threads[str(best)]:
        advised.add("threads")
    on_host = measured.phases.optimizer / max(measured.loop.median, 1e-9)
    on_device = measured.device_phases.get("optimizer", 0.0) / max(sum(measured.device_phases.values()), 1e-9)
    if max(on_host, on_device) >= MIN_OPTIMIZER_SHARE and not measured.optimizer_fused:
        advised.add("fused")
    return [name for name in FIXES if name in advised and (measured.cached is not None or name not in FIXES_OF_BATCHES)]


def fix_inside(name: str, measured: Measurements) -> Fix | None:
    """The fix of this name; None if it is measured in another way, or does not fit the device."""
    kind = fix_named(name)
    if name == "feed" or (kind.cuda_only and measured.device == "cpu"):
        return None
    return kind(best_threads(measured)) if name == "threads" else kind()


def typical_machine(cores: int) -> Machine:
    """A machine good enough to choose the fixes to measure, without measuring this one."""
    return Machine(cores=cores, threads=torch.get_num_threads(), memcpy_bytes=2e10, matmul_flops={}, dispatch_seconds=3e-6)


# ---- measuring them ----


def measure_fixes(session: Session, known: set[str], *, safe: bool = False) -> Plan:
    """Switch each planned fix on for some steps: predictions are made of that.

    Whatever becomes of a fix, everything that the verdict needs is measured before. Fixes with which no program fails (`safe`) may
    come earlier. `known` are the names of fixes measured so far.
    """
    begin, limit = now_ns(), MAX_FIX_SECONDS[session.device]
    # Measuring the machine allocates and frees memory, after which a program may find its own sooner: a step of foreach updates
    # then took 3.8 ms and not 9. So what can be measured on a CPU comes before.
    machines = [typical_machine(session.recorder.cores), None] if session.device == "cpu" else [None]
    for machine in machines:
        for planned in plan_fixes(session.measurements(machine), may_fail=not safe and not session.step_per_batch):
            spent = (now_ns() - begin) / 1e9
            # The first fix promises most: it is measured however long its steps are.
            if session.out_of_time or spent > limit or (known and spent + planned.seconds > limit) or planned.name in known:
                continue
            known.add(planned.name)
            if planned.name == "feed":
                yield from _feed_gain(session, planned.rounds)
            elif planned.fix is not None:
                session.fix_on = planned.name
                yield from windows.fix_gain(session, planned.name, planned.fix, rounds=planned.rounds)
                session.fix_on = None


def _feed_gain(session: Session, rounds: int) -> Plan:
    """The loop with batches gathered at once, in turn with cached batches."""
    found, size = session.sources.found, session.recorder.batch_rows
    if found is None or not size or not session.can_repeat:
        return
    dataset = found.loader.dataset if found.loader is not None else ()
    rows = len(dataset) if isinstance(dataset, Sized) and len(dataset) else MAX_CACHED * size
    gathered = gathering(session.batches, rows, size)
    if gathered is not None:
        session.replacement = gathered  # in all passes of the program that begin meanwhile
        try:
            yield from windows.fix_gain(session, "feed", Fix(), rounds=rounds, inputs=(CACHED, REAL))
        finally:
            session.replacement = None
