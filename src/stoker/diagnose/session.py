"""The session: from a running training to `Measurements`, one clean stretch of steps after the other.

It stands at the `next` of the training loop. There it decides, step by step, what the loop gets: the true batch (the loop as it
is), a copy of an earlier one (the loop without its data), or nothing yet, while the loader runs alone. The order of the stretches
is one generator, `_plan`, which reads from top to bottom. The law: until the first stretch of the loop as it is has ended, the
program computes what it would have computed alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sized
from typing import Any

import torch

from stoker.clock import Waiting, now_ns
from stoker.diagnose.boundaries import FORWARD, NEXT, PREPARE, REST, Boundaries, Times, compiled
from stoker.diagnose.copies import copied, num_bytes, num_rows
from stoker.diagnose.cuda import Asleep, Marks, Waits, copy_seconds, cycles_a_second
from stoker.diagnose.ledger import Ledger
from stoker.diagnose.measurements import Device
from stoker.diagnose.plan import CACHED, TRUE, Mode, Plan
from stoker.diagnose.ranks import Ranks, find_ranks
from stoker.diagnose.sampler import Sampler
from stoker.diagnose.stages import profile_loader
from stoker.diagnose.tries.feed import gathering
from stoker.diagnose.tries.fix import Fix
from stoker.diagnose.tries.inside import STRETCH_SECONDS, Inside, fix_inside, fixes_wanted, ordinary_machine
from stoker.diagnose.turns import Turns
from stoker.diagnose.watched import Sources, Watched
from stoker.diagnose.work import Counting, Profiling, main_precision, work_of
from stoker.diagnose.workers import queue_length, wait_for_workers
from stoker.errors import TrainError

CPU_SECONDS, CUDA_SECONDS = 22.0, 12.0
"""From the first measured step: what a verdict may take."""
FIXES_SECONDS = {"cpu": 6.0, "cuda": 1.4}
"""After which no fix is looked at any more."""
CUDA_PACE = 0.6
"""Steps of a GPU vary less, and a verdict is to come sooner."""
CLEAN_STEPS = 12
RANKED_WARM_UP = 10
"""Steps, where several processes must do alike."""
MOST_STEPS = 600
SHORT_STEP = 8e-3
"""Below it, what hooks cost is more than half a per cent of a step."""
PROFILED_STEPS, PROFILED_SECONDS = 5, 1.5
FAR_SLOWER = 3.0
MAX_CACHED_BYTES = 256 << 20
MAX_CACHED = 16


class Session:
    """One diagnosis of one program."""

    def __init__(
        self, *, on_done: Callable[[], None], every_turn: bool = False, pace: float = 1.0, seconds: float | None = None
    ) -> None:
        self.boundaries = Boundaries()
        self.sources = Sources(self.boundaries)
        self.ledger = Ledger()
        self.done = False
        self.failure: Exception | None = None
        self.device: Device = "cpu"
        self._on_done = on_done
        self._pace = pace
        """How long stretches are, as a share of what they usually are."""
        self._seconds = seconds
        """How long measuring may take; by default what a verdict needs."""
        self._every_turn = every_turn
        """Whether each turn of the loop is a step, whatever happens in it."""
        self._taken = False
        """Whether the loop is ours: its epochs do not end any more."""
        self._light = False
        """Whether steps are so short that their times are taken without looking at their phases."""
        self.ranks: Ranks | None = None
        """The processes that train together, if this is one of several."""
        self.what_if: str | None = None
        """The fix that is measured now. What the program raises meanwhile is not its own fault."""
        self._turns: Turns | None = None
        self._device_step: float | None = None
        """Seconds of the last steps on a GPU's timeline."""
        self._mode = TRUE
        self._plan = self._stretches()
        self._watched: Watched | None = None
        self._batches: list[Any] = []
        self._turn_number = 0
        self._nexts = 0
        self._begin_ns = 0

    # ---- until the training loop is known ----

    def install(self) -> None:
        """Begin to listen to the program."""
        self.boundaries.install()
        self.sources.watch_loaders()
        self.boundaries.on_step = self._search

    def remove(self) -> None:
        """Leave the program alone."""
        self._end_turns(None)
        self.boundaries.on_step = self.boundaries.on_edge = None
        self.boundaries.remove()
        self.sources.remove()

    def _search(self) -> None:
        self.ledger.early.append(self.boundaries.take())
        self.ledger.first_ns = self.ledger.first_ns or now_ns()
        if self.boundaries.steps == 1:
            self.boundaries.find_roots()
        if self.sources.choose():
            self.take_control()

    def take_control(self) -> None:
        """The training loop is known: measure from here on."""
        self.boundaries.keep_roots()
        optimizer = self.boundaries.optimizer
        if optimizer is not None and optimizer.param_groups[0]["params"][0].device.type == "cuda":
            self.device = "cuda"
            self._pace *= CUDA_PACE
        self._begin_ns = now_ns()
        self._mode = next(self._plan)
        self.boundaries.on_step = None if self.sources.found is not None else self._end_step
        self.sources.hand_out = self._hand_out
        self.sources.on_turn = self._begin_turn

    # ---- at every turn of the loop ----

    def _hand_out(self, watched: Watched) -> Any:
        boundaries = self.boundaries
        boundaries.switch(NEXT)
        self._watched = watched
        if boundaries.stepped or boundaries.silent or (self._every_turn and self._nexts):
            self._advance()
            if self.done:
                raise StopIteration
        mode = self._mode
        value = self._next_cached() if mode.cached else self._next_true(watched)
        self._nexts += 1
        boundaries.switch(PREPARE if boundaries.finds_forward else FORWARD)
        if mode.before is not None:
            self._begin_step(mode)
        return value

    def _hand_out_turn(self, watched: Watched) -> Any:
        """The same while nothing is looked at but the times of turns."""
        turns, asked = self._turns, now_ns()
        if turns is None or turns.is_over(asked):
            self._end_turns(asked)
            return self._hand_out(watched)
        value = self._next_cached() if turns.cached else self._next_true(watched)
        turns.add(asked, now_ns())
        if self.boundaries.broken:
            self.boundaries.broken = False
            turns.break_off()
        return value

    def _end_turns(self, end_ns: int | None) -> None:
        if self._turns is not None:
            number = self._turns.end(end_ns)
            self.boundaries.steps += number
            self.ledger.batches_a_step += [1] * number
            self._turns, self.sources.hand_out = None, self._hand_out

    def _begin_turn(self) -> None:
        """A `while` loop begins anew."""
        if self.boundaries.stepped or self.boundaries.silent:
            self._advance()
        self.boundaries.switch(PREPARE)
        if self._mode.before is not None:
            self._begin_step(self._mode)

    def _begin_step(self, mode: Mode) -> None:
        if mode.before is not None:
            mode.before()
        self._mode = Mode(cached=mode.cached)  # once a step, also where it has several batches
        self.boundaries.resume()

    def _end_step(self) -> None:
        """An optimizer's step has ended, and there is no loop to be seen."""
        self._begin_turn()

    def _advance(self) -> None:
        times = self.boundaries.take()
        self.boundaries.steps += self.boundaries.silent
        self.ledger.batches_a_step.append(self._nexts)
        self._nexts = 0
        try:
            self._mode = self._plan.send(times)
        except StopIteration:
            self._end(None)
        except Exception as error:  # ours, not the user's: it must not be taken for a fault of the program
            self._end(error)
        self.boundaries.resume()

    def _end(self, failure: Exception | None) -> None:
        self.failure, self.done = failure, True
        self.remove()
        self._on_done()

    def _next_true(self, watched: Watched) -> Any:
        try:
            return next(watched.iterator)
        except StopIteration:
            self.boundaries.broken = True
            if not (self._taken and watched.source.can_repeat):
                self.boundaries.switch(REST)
                raise
            watched.restart()
            return next(watched.iterator)

    def _next_cached(self) -> Any:
        self._turn_number += 1
        # On a GPU the time of a step is that between two marks, so nothing may be copied meanwhile.
        return copied(self._batches[self._turn_number % len(self._batches)], tensors=self.device == "cpu")

    # ---- the stretches ----

    def _stretches(self) -> Plan:
        self.ranks = find_ranks()
        yield from self._warm_up()
        self._begin_ns = now_ns()
        yield from self._phases()
        yield from self._loop(seconds=1.0, least=CLEAN_STEPS)
        self._taken = True
        # Taken in turn, because processors change their speed; not where each turn has queues to fill.
        rounds = 4 if self.device == "cpu" and not self._queue else 2
        for _ in range(rounds):
            if self._can_cache:
                yield from self._cached(seconds=1.4 / rounds, least=3)
            if self._can_repeat:
                self._loader_alone(seconds=1.2 / rounds)
            if self.ranks is not None:
                yield from self._apart(self.ranks, seconds=1.4 / rounds)
            if self._late:
                break
            yield from self._loop(seconds=1.4 / rounds, least=3)
        if self.ranks is not None:  # how the others are waited for is known by now, and would hide what a step consists of
            self.ranks.part(self.boundaries.roots)
        yield from self._blame()
        alone = self.ranks is None and not compiled()  # code is compiled anew for another number of threads
        if not self._late and self.device == "cpu" and alone:
            yield from self._threads()
        yield from self._work()
        if self.device == "cuda":
            yield from self._device_alone()
            self._copies_alone()
        self._look_into_loader()
        if self.ranks is not None:  # fixes are chosen by times, and not all processes would choose alike
            self.ranks.join()
            return
        if not self._late:
            yield from self._loop(seconds=0.4, least=4)
        yield from self._what_ifs()
        self.ledger.seconds = (now_ns() - self._begin_ns) / 1e9

    def _warm_up(self) -> Plan:
        """Until the queue of a loader is empty and the times of steps have settled."""
        seen: list[float] = []
        least = max(3, self._queue + 1)
        if self.ranks is not None:
            for _ in range(max(RANKED_WARM_UP, least)):
                self.ledger.early.append((yield TRUE))
            return
        while len(seen) < 60:
            times = yield TRUE
            self.ledger.early.append(times)
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

    def _phases(self) -> Plan:
        """How a step divides. Steps that are short have a stretch for this alone, because looking costs; it comes first, so that
        the first losses are seen."""
        early = [one.seconds for one in self.ledger.early[-6:]]
        turns = self.ledger.batches_a_step
        light = self.sources.found is not None and statistics.median(early) < SHORT_STEP and max(turns, default=1) <= 1
        self._light = bool(self._agree(light))
        if self._light:
            yield from self._steps(TRUE, 0.5, CLEAN_STEPS, self.ledger.phased)

    def _loop(self, *, seconds: float, least: int) -> Plan:
        """T: the loop as it is."""
        if self._light:
            self.boundaries.silence()
        if self._taken or self._light:
            yield from self._settle(TRUE, self._queue + 1)
        waiting = self._begin(self.ledger.loop)
        yield from self._steps(TRUE, seconds, least, self.ledger.loop)
        self.ledger.add_waiting(waiting)
        self.boundaries.listen()

    def _cached(self, *, seconds: float, least: int) -> Plan:
        """C: the loop with its data for nothing."""
        self._collect()
        wait_for_workers(self._loader_iterator)
        if self._light:
            self.boundaries.silence()
        yield from self._settle(CACHED, 1)
        waiting = self._begin(self.ledger.cached)
        yield from self._steps(CACHED, seconds, least, self.ledger.cached)
        self.ledger.add_waiting(waiting)
        self.boundaries.listen()

    def _apart(self, ranks: Ranks, *, seconds: float) -> Plan:
        """The loop as it is, but for the exchange with other processes."""
        ranks.part(self.boundaries.roots)
        yield from self._settle(TRUE, 1)
        ledger = self.ledger
        ledger.begin(ledger.apart)
        exchanged, number = ranks.exchanged_ns, len(ledger.apart)
        yield from self._steps(TRUE, seconds, 3, ledger.apart)
        ledger.exchanged.append((ranks.exchanged_ns - exchanged) / 1e9 / max(1, len(ledger.apart) - number))
        ranks.join()

    def _agree(self, value: float) -> float:
        """The same for all processes of a training."""
        return value if self.ranks is None else self.ranks.agree(float(value))

    def _agreed_steps(self, seconds: float, least: int) -> int | None:
        """How many steps a stretch has, where several processes must have the same number; None where time decides."""
        if self.ranks is None:
            return None
        recent = statistics.median(one.seconds for one in (self.ledger.loop or self.ledger.early)[-6:])
        return int(self._agree(max(least, min(MOST_STEPS, seconds * self._pace // max(recent, 1e-6)))))

    def _begin(self, into: list[Times]) -> Waiting:
        self.ledger.begin(into)
        return Waiting()

    def _settle(self, mode: Mode, number: int) -> Plan:
        for _ in range(number):
            yield mode

    def _steps(self, mode: Mode, seconds: float, least: int, into: list[Times]) -> Plan:
        agreed = self._agreed_steps(seconds, least)
        if agreed is not None:
            seconds, least = 0.0, agreed
        if self.boundaries.silent and self.device == "cpu" and self._watched is not None:
            self._turns = Turns(into, seconds=seconds * self._pace, least=least, most=agreed or MOST_STEPS, cached=mode.cached)
            self.sources.hand_out = self._hand_out_turn
            yield mode  # a step that is not counted, and then all that are
            return
        begin, count, tries = now_ns(), 0, 0
        marks = Marks() if self.device == "cuda" else None
        most = MOST_STEPS
        if marks is not None and self._device_step:  # the host is steps ahead of the device, and its clock says little
            most = max(least, round(seconds * self._pace / self._device_step))
        while (count if agreed is None else tries) < least or now_ns() - begin < seconds * self._pace * 1e9:
            times = yield mode
            tries += 1
            # A step at whose begin an epoch ended is another one, unless nearly all are so.
            counts = not times.broken or (tries > 2 * least and 4 * count < tries)
            if marks is not None:
                marks.add(whole=counts)
            if counts:
                into.append(times)
                count += 1
            if agreed is None and (count >= most or tries > 40 + 4 * least + 2 * count):
                break
        if marks is not None:
            spent = marks.seconds()
            self.ledger.on_device.setdefault(id(into), []).extend(spent)
            self._device_step = statistics.median(spent) if spent else None

    def _loader_alone(self, *, seconds: float) -> None:
        """D: batches one after the other, the queue thrown away first."""
        watched = self._watched
        if watched is None:
            return
        for _ in range(self._queue + 1):
            self._pull(watched)
        self.ledger.begin(self.ledger.loader_alone)
        begin, count = now_ns(), 0
        while count < 200 and (count < 4 or now_ns() - begin < seconds * self._pace * 1e9):
            spent, whole = self._pull(watched)
            if whole:
                self.ledger.loader_alone.append(spent)
            count += 1

    def _pull(self, watched: Watched) -> tuple[float, bool]:
        start = now_ns()
        try:
            next(watched.iterator)
        except StopIteration:
            watched.restart()
            next(watched.iterator)
            return (now_ns() - start) / 1e9, False
        return (now_ns() - start) / 1e9, True

    def _blame(self) -> Plan:
        """The user's lines, by phase."""
        yield from self._settle(TRUE, self._queue + 1 if self._can_cache else 0)
        with Sampler(self.boundaries) as sampler:
            yield from self._steps(TRUE, 1.2, 4, [])
        self.ledger.blames = sampler.blames()

    def _threads(self) -> Plan:
        """The loop without its data, with other numbers of threads."""
        mode = CACHED if self._can_cache else TRUE
        given, cores = torch.get_num_threads(), self.ledger.cores
        wanted = sorted({1, max(1, cores // 2), cores, given})
        if len(wanted) < 2:
            return
        try:
            for number in (*wanted, *reversed(wanted)):  # once more backwards, because processors change their speed
                known = self.ledger.by_threads
                if number != given and known.get(number, 0.0) > FAR_SLOWER * min(known.values(), default=0.0):
                    continue  # threads that wait for one that has no core can take a hundred times as long
                torch.set_num_threads(number)
                yield from self._settle(mode, 1)
                steps: list[Times] = []
                yield from self._steps(mode, 0.15, 3, steps)
                if steps:
                    seconds = statistics.median(one.without_data for one in steps)
                    self.ledger.by_threads[number] = min(seconds, self.ledger.by_threads.get(number, seconds))
        finally:
            torch.set_num_threads(given)

    def _work(self) -> Plan:
        """What a step consists of, counted."""
        counting, profiling = Counting(), Profiling(self.device)
        if not compiled():  # such code would be compiled anew for a mode that looks at its operations
            yield Mode(cached=self._can_cache, before=counting.__enter__)
            counting.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        yield from self._settle(CACHED if self._can_cache else TRUE, 1)
        for _ in range(int(self._agree(self._profiled_steps))):
            self.boundaries.on_edge = profiling.edge
            yield Mode(cached=self._can_cache, before=profiling.begin)
            self.boundaries.on_edge = None
            profiling.end()
        profiling.close()
        self.ledger.work = work_of(counting, profiling)
        if counting.flops:
            self.boundaries.precision = main_precision(counting)

    def _device_alone(self) -> Plan:
        """H, G and S: issuing a step, running it, and waiting within it."""
        cached, ledger = self._can_cache, self.ledger
        for _ in range(7):
            times = yield Mode(cached=cached, before=torch.cuda.synchronize)
            ledger.host_issue.append(times.without_data)
        sleep = 2.5 * statistics.median(ledger.host_issue)
        speed = cycles_a_second()
        rounds: list[Asleep] = []
        for _ in range(7):
            asleep = Asleep(self.boundaries, sleep, speed)
            yield Mode(cached=cached, before=asleep.begin)
            asleep.end()
            rounds.append(asleep)
        ledger.sleeps = rounds
        waits = Waits()
        for _ in range(3):
            yield Mode(cached=cached, before=waits.begin)
            waits.end()
        ledger.syncs = waits.syncs()

    def _copies_alone(self) -> None:
        """X: several distinct batches, again and again."""
        optimizer = self.boundaries.optimizer
        if optimizer is not None and self._batches:
            self.ledger.copies = copy_seconds(self._batches, optimizer.param_groups[0]["params"][0].device)

    def _look_into_loader(self) -> None:
        """Which part of making a batch takes the time."""
        source = self.sources.found
        if source is None or source.loader is None:
            return
        try:
            self.ledger.profile = profile_loader(source.loader, seconds=0.5 * self._pace)
        except Exception as error:  # the user's: a dataset may need what only its workers have
            if not source.loader.num_workers:
                raise
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.ledger.notes.append(f"The dataset works in its workers only ({told}), so making a batch could not be looked into.")

    def _what_ifs(self) -> Plan:
        """Fixes, each switched on for some steps: predictions are made of that. All else is known by now."""
        inside = Inside(
            settle=self._settle,
            steps=self._steps,
            ledger=self.ledger,
            boundaries=self.boundaries,
            batches=self._batches,
            mode=CACHED if self._can_cache else TRUE,
            seconds=STRETCH_SECONDS[self.device],
            light=self._light,
            queue=self._queue,
        )
        begin = now_ns()
        seen: set[str] = set()
        # To measure the machine takes memory and gives it back, after which a program may find its own sooner: a step of foreach
        # updates then took 3.8 ms and not 9. So what can be looked at on a CPU comes before.
        for machine in [ordinary_machine(self.ledger.cores), None] if self.device == "cpu" else [None]:
            measured = self.ledger.measurements(self.sources, self.boundaries, self.device, machine)
            for name in fixes_wanted(measured):
                fix = fix_inside(name, measured)
                late = self._late or (now_ns() - begin) / 1e9 > FIXES_SECONDS[self.device]
                if late or name in seen or (fix is not None and self._every_turn and fix.may_fail):
                    continue
                seen.add(name)
                if name == "feed":
                    yield from self._gathered(inside)
                elif fix is not None:
                    self.what_if = name
                    yield from inside.measure(name, fix, rounds=1 if self.device == "cuda" else 2)
                    self.what_if = None

    def _gathered(self, inside: Inside) -> Plan:
        """The loop with batches that are gathered at once, in turn with batches that cost nothing."""
        watched, found, size = self._watched, self.sources.found, self.ledger.batch_rows
        if watched is None or found is None or not size or not self._can_repeat:
            return
        dataset = found.loader.dataset if found.loader is not None else ()
        rows = len(dataset) if isinstance(dataset, Sized) and len(dataset) else MAX_CACHED * size
        gathered = gathering(self._batches, rows, size)
        if gathered is not None:
            kept, watched.iterator = watched.iterator, gathered
            try:
                yield from inside.measure("feed", Fix(), modes=(CACHED, TRUE), rounds=2)
            finally:
                watched.iterator = kept

    # ---- what is known ----

    def _collect(self) -> None:
        """Keep copies of several distinct batches."""
        watched = self._watched
        while watched is not None and len(self._batches) < MAX_CACHED:
            self._pull_into(watched)
            if num_bytes(self._batches) > MAX_CACHED_BYTES:
                break

    def _pull_into(self, watched: Watched) -> None:
        try:
            batch = next(watched.iterator)
        except StopIteration:
            if not watched.source.can_repeat:
                raise TrainError("the batches came to an end while they were looked at.") from None
            watched.restart()
            batch = next(watched.iterator)
        self._batches.append(copied(batch))
        self.ledger.batch_bytes.append(num_bytes(batch))
        self.ledger.batch_rows = num_rows(batch)

    @property
    def _can_cache(self) -> bool:
        found = self.sources.found
        return found is not None and found.iterable is not None and found.gives_batches

    @property
    def _can_repeat(self) -> bool:
        found = self.sources.found
        return found is not None and found.gives_batches and found.can_repeat

    @property
    def _profiled_steps(self) -> int:
        """The median of a few, or one where steps are long."""
        seconds = statistics.median(one.seconds for one in self.ledger.loop) if self.ledger.loop else PROFILED_SECONDS
        return max(1, min(PROFILED_STEPS, int(PROFILED_SECONDS / seconds)))

    @property
    def _loader_iterator(self) -> Any:
        return self._watched.iterator if self._watched is not None else None

    @property
    def _queue(self) -> int:
        found = self.sources.found
        return queue_length(found.loader) if found is not None else 0

    @property
    def _late(self) -> bool:
        limit = CPU_SECONDS if self.device == "cpu" else CUDA_SECONDS
        return bool(self._agree(now_ns() - self._begin_ns > (limit if self._seconds is None else self._seconds) * 1e9))
