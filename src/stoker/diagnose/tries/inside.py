"""Inside: fixes that a diagnosis switches on and off in the program that it measures, so that it can say what each would give.

Only those that would be advised, the safest first: a program that raises an error with a fix has ended, and what comes after it is
not measured. The law: whatever becomes of a fix, all that the verdict is made of is there before, and stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Sized

import torch

from stoker.clock import now_ns
from stoker.diagnose.advice import HELD_UP, best_threads
from stoker.diagnose.boundaries import Times
from stoker.diagnose.conclude import conclude
from stoker.diagnose.ledger import Ledger
from stoker.diagnose.measurements import Device, Machine, Measurements, Stretch, WhatIf
from stoker.diagnose.plan import CACHED, TRUE, Mode, Plan
from stoker.diagnose.steps import Steps
from stoker.diagnose.training import MAX_CACHED
from stoker.diagnose.tries import fix_named
from stoker.diagnose.tries.feed import gathering
from stoker.diagnose.tries.fix import Fix

ORDER = ("feed", "fused", "threads", "tf32", "pinned", "autocast", "batch", "graph")
ON_BATCHES = ("pinned", "batch")
"""These are about batches that are handed out again."""
LEAST_OF_A_STEP = 0.03
LEAST_GAIN = 1.02
STRETCH_SECONDS: dict[Device, float] = {"cpu": 0.25, "cuda": 0.08}
FIXES_SECONDS: dict[Device, float] = {"cpu": 6.0, "cuda": 1.4}
"""After which no fix is looked at any more."""
STEPS_OF_A_ROUND = 13
"""Where steps are long: four with a fix, four without, and those that do not count."""


def ordinary_machine(cores: int) -> Machine:
    """As machines are: good enough to say which fixes are worth a look."""
    return Machine(cores=cores, threads=torch.get_num_threads(), memcpy_bytes=2e10, matmul_flops={}, dispatch_seconds=3e-6)


def fixes_wanted(measured: Measurements) -> list[str]:
    """Names of fixes that would be advised, as far as they can be looked at here."""
    finding = conclude(measured)
    if finding.verdict == "none":
        return []
    advised = {step.name for step in finding.next}
    by_threads, best = measured.fewer_threads, best_threads(measured)
    now = by_threads.get(str(measured.machine.threads))
    if best is not None and now is not None and now >= LEAST_GAIN * by_threads[str(best)]:
        advised.add("threads")
    if max(_of_optimizer(measured)) >= LEAST_OF_A_STEP and not measured.optimizer_fused:
        advised.add("fused")
    return [name for name in ORDER if name in advised and (measured.cached is not None or name not in ON_BATCHES)]


def _of_optimizer(measured: Measurements) -> tuple[float, float]:
    """The optimizer's share of a step, on the host and on the device."""
    host, device = measured.phases.optimizer, measured.device_phases.get("optimizer", 0.0)
    return host / max(measured.loop.median, 1e-9), device / max(sum(measured.device_phases.values()), 1e-9)


def fix_inside(name: str, measured: Measurements) -> Fix | None:
    """The fix of this name, ready to be switched on; None where it is looked at in another way, or does not fit the device."""
    kind = fix_named(name)
    if name == "feed" or (kind.cuda_only and measured.device == "cpu"):
        return None
    return kind(best_threads(measured)) if name == "threads" else kind()


def what_ifs(steps: Steps, *, safe: bool = False) -> Plan:
    """Fixes, each switched on for some steps: predictions are made of that. All else is known by now; `safe` ones, with which no
    program ends, may come before."""
    training = steps.training
    on_cpu, begin = training.device == "cpu", now_ns()
    seen = training.looked_at
    # To measure the machine takes memory and gives it back, after which a program may find its own sooner: a step of foreach
    # updates then took 3.8 ms and not 9. So what can be looked at on a CPU comes before.
    for machine in [ordinary_machine(training.ledger.cores), None] if on_cpu else [None]:
        measured = training.measurements(machine)
        for name in fixes_wanted(measured):
            fix = fix_inside(name, measured)
            # Long steps have one round, and the first fix is the one that promises most: it is always looked at.
            a_round, longest = STEPS_OF_A_ROUND * measured.loop.median, FIXES_SECONDS[training.device]
            rounds = 2 if on_cpu and 2 * a_round < longest / 2 else 1
            spent = (now_ns() - begin) / 1e9
            late = steps.late or spent > longest or (bool(seen) and spent + rounds * a_round > longest)
            if late or name in seen or (fix is not None and fix.may_fail and (safe or training.every_turn)):
                continue
            seen.add(name)
            if name == "feed":
                yield from _gathered(steps, rounds)
            elif fix is not None:
                training.what_if = name
                yield from _measure(steps, name, fix, rounds=rounds)
                training.what_if = None


def _gathered(steps: Steps, rounds: int) -> Plan:
    """The loop with batches that are gathered at once, in turn with batches that cost nothing."""
    training = steps.training
    found, size = training.sources.found, training.ledger.batch_rows
    if found is None or not size or not training.can_repeat:
        return
    dataset = found.loader.dataset if found.loader is not None else ()
    rows = len(dataset) if isinstance(dataset, Sized) and len(dataset) else MAX_CACHED * size
    gathered = gathering(training.batches, rows, size)
    if gathered is not None:
        training.instead = gathered  # of what passes of the program give, however many begin meanwhile
        try:
            yield from _measure(steps, "feed", Fix(), modes=(CACHED, TRUE), rounds=rounds)
        finally:
            training.instead = None


def _measure(steps: Steps, name: str, fix: Fix, *, rounds: int, modes: tuple[Mode, Mode] | None = None) -> Plan:
    """Some steps with it, some without, in turn; `modes` is what steps get without it and with it, where that differs."""
    training, boundaries = steps.training, steps.training.boundaries
    plain, changed = modes or ((TRUE, TRUE) if fix.with_data else (training.without_data,) * 2)
    seconds, batches = STRETCH_SECONDS[training.device], training.batches  # changed in place
    kept = list(batches)
    as_it_is: list[Times] = []
    with_fix: list[Times] = []
    try:
        if training.is_light(plain):
            boundaries.silence()
        for _ in range(rounds):
            batches[:] = fix.on(boundaries.roots, boundaries.optimizer, kept)
            yield from steps.settle(changed, 3 if changed.cached else 3 + training.queue)
            if not fix.used and modes is None:
                return
            yield from steps.count(changed, seconds, 4, with_fix)
            fix.remove()
            batches[:] = kept
            yield from steps.settle(plain, 2 if plain.cached else 2 + training.queue)
            yield from steps.count(plain, seconds, 4, as_it_is)
    except Exception as error:  # what a fix would give is worth less than what is known
        training.ledger.notes.append(f"what {name} would give could not be measured: {type(error).__name__}: {error}")
        return
    finally:
        fix.remove()
        batches[:] = kept
        boundaries.listen()
    before, after = _stretch(training.ledger, as_it_is, plain), _stretch(training.ledger, with_fix, changed)
    if before.seconds and after.seconds:
        training.ledger.what_ifs[name] = WhatIf(as_it_is=before, with_fix=after, at_best=_at_best(training.ledger, after.median))


def _at_best(ledger: Ledger, seconds: float) -> float | None:
    """What a step would take with a host as fast as before the profile; None where no host can have held it up."""
    if not ledger.issue_after_profile or not ledger.host_issue:
        return None
    before, after = statistics.median(ledger.host_issue), statistics.median(ledger.issue_after_profile)
    return seconds * before / after if after > before and seconds < HELD_UP * after else None


def _stretch(ledger: Ledger, steps: list[Times], mode: Mode) -> Stretch:
    on_device = ledger.on_device.pop(id(steps), None)
    return Stretch(seconds=on_device or [one.without_data if mode.cached else one.seconds for one in steps])
