"""The measurement windows of a diagnosis, each a function of the session, and `measure_all`, which runs them in order.

Most are plans: generators that say what each step gets and are sent its times. By what they measure:

- the loop: `warm_up`, `phases`, `baseline` (T), `rare_steps` (T again), `without_data` (C), `apart` (without the all-reduce),
  `other_threads`
- the loader: `loader_alone` (D), `profile_batches`
- inside a step: `lines`, `operations`, `operation_times`
- a suspect that is removed: `removals`; what is left of a step on a GPU: `device_alone` (G)
- a fix: `fix_gain`; `measure_fixes` decides which fixes to measure
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator

import torch

from stoker._clock import RunQueueDelay, TimeWithCore, now_ns
from stoker.diagnose.advice import best_threads, value_of
from stoker.diagnose.distributed import MeasuredRanks, find_ranks
from stoker.diagnose.division import SHORTER_TYPES, divide, error_between, gain_of, ratios_of, waits_for_interpreter
from stoker.diagnose.experiments.base import Experiment, Fix
from stoker.diagnose.experiments.gather import gathered_batches
from stoker.diagnose.experiments.reads import WithoutReads
from stoker.diagnose.experiments.table import EXPERIMENTS, FIXES, fix_named
from stoker.diagnose.experiments.workers import batches_by_workers
from stoker.diagnose.hardware import gpu_taken, has_bf16_instructions, pages_so_far
from stoker.diagnose.hooks import DeviceOnlyStep, compiled, cycles_per_second, frames_compiled
from stoker.diagnose.loops import WatchedIterator, batches_of_workers
from stoker.diagnose.measurements import Device, Machine, Measurements, WhatIf
from stoker.diagnose.ops import Counting, Profiling, main_precision, with_times, work_of
from stoker.diagnose.profilers import OtherThreads, Sampler
from stoker.diagnose.rare import Periods, slow_of
from stoker.diagnose.recorder import StepSeries, by_window, median_phases
from stoker.diagnose.rule import conclude, disturbed
from stoker.diagnose.session import CACHED, REAL, Plan, Session, StepInput
from stoker.diagnose.sizes import differ
from stoker.diagnose.thresholds import RULE
from stoker.train.graph import eager_steps

BASELINE_STEPS = 12
RANKED_WARM_UP = 10  # steps of a warm-up where several processes must make the same number
SHORT_STEP = 8e-3  # below it, hooks cost more than half a per cent of a step
FAR_SLOWER = 3.0  # times the best step from which one step tells that threads are too many or too few
FAR_SLOWER_SECONDS = 1.0  # and its length from which one is enough
DEVICE_STEPS = 5
PROFILED_STEPS, PROFILED_SECONDS = 5, 1.5
MOST_BATCHES = 100
RARE_STEPS = 2  # rare steps whose lines are sampled
FIX_SECONDS: dict[Device, float] = {"cpu": 0.1, "cuda": 0.15}  # of one window with a fix, or without it
FIX_ROUNDS: dict[Device, int] = {"cpu": 5, "cuda": 4}  # short windows in turn: processors change their speed for parts of a second
LEAST_ROUNDS = 2  # of a suspect, however long steps are
MORE_SECONDS: dict[Device, float] = {"cpu": 3.0, "cuda": 1.2}  # of one fix: more rounds until then, unless its gain is sure
NO_GAIN = 0.03  # share of a step that all suspects together must save for each to be removed alone
SURE_GAIN = 0.06  # two standard errors of a gain that is sure
MANY_SIZES = "Batches differ in size: the same batches were measured with and without each suspect, and brought to the usual size."


def warm_up(session: Session) -> Plan:
    """Run steps until the queue of a loader is empty and step times have settled."""
    session.caching = session.can_cache and not session.can_repeat  # else batches are cached when they are needed
    early, seen = session.recorder.early, list[float]()
    least = max(3, session.queue + 1)
    if session.ranks is not None:
        for _ in range(max(RANKED_WARM_UP, least)):
            early.append((yield REAL))
    else:
        while len(seen) < 60:
            times = yield REAL
            early.append(times)
            seen.append(times.seconds)
            if len(seen) >= least and sum(seen[1:]) > 4.0:
                break
            if len(seen) >= max(least, 6) and (session.device == "cpu" or sum(seen[1:]) > 1.0):  # a GPU raises its clock
                before, after = statistics.median(seen[-6:-3]), statistics.median(seen[-3:])
                if abs(before - after) <= 0.1 * max(before, after):
                    break
        yield REAL
    session.caching = False
    session.sized = session.ranks is None and session.can_cache and differ(session.early_bytes)
    if session.sized:
        session.recorder.notes.append(MANY_SIZES)


def phases(session: Session) -> Plan:
    """Time the phases of a step. Only short steps have a window for this alone, because hooks cost time."""
    # It comes first, so that the first losses are seen.
    recorder = session.recorder
    early, one_batch = recorder.early[-6:], max(recorder.batches_per_step, default=1) <= 1
    may_be = session.sources.training is not None and one_batch
    session.short_steps = bool(session.agree(may_be and statistics.median(times.seconds for times in early) < SHORT_STEP))
    short = statistics.median(times.without_data for times in early) < SHORT_STEP
    session.short_cached_steps = bool(session.agree(session.short_steps or (may_be and short and session.device == "cpu")))
    if session.short_steps:
        yield from session.record(REAL, 0.5, BASELINE_STEPS, recorder.phased)


def baseline(session: Session, *, seconds: float, least: int, periods: Periods | None = None) -> Plan:
    """T: the loop unchanged; with `periods` until rare steps were seen often enough."""
    if session.short_steps:
        session.hooks.pause()
    if session.endless or session.short_steps:
        yield from session.skip(REAL, session.queue + 1)
    yield from _record(session, REAL, seconds, least, session.recorder.loop, periods)


def rare_steps(session: Session) -> Plan:
    """T again if rare steps were seen since the first window and their share of the time is not known yet."""
    recorder = session.recorder
    known, elsewhere = (
        recorder.slow_steps(bursts=session.queue > 0),
        slow_of([step.without_data for step in recorder.cached.steps]),
    )
    share = max((slow.share for slow in (known, elsewhere) if slow is not None), default=0.0)
    if share >= RULE.rare_min_share and (known is None or len(known.at) <= 2) and session.ranks is None:
        yield from baseline(session, seconds=0.4, least=4, periods=periods_for(session, expected=True))


def periods_for(session: Session, *, expected: bool = False) -> Periods:
    """How long a window waits for rare steps."""
    return Periods(until_ns=now_ns() + int(session.patience * 1e9), expected=expected)


def without_data(session: Session, *, seconds: float, least: int) -> Plan:
    """C: the loop with cached batches."""
    session.cache_batches()
    if session.has_short_steps(CACHED):
        session.hooks.pause()
    yield from session.skip(CACHED, 1)
    cached, least = session.recorder.cached, len(session.batches) if session.sized else least
    yield from _record(session, CACHED, 0.0 if session.sized else seconds, least, cached)
    if session.sized:  # each batch of the window before once
        session.recorder.batch_times.add([step for step in cached.windows[-1] if not step.new_epoch])


def with_core(session: Session) -> Plan:
    """T and C again without the time in which other programs had the core, and all windows after them: for the likely cause."""
    recorder, loop, cached = session.recorder, StepSeries(), StepSeries()
    session.hooks.clock = TimeWithCore()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a thread of a step that waits for a core makes the loop wait, too
    try:
        # The program may end before its lines have a longer window. Samples interrupt a sleep, and waits in it are not the loop's.
        with Sampler(session.hooks) as sampler:
            yield from session.record(REAL, 0.3, 4, StepSeries())
        recorder.blames = sampler.blames()
        yield from _record(session, REAL, 1.0, BASELINE_STEPS, loop, periods_for(session))
        if session.batches:
            yield from session.skip(CACHED, 1)
            yield from _record(session, CACHED, 0.7, len(session.batches), cached)
    finally:
        torch.set_num_threads(threads)
        if len(loop.steps) >= RULE.min_steps:  # steps are compared by one clock
            recorder.loop, recorder.cached, recorder.phased = loop, cached, StepSeries()


def _record(
    session: Session, step_input: StepInput, seconds: float, least: int, series: StepSeries, periods: Periods | None = None
) -> Plan:
    """Record a window together with its waits for cores, and the memory pages it got from the system."""
    recorder, frames = session.recorder, frames_compiled()
    series.begin_window()
    waiting, threads, pages = RunQueueDelay(), OtherThreads(), pages_so_far()
    yield from session.record(step_input, seconds, least, series, extend=periods.go_on if periods is not None else None)
    kind, steps = "cached" if step_input.cached else "loop", len(series.pieces()[-1])
    if steps:
        recorder.pages.setdefault(kind, []).append((pages_so_far() - pages) / steps)
    if steps and not step_input.cached:
        recorder.recompiled += frames_compiled() - frames
        asleep, busiest = threads.end()
        recorder.asleep.append(asleep)
        recorder.busy_threads.extend([busiest] if busiest is not None else [])
    recorder.add_waiting(waiting)
    session.hooks.unpause()


def apart(session: Session, ranks: MeasuredRanks, *, seconds: float) -> Plan:
    """The baseline without the all-reduce."""
    recorder = session.recorder
    ranks.part(session.hooks.roots)
    yield from session.skip(REAL, 1)
    recorder.apart.begin_window()
    waiting, before = RunQueueDelay(), ranks.collective_ns
    yield from session.record(REAL, seconds, 3, recorder.apart)
    ranks.join()
    (waited_ns, spent_ns), in_collectives = waiting.end(), (ranks.collective_ns - before) / 1e9
    if waited_ns is not None and not in_collectives:  # threads of collectives that the program calls need cores, too
        recorder.waited_apart.append(waited_ns / spent_ns)
    recorder.collective_seconds.append(in_collectives / max(1, len(StepSeries(recorder.apart.windows[-1]).steps)))


def other_threads(session: Session) -> Plan:
    """The loop without its data, with other numbers of threads."""
    step_input, known = session.without_data, session.recorder.by_threads
    given, cores = torch.get_num_threads(), session.recorder.cores
    wanted = sorted({1, max(1, cores // 2), cores, given})
    if len(wanted) < 2:
        return
    usual = statistics.median([step.without_data for step in session.recorder.loop.steps] or [math.inf])
    try:
        for number in (*wanted, *reversed(wanted)):  # again in reverse, because processors change their speed
            far_slower = FAR_SLOWER * min(known.values(), default=usual)
            if number != given and known.get(number, 0.0) > far_slower:
                continue  # threads that wait for one without a core can take a hundred times as long
            torch.set_num_threads(number)
            first = (yield step_input).without_data
            if number != given and first > max(FAR_SLOWER_SECONDS, far_slower):
                known[number] = first
                continue  # one such step is enough; a short one may have started the threads
            series = StepSeries()
            yield from session.record(step_input, 0.15, 3, series)
            if series.steps:
                seconds = statistics.median(step.without_data for step in series.steps)
                known[number] = min(seconds, known.get(number, seconds))
    finally:
        torch.set_num_threads(given)


def loader_alone(session: Session, *, seconds: float) -> None:
    """D: one batch after the other, after the queue has been emptied."""
    watched = session.watched
    if watched is None:
        return
    for _ in range(session.queue + 1):
        _pull(watched)
    times: list[float] = []
    session.recorder.loader_alone.append(times)
    begin, count = now_ns(), 0
    while count < 200 and (count < 4 or now_ns() - begin < session.scaled(seconds) * 1e9):
        spent, same_pass = _pull(watched)
        if same_pass:
            times.append(spent)
        count += 1


def _pull(watched: WatchedIterator) -> tuple[float, bool]:
    """Seconds to make a batch and free it, and whether it was one of the same pass."""
    start = now_ns()
    try:
        next(watched.iterator)
    except StopIteration:
        watched.restart()
        next(watched.iterator)
        return (now_ns() - start) / 1e9, False
    return (now_ns() - start) / 1e9, True


def profile_batches(session: Session) -> None:
    """Find the lines that make a batch: with workers, which cannot be sampled, by making some in this process."""
    source, recorder = session.sources.training, session.recorder
    if source is None or not source.gives_batches:
        return
    loader, count, begin = source.loader, 0, now_ns()
    if loader is None or not loader.num_workers:
        # A list has all batches, and a feed has threads of its own.
        does_work = loader is not None or type(source.iterable).__module__.split(".")[0] not in ("builtins", "stoker")
        recorder.batch_lines = recorder.blames.get("next", []) if does_work else []
        return
    batches = batches_of_workers(loader, 0)
    try:
        with Sampler() as sampler:
            while count < 2 or (count < MOST_BATCHES and now_ns() - begin < session.scaled(0.5) * 1e9):
                next(batches)
                count += 1
    except Exception as error:  # the user's: a dataset may need what only its workers have
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        recorder.notes.append(f"The dataset works only in its workers ({reason}), so making a batch could not be profiled.")
        return
    recorder.batch_lines, recorder.batch_seconds = sampler.of_phase(), (now_ns() - begin) / 1e9 / count


def lines(session: Session) -> Plan:
    """The user's lines that take the time, by phase."""
    yield from session.skip(REAL, session.queue + 1 if session.can_cache else 0)
    slow = session.recorder.slow_steps(bursts=session.queue > 0)
    # Half way between the two kinds of steps, because sampling takes time, too.
    limit = (slow.others + slow.seconds) / 2 if slow is not None else math.inf
    until_ns = now_ns() + int(session.patience * 1e9)
    wanted = RARE_STEPS if slow is not None and slow.share >= RULE.rare_min_share else 0
    with Sampler(session.hooks, slow_from=limit) as sampler:

        def extend(last: float, others: object) -> bool:
            return sampler.num_slow < wanted and now_ns() < until_ns

        yield from session.record(REAL, 1.2, 4, StepSeries(), each=sampler.end_step, extend=extend)
    session.recorder.blames = sampler.blames()
    session.recorder.rare_line = sampler.rare_line()


def operations(session: Session) -> Plan:
    """Count the operations of a step."""
    counting = Counting()
    if not compiled():  # compiled code would be compiled again for a mode that sees its operations
        with eager_steps():
            yield StepInput(before=counting.__enter__)
            counting.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    session.recorder.work = work_of(counting)
    if counting.flops:
        session.hooks.precision = main_precision(counting)


def operation_times(session: Session) -> Plan:
    """Time the operations of a step, from a profile."""
    profiling, recorder = Profiling(session.device), session.recorder
    loop = recorder.loop.steps
    seconds = statistics.median(times.seconds for times in loop) if loop else PROFILED_SECONDS
    with eager_steps():
        yield from session.skip(session.without_data, 1)
        # The median of a few, or one step where steps are long.
        for _ in range(int(session.agree(max(1, min(PROFILED_STEPS, int(PROFILED_SECONDS / seconds)))))):
            session.hooks.on_phase = profiling.edge
            yield StepInput(cached=session.can_cache, before=profiling.begin)
            session.hooks.on_phase = None
            profiling.end()
        profiling.close()
    if recorder.work is not None:
        recorder.work = with_times(recorder.work, profiling)


def device_alone(session: Session) -> Plan:
    """G: running a step on the device, with everything removed that makes it wait for the host."""
    recorder, hooks = session.recorder, session.hooks
    everything = EXPERIMENTS["everything"](lambda: hooks.steps) if "everything" in recorder.removed else None
    step_input = CACHED if session.can_cache else REAL
    known = (
        recorder.removed["everything"].with_fix.seconds
        if everything is not None
        else [step.seconds for step in recorder.loop.steps]
    )
    sleep, rate = 1.5 * statistics.median(known or [0.1]), cycles_per_second()
    recorder.gpu_taken = gpu_taken()
    try:
        if everything is not None:
            everything.on(hooks.roots, hooks.optimizer, session.batches)
        yield from session.skip(step_input, 2)
        for _ in range(DEVICE_STEPS):
            step = DeviceOnlyStep(hooks, sleep, rate)
            yield StepInput(cached=step_input.cached, before=step.begin)
            step.end()
            recorder.device_only.append(step)
    finally:
        if everything is not None:
            everything.remove()


def removals(session: Session) -> Plan:
    """Remove each suspect from some steps, in turn with unchanged steps (experiments/)."""
    recorder, hooks = session.recorder, session.hooks
    if session.ranks is not None or session.step_per_batch:  # a step in the user's own process must not fail
        return
    step = recorder.loop.device_step or statistics.median([times.seconds for times in recorder.loop.steps] or [0.0])
    fitting = int(MAX_FIX_SECONDS[session.device] / max(STEPS_PER_ROUND * step, 1e-9))
    rounds = max(LEAST_ROUNDS, min(FIX_ROUNDS[session.device], fitting))
    session.repeats = True  # a program that a stale value breaks is run again without that experiment
    for name, kind in EXPERIMENTS.items():
        if name in session.avoid or (kind.cuda_only and session.device == "cpu") or (compiled() and not kind.keeps_compiled_code):
            continue
        together = recorder.removed.get("everything")
        if together is not None and (session.out_of_time or (gain_of(together) or 0.0) < NO_GAIN):
            break
        experiment = kind.of(hooks, session.sources)
        if session.late:
            break
        yield from fix_gain(session, name, experiment, rounds=rounds)
        if isinstance(experiment, WithoutReads):
            recorder.syncs = experiment.lines()
    session.repeats = False


def fix_gain(session: Session, name: str, fix: Fix, *, rounds: int) -> Plan:
    """Run steps with a suspect removed or a fix, and without, in turn, until the gain is sure; a fix that lasts comes after all others."""
    recorder, hooks, batches = session.recorder, session.hooks, session.batches  # batches are changed in place
    is_removal = isinstance(fix, Experiment)
    changed = REAL if fix.with_data else session.without_data
    plain = REAL if is_removal else CACHED if fix.against_cached else changed
    if session.sized and is_removal:
        changed = plain = CACHED  # the same batches on both sides
    originals, frames, was_finite = list(batches), frames_compiled(), hooks.loss_is_finite()
    without, with_fix, begin = StepSeries(), StepSeries(), now_ns()
    rounds = 1 if fix.lasts else rounds
    # Steps with a fix may be far shorter than those that allow few rounds; of a fix that lasts, no further round makes it surer.
    seconds = FIX_SECONDS[session.device] * max(1.0, FIX_ROUNDS[session.device] / rounds) * (2 if fix.lasts else 1)

    def steps_without() -> Plan:
        yield from session.skip(plain, 2 if plain.cached else 2 + session.queue)
        without.begin_window()
        yield from session.record(plain, seconds, 4, without)

    def so_far() -> WhatIf | None:
        sides = [series.of_usual_batches(recorder.batch_times) if session.sized else series for series in (without, with_fix)]
        before = by_window(sides[0].pieces(with_data=not plain.cached))
        after = by_window(sides[1].pieces(with_data=not changed.cached))
        return WhatIf(as_it_is=before, with_fix=after) if before.seconds and after.seconds else None

    def wants_more() -> bool:
        late = now_ns() - begin > session.scaled(MORE_SECONDS[session.device]) * 1e9
        if late or (what_if := so_far()) is None or session.no_time_for_fixes or fix.lasts:
            return False
        ratios = ratios_of(what_if)
        return len(ratios) < RULE.min_rounds or 2 * error_between(ratios) > SURE_GAIN

    session.fix_on = name
    try:
        if session.has_short_steps(plain) and name != "everything":  # of which the phases are timed, too
            hooks.pause()
        if fix.lasts:
            yield from steps_without()
        for number in itertools.count():
            if number >= rounds and not wants_more():
                break
            batches[:] = fix.on(hooks.roots, hooks.optimizer, originals)
            first = 10 if fix.starts_slowly else 3
            yield from session.skip(changed, first + (0 if changed.cached else max(session.queue, fix.queue)))
            if not fix.used:
                if not fix.fits_if_unused and not is_removal:
                    recorder.unused_fixes[name] = fix.unused_reason
                return
            plain_step = session.device_step
            if session.device == "cuda":  # a window is as many steps as fit, and these may be far shorter than those before
                yield from session.record(changed, 0.0, 4, StepSeries())
            with_fix.begin_window()
            yield from session.record(changed, seconds, 4, with_fix)
            session.device_step = plain_step
            fix.remove()
            batches[:] = originals
            if not fix.lasts:
                yield from steps_without()
    except Exception as error:  # the gain of a fix is worth less than what is known
        recorder.notes.append(f"the gain of {name} could not be measured: {type(error).__name__}: {error}")
        recorder.unused_fixes[name] = f"{type(error).__name__}: {error}"
        return
    finally:
        fix.remove()
        batches[:] = originals
        hooks.unpause()
        session.fix_on = None
    if is_removal and (frames_compiled() != frames or (was_finite and not hooks.loss_is_finite())):
        reason = "torch compiled again" if frames_compiled() != frames else "the loss was no longer finite"
        recorder.notes.append(f"steps without {name} say nothing: {reason}.")
    elif (what_if := so_far()) is not None:
        (recorder.removed if is_removal else recorder.what_ifs)[name] = what_if
        if name == "everything":
            recorder.phases_alone = median_phases(with_fix.steps)


# ---- the plan: all windows in order ----
#
# Until the first window of the baseline has ended, the program computes what it would have computed alone.

MIN_OPTIMIZER_SHARE = 0.03
MAX_FIX_SECONDS: dict[Device, float] = {"cpu": 12.0, "cuda": 5.0}  # after this time no other fix is measured
STEPS_PER_ROUND = 13  # where steps are long: four with a fix, four without, and those that do not count


def measure_all(session: Session) -> Plan:
    """All windows of a diagnosis."""
    ranks = session.ranks = find_ranks()
    yield from warm_up(session)
    session.begin_ns = now_ns()
    # The time limit may come at any moment: next to a thread that holds the interpreter lock, a step takes seconds.
    tell_progress(session)
    yield from phases(session)
    yield from baseline(session, seconds=1.0, least=BASELINE_STEPS, periods=periods_for(session))
    tell_progress(session)
    session.make_endless()
    yield from operations(session)  # before all else: without it a program that ends early has no verdict
    # Taken in turn, because processors change their speed; fewer rounds where each one has queues to fill.
    rounds = 4 if session.device == "cpu" and not session.queue else 2
    for _ in range(rounds):
        if session.can_cache:
            yield from without_data(session, seconds=1.4 / rounds, least=3)
        if session.can_repeat:
            loader_alone(session, seconds=1.2 / rounds)
        if ranks is not None:
            yield from apart(session, ranks, seconds=1.4 / rounds)
        tell_progress(session)
        if session.out_of_time or is_disturbed(session):
            break
        yield from baseline(session, seconds=1.4 / rounds, least=3)
    busy = is_disturbed(session)  # there will be no verdict: what names the likely cause comes first
    yield from rare_steps(session)
    if busy:
        yield from with_core(session)
    if ranks is not None:  # waits for other ranks are known by now, and would hide what a step consists of
        ranks.part(session.hooks.roots)
    yield from lines(session)
    alone = ranks is None and not compiled()  # code is compiled again for another number of threads
    tell_progress(session)
    # A thread that holds the interpreter lock makes steps longer or shorter by far, with any number of threads.
    if not session.out_of_time and session.device == "cpu" and alone and not busy and not waits_for_interpreter(so_far(session)):
        yield from other_threads(session)
    if not busy:
        yield from removals(session)
    if session.device == "cuda":
        yield from device_alone(session)
    profile_batches(session)
    if session.device == "cuda" and ranks is None:
        # After a profile the host starts kernels slower, by three quarters and for good. Where the host is the limit, there is none:
        # what its kernels are matters little.
        if not divide(session.measurements()).host_limits:
            yield from operation_times(session)
        yield from measure_fixes(session)
        return
    if session.late:
        return
    yield from operation_times(session)
    if ranks is not None:  # fixes are chosen by times, and not all ranks would choose the same
        ranks.join()
        return
    if busy:
        yield from removals(session)
        return
    tell_progress(session)
    if not session.out_of_time:
        yield from baseline(session, seconds=0.4, least=4)
    yield from measure_fixes(session)


def so_far(session: Session) -> Measurements:
    """Return what is known, with rates of the machine that are good enough for a choice."""
    cores, threads = session.recorder.cores, torch.get_num_threads()
    return session.measurements(Machine(cores=cores, threads=threads, matmul_flops={}, dispatch_seconds=3e-6))


def tell_progress(session: Session) -> None:
    """Send what is known, in case native code ends the process in a later window."""
    if session.ranks is None:
        session.on_progress(so_far(session))


def is_disturbed(session: Session) -> bool:
    """Whether other programs have had the cores for too long already, on a CPU and in one process."""
    recorder = session.recorder
    if session.device != "cpu" or session.ranks is not None or recorder.waited_ns <= RULE.max_wait_for_cores * recorder.looped_ns:
        return False
    measured = so_far(session)
    return disturbed(measured, divide(measured)) is not None


def fixes_wanted(session: Session, measured: Measurements) -> list[str]:
    """Return the names of fixes that would be advised, or could be, as far as they can be measured in the running program."""
    finding = conclude(measured)
    if finding.verdict == "none":
        return []
    wanted, step = {advice.name for advice in finding.next}, max(measured.loop.median, 1e-9)
    by_threads, best = measured.fewer_threads, best_threads(measured)
    now = by_threads.get(str(measured.machine.threads))
    if best is not None and now is not None and now >= RULE.min_gain * by_threads[str(best)]:
        wanted.add("threads")
    on_device = measured.device_phases.get("optimizer", 0.0) / max(sum(measured.device_phases.values()), 1e-9)
    if max(measured.phases.optimizer / step, on_device) >= MIN_OPTIMIZER_SHARE and not measured.optimizer_fused:
        wanted.add("fused")
    if statistics.fmean(measured.for_pages("loop") or [0.0]) >= RULE.malloc_share * step:
        wanted.add("malloc")
    if (
        finding.verdict in ("compute", "memory")
        and measured.precision == "fp32"
        and measured.device == "cpu"
        and has_bf16_instructions()
    ):
        wanted.add("autocast")
    if measured.device == "cuda" and divide(measured).share("precision") >= RULE.advise_share:  # also where launches come first
        wanted.update(SHORTER_TYPES.get(measured.precision, ()))
    in_process, without = session.recorder.batch_seconds, measured.cached.median if measured.cached is not None else math.inf
    if measured.loader.workers and in_process is not None and in_process + without < step:
        wanted.add("workers")  # none: batches cost less in this process than what workers cost the steps
    has_cached = measured.cached is not None
    fitting = (name for name, kind in FIXES.items() if not kind.caches and (has_cached or not kind.changes_batches))
    return [name for name in fitting if name in wanted]


def variants(session: Session, name: str, measured: Measurements) -> Iterator[Fix]:
    """The ways to measure the fix of this name; none if it does not fit the program or the device."""
    kind = fix_named(name)
    if name == "feed":  # batches gathered at once, in turn with cached ones
        yield from gathered_batches(session)
    elif name == "workers":  # batches of this process, or of worker processes
        yield from batches_by_workers(session, measured)
    elif measured.device == "cuda" or not kind.cuda_only:
        yield kind(value_of(name, measured, conclude(measured).verdict))


def measure_fixes(session: Session) -> Plan:
    """Switch each fix that would be advised on for some steps: predictions are made of that."""
    begin, limit, known = now_ns(), MAX_FIX_SECONDS[session.device], set[str]()
    # Measuring the machine allocates and frees memory, after which a program may find its own sooner: a step of foreach updates
    # then took 3.8 ms and not 9. So what can be measured on a CPU comes before, with rates good enough to choose the fixes.
    for know in (so_far, Session.measurements) if session.device == "cpu" else (Session.measurements,):
        measured = know(session)
        round_seconds = STEPS_PER_ROUND * measured.loop.median
        rounds = max(1, min(FIX_ROUNDS[measured.device], int(limit / 2 / max(round_seconds, 1e-9))))
        first = next((step.name for step in conclude(measured).next), None)
        for name in fixes_wanted(session, measured):
            kind, spent = fix_named(name), (now_ns() - begin) / 1e9
            # In a process of the user's own, a step must not fail, and no change may last.
            if name in (*known, *session.avoid) or (session.step_per_batch and (kind.may_fail or kind.lasts)):
                continue
            # The first fix promises most: it is measured however long its steps are. Others have as many rounds as there is time for.
            unlimited = not known or name == first or kind.lasts or kind.starts_slowly
            fitting = rounds if unlimited else min(rounds, int((limit - spent) / max(round_seconds, 1e-9)))
            if session.no_time_for_fixes or fitting < 1:
                continue
            known.add(name)
            started = now_ns()
            if kind.starts_slowly:
                session.recorder.keep_before_compile()
            yield from _best_gain(session, name, measured, fitting)
            if kind.starts_slowly:
                begin, session.begin_ns = (moment + now_ns() - started for moment in (begin, session.begin_ns))


def _best_gain(session: Session, name: str, measured: Measurements, rounds: int) -> Plan:
    """The gain of a fix: of several variants, that of the best."""
    recorder = session.recorder
    for fix in variants(session, name, measured):
        before = recorder.what_ifs.pop(name, None)
        yield from fix_gain(session, name, fix, rounds=rounds)
        result = recorder.what_ifs.get(name)
        if before is not None and (result is None or statistics.median(ratios_of(before)) <= statistics.median(ratios_of(result))):
            recorder.what_ifs[name] = before
        elif result is not None and name == "workers":
            recorder.fix_values[name] = fix.value or 0
