"""Inside: fixes that a diagnosis switches on and off in the program that it measures, so that it can say what each would give.

Only those that would be advised, the safest first: a program that raises an error with a fix has ended, and what comes after it is
not measured. The law: whatever becomes of a fix, all that the verdict is made of is there before, and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stoker.diagnose.advice import best_threads
from stoker.diagnose.boundaries import Boundaries, Times
from stoker.diagnose.conclude import conclude
from stoker.diagnose.ledger import Ledger
from stoker.diagnose.measurements import Device, Machine, Measurements, Stretch, WhatIf
from stoker.diagnose.plan import TRUE, Mode, Plan
from stoker.diagnose.tries import fix_named
from stoker.diagnose.tries.fix import Fix

ORDER = ("feed", "fused", "threads", "tf32", "pinned", "autocast", "batch", "graph")
ON_BATCHES = ("pinned", "batch")
"""These are about batches that are handed out again."""
LEAST_OF_A_STEP = 0.03
LEAST_GAIN = 1.02
STRETCH_SECONDS: dict[Device, float] = {"cpu": 0.25, "cuda": 0.08}


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """What it takes to measure a fix inside of a session."""

    settle: Callable[[Mode, int], Plan]
    steps: Callable[[Mode, float, int, list[Times]], Plan]
    ledger: Ledger
    boundaries: Boundaries
    batches: list[Any]
    """Those that the session hands out; changed in place."""
    mode: Mode
    """What a step gets as it is: batches that cost nothing, where that can be."""
    seconds: float
    """Of one stretch."""
    light: bool
    """Whether steps are too short to be looked into."""
    queue: int
    """Batches that workers have ready after a stretch that took none of theirs."""

    def measure(self, name: str, fix: Fix, *, modes: tuple[Mode, Mode] | None = None, rounds: int = 2) -> Plan:
        """Some steps with it, some without, in turn; `modes` is what steps get without it and with it, where that differs."""
        plain, changed = modes or ((TRUE, TRUE) if fix.with_data else (self.mode, self.mode))
        kept = list(self.batches)
        as_it_is: list[Times] = []
        with_fix: list[Times] = []
        try:
            if self.light:
                self.boundaries.silence()
            for _ in range(rounds):
                self.batches[:] = fix.on(self.boundaries.roots, self.boundaries.optimizer, kept)
                yield from self.settle(changed, 3 if changed.cached else 3 + self.queue)
                if not fix.used and modes is None:
                    return
                yield from self.steps(changed, self.seconds, 4, with_fix)
                fix.remove()
                self.batches[:] = kept
                yield from self.settle(plain, 2 if plain.cached else 2 + self.queue)
                yield from self.steps(plain, self.seconds, 4, as_it_is)
        except Exception as error:  # what a fix would give is worth less than what is known
            self.ledger.notes.append(f"what {name} would give could not be measured: {type(error).__name__}: {error}")
            return
        finally:
            fix.remove()
            self.batches[:] = kept
            self.boundaries.listen()
        before, after = self._stretch(as_it_is, plain), self._stretch(with_fix, changed)
        if before.seconds and after.seconds:
            self.ledger.what_ifs[name] = WhatIf(as_it_is=before, with_fix=after)

    def _stretch(self, steps: list[Times], mode: Mode) -> Stretch:
        on_device = self.ledger.on_device.pop(id(steps), None)
        return Stretch(seconds=on_device or [one.without_data if mode.cached else one.seconds for one in steps])
