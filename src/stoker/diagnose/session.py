"""The session: from a running training to `Measurements`, one clean stretch of steps after the other.

It stands at the `next` of the training loop. There it decides, step by step, what the loop gets: the true batch (the loop as it
is), a copy of an earlier one (the loop without its data), or nothing yet, while the loader runs alone. What comes when is said by
its plan, which is sent the times of each step: `stretches.course`, unless a kind of session has another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.clock import now_ns
from stoker.diagnose.boundaries import FORWARD, NAMES, NEXT, PREPARE, REST, Times
from stoker.diagnose.copies import copied
from stoker.diagnose.plan import TRUE, Mode, Plan
from stoker.diagnose.sampler import Sampler
from stoker.diagnose.steps import Steps
from stoker.diagnose.stretches.course import course
from stoker.diagnose.training import Training
from stoker.diagnose.turns import Turns
from stoker.diagnose.watched import Watched
from stoker.errors import TrainError

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
