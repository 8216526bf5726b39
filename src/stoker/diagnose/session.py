"""Inside: fixes that a diagnosis switches on and off in the program that it measures, so that it can say what each would give.

Only those that would be advised, the safest first: a program that raises an error with a fix has ended, and what comes after it is
not measured. The law: whatever becomes of a fix, all that the verdict is made of is there before, and stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sized
from typing import Any

import torch

from stoker._clock import now_ns
from stoker.diagnose import stretches
from stoker.diagnose.advice import best_threads
from stoker.diagnose.distributed import find_ranks
from stoker.diagnose.feed_fix import gathering
from stoker.diagnose.fixes import Fix, fix_named
from stoker.diagnose.hooks import FORWARD, NAMES, NEXT, PREPARE, REST, Times, compiled, copied
from stoker.diagnose.loaders import Watched
from stoker.diagnose.measurements import Device, Machine, Measurements, Stretch, WhatIf
from stoker.diagnose.profilers import Sampler
from stoker.diagnose.recorder import Ledger
from stoker.diagnose.steps import CACHED, MAX_CACHED, TRUE, Mode, Plan, Steps, Training, Turns
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.verdict import conclude
from stoker.errors import TrainError

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
    return seconds * before / after if after > before and seconds < RULE.waits_for_host * after else None


def _stretch(ledger: Ledger, steps: list[Times], mode: Mode) -> Stretch:
    on_device = ledger.on_device.pop(id(steps), None)
    return Stretch(seconds=on_device or [one.without_data if mode.cached else one.seconds for one in steps])


# The course of a diagnosis: all stretches of it, one after the other, from top to bottom.
#
# The law: until the first stretch of the loop as it is has ended, the program computes what it would have computed alone.


def course(steps: Steps) -> Plan:
    """From the first steps of a loop to all that can be known of it."""
    training = steps.training
    ranks = training.ranks = find_ranks()
    yield from stretches.warm_up(steps)
    steps.begin()
    yield from stretches.phases(steps)
    yield from stretches.as_it_is(steps, seconds=1.0, least=stretches.CLEAN_STEPS, periods=stretches.periods_for(steps))
    training.endless = True
    # Taken in turn, because processors change their speed; not where each turn has queues to fill.
    rounds = 4 if training.device == "cpu" and not training.queue else 2
    for _ in range(rounds):
        if training.can_cache:
            yield from stretches.without_data(steps, seconds=1.4 / rounds, least=3)
        if training.can_repeat:
            stretches.loader_alone(steps, seconds=1.2 / rounds)
        if ranks is not None:
            yield from stretches.apart(steps, ranks, seconds=1.4 / rounds)
        if steps.late:
            break
        yield from stretches.as_it_is(steps, seconds=1.4 / rounds, least=3)
    yield from stretches.whole_periods(steps)
    if ranks is not None:  # how the others are waited for is known by now, and would hide what a step consists of
        ranks.part(training.boundaries.roots)
    yield from stretches.lines(steps)
    alone = ranks is None and not compiled()  # code is compiled anew for another number of threads
    if not steps.late and training.device == "cpu" and alone:
        yield from stretches.other_threads(steps)
    yield from stretches.operations(steps)
    if training.device == "cuda":
        yield from stretches.device_alone(training)
        stretches.copies(training)
        if ranks is None:
            # A profile leaves the host slower to start kernels, by three quarters and for good: what can come before does.
            yield from what_ifs(steps, safe=True)
    yield from stretches.times_of_operations(steps)
    if training.device == "cuda" and ranks is None:
        yield from stretches.issuing(training, training.ledger.issue_after_profile)
    stretches.look_into(steps)
    if ranks is not None:  # fixes are chosen by times, and not all processes would choose alike
        ranks.join()
        return
    if not steps.late:
        yield from stretches.as_it_is(steps, seconds=0.4, least=4)
    yield from what_ifs(steps)


# The session: from a running training to `Measurements`, one clean stretch of steps after the other.
#
# It stands at the `next` of the training loop. There it decides, step by step, what the loop gets: the true batch (the loop as it
# is), a copy of an earlier one (the loop without its data), or nothing yet, while the loader runs alone. What comes when is said
# by
# its plan, which is sent the times of each step: `stretches.course`, unless a kind of session has another.

BACKWARDS_WITHOUT_STEP = 200
"""After so many, nothing of torch.optim trains."""


class Session:
    """One diagnosis of one program."""

    def __init__(
        self, *, on_done: Callable[[], None], every_turn: bool = False, pace: float = 1.0, seconds: float | None = None
    ) -> None:
        self.training = Training(every_turn=every_turn)
        self.steps = Steps(self.training, pace=pace, seconds=seconds)
        self.done = False
        self.failure: Exception | None = None
        self._on_done = on_done
        self._plan = self._stretches()
        self._mode = TRUE
        self._turns: Turns | None = None
        self._turn_number = 0
        self._nexts = 0
        self._backwards = 0
        self._ended_ns: int | None = None
        """When an epoch ended, until the next one begins."""
        self._between = Sampler(self.training.boundaries, slow_from=0.0)
        """Looks at lines between two epochs."""

    def _stretches(self) -> Plan:
        return course(self.steps)

    # ---- until the training loop is known ----

    def install(self) -> None:
        """Begin to listen to the program."""
        self.training.boundaries.install()
        self.training.sources.watch_loaders()
        self.training.boundaries.on_step = self._search
        self.training.boundaries.on_backward = self._count_backward

    def remove(self) -> None:
        """Leave the program alone."""
        self._between.stop()
        self._end_turns(None)
        boundaries = self.training.boundaries
        boundaries.on_step = boundaries.on_edge = boundaries.on_backward = None
        boundaries.remove()
        self.training.sources.remove()

    def _count_backward(self) -> None:
        """There was no step of an optimizer so far."""
        self._backwards += 1
        if self._backwards > BACKWARDS_WITHOUT_STEP:
            told = f"there were {BACKWARDS_WITHOUT_STEP} backward passes, and no optimizer of torch made a step"
            self._end(TrainError(f"{told}. Weights that are changed by hand cannot be looked at; use one of torch.optim."))

    def _search(self) -> None:
        boundaries, ledger = self.training.boundaries, self.training.ledger
        boundaries.on_backward = None
        ledger.early.append(boundaries.take())
        ledger.first_ns = ledger.first_ns or now_ns()
        if boundaries.steps == 1:
            boundaries.find_roots()
        if self.training.sources.choose():
            self.take_control()

    def take_control(self) -> None:
        """The training loop is known: measure from here on."""
        training, boundaries, sources = self.training, self.training.boundaries, self.training.sources
        boundaries.keep_roots()
        optimizer = boundaries.optimizer
        if optimizer is not None and optimizer.param_groups[0]["params"][0].device.type == "cuda":
            training.device = "cuda"
        self._take(next(self._plan))
        boundaries.on_step = None if sources.found is not None else self._end_step
        sources.hand_out = self._hand_out
        sources.on_turn = self._begin_turn

    # ---- at every turn of the loop ----

    def _hand_out(self, watched: Watched) -> Any:
        training, boundaries = self.training, self.training.boundaries
        self._end_between()
        boundaries.switch(NEXT)
        training.watched = watched
        if boundaries.stepped or boundaries.silent or (training.every_turn and self._nexts):
            self._advance()
            if self.done:
                raise StopIteration
        if self._ended_ns is not None:
            boundaries.between_ns += max(0, watched.started_ns - self._ended_ns)
            self._ended_ns = None
        mode = self._mode
        value = self._next_cached() if mode.cached else self._next_true(watched)
        self._nexts += 1
        boundaries.switch(PREPARE if boundaries.finds_forward else FORWARD)
        if mode.before is not None:
            self._begin_step(mode)
        return value

    def _hand_out_turn(self, watched: Watched) -> Any:
        """The same while nothing is looked at but the times of turns."""
        self._end_between()
        turns, asked = self._turns, now_ns()
        if turns is None or turns.is_over(asked):
            self._end_turns(asked)
            return self._hand_out(watched)
        try:
            value = self._next_cached() if turns.cached else self._next_true(watched)
        except StopIteration:
            turns.end_epoch(asked)
            raise
        turns.add(asked, now_ns())
        boundaries = self.training.boundaries
        if boundaries.broken:
            boundaries.broken = False
            turns.break_off(0 if self._ended_ns is None else max(0, watched.started_ns - self._ended_ns))
            self._ended_ns = None
        return value

    def _end_between(self) -> None:
        """The next epoch has begun, if one had ended."""
        if self._between.runs:
            self._between.stop()
            self._between.end_step(Times((0,) * len(NAMES), True))
            self.training.ledger.epoch_line = self._between.rare_line()

    def _end_turns(self, end_ns: int | None) -> None:
        if self._turns is not None:
            number = self._turns.end(end_ns)
            self.training.boundaries.steps += number
            self.training.ledger.batches_a_step += [1] * number
            self._turns, self.training.sources.hand_out = None, self._hand_out

    def _begin_turn(self) -> None:
        """A `while` loop begins anew."""
        boundaries = self.training.boundaries
        if boundaries.stepped or boundaries.silent:
            self._advance()
        boundaries.switch(PREPARE)
        if self._mode.before is not None:
            self._begin_step(self._mode)

    def _begin_step(self, mode: Mode) -> None:
        if mode.before is not None:
            mode.before()
        self._mode = Mode(cached=mode.cached)  # once a step, also where it has several batches
        self.training.boundaries.resume()

    def _end_step(self) -> None:
        """An optimizer's step has ended, and there is no loop to be seen."""
        self._begin_turn()

    def _advance(self) -> None:
        boundaries = self.training.boundaries
        times = boundaries.take()
        boundaries.steps += boundaries.silent
        self.training.ledger.batches_a_step.append(self._nexts)
        self._nexts = 0
        try:
            self._take(self._plan.send(times))
        except StopIteration:
            self._end(None)
        except Exception as error:  # ours, not the user's: it must not be taken for a fault of the program
            self._end(error)
        boundaries.resume()

    def _take(self, mode: Mode) -> None:
        self._mode = mode
        if mode.turns is not None:
            self._turns, self.training.sources.hand_out = mode.turns, self._hand_out_turn

    def _end(self, failure: Exception | None) -> None:
        self.failure, self.done = failure, True
        self.remove()
        self._on_done()

    def _next_true(self, watched: Watched) -> Any:
        if self.training.instead is not None:
            return next(self.training.instead)
        try:
            value = next(watched.iterator)
            if self.training.keeping:
                self.training.keep(value)
            return value
        except StopIteration:
            boundaries = self.training.boundaries
            boundaries.broken = True
            if not (self.training.endless and watched.source.can_repeat):
                boundaries.switch(REST)
                self._ended_ns = now_ns()
                self._between.start()
                raise
            watched.restart()
            return next(watched.iterator)

    def _next_cached(self) -> Any:
        self._turn_number += 1
        batches = self.training.batches
        # On a GPU the time of a step is that between two marks, so nothing may be copied meanwhile.
        return copied(batches[self._turn_number % len(batches)], tensors=self.training.device == "cpu")
