"""The tally: the counts of a user's program, unchanged, in one child process.

It is the child of a diagnosis that measures no time: behind a warm-up it counts some steps, and ends the program. A step ends when
the optimizer's step has ended; where there are several optimizers, it is that of the one that ended the warm-up.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec
import torch

from stoker.diagnose.budget import usual_of
from stoker.diagnose.child import Child, one_line
from stoker.diagnose.counts import Counts, StepCounter
from stoker.diagnose.gate import TallyAnswer, TallyRequest
from stoker.diagnose.session import Session
from stoker.errors import StokerError


class TallySession(Session):
    """A session that counts, and leaves the loop as it is."""

    def __init__(self, *, on_done: Callable[[], None], warmup: int, steps: int) -> None:
        super().__init__(on_done=on_done)
        self.counted: list[Counts] = []
        self.counter: StepCounter | None = None
        self._warmup = warmup
        self._wanted = steps
        self._optimizer: torch.optim.Optimizer | None = None

    def install(self) -> None:
        """Begin to listen to the program."""
        self.training.boundaries.install()
        self.training.boundaries.on_step = self._count

    def remove(self) -> None:
        """Leave the program alone."""
        self._stop()
        super().remove()

    def _count(self) -> None:
        boundaries = self.training.boundaries
        if self.counter is None:
            if boundaries.steps < self._warmup:
                return
            self._optimizer = boundaries.optimizer
            self.counter = StepCounter()
            self.counter.__enter__()
        elif boundaries.optimizer is self._optimizer:
            self.counted.append(self.counter.take())
            if len(self.counted) == self._wanted:
                self._stop()
                self._on_done()

    def _stop(self) -> None:
        if self.counter is not None and self.counter.entered:
            self.counter.__exit__(None, None, None)

    def answer(self) -> TallyAnswer:
        """What was counted."""
        lines = self.counter.lines if self.counter is not None else {}
        device = self.counter.device if self.counter is not None else "cpu"
        return TallyAnswer(run=usual_of(self.counted, device=device, torch=str(torch.__version__)), lines=lines)


class Tally(Child):
    """The process of one program that is counted."""

    def __init__(self, request: TallyRequest, connection: Connection) -> None:
        super().__init__(request, connection)
        self._tally = TallySession(on_done=self._done, warmup=request.warmup, steps=request.steps)
        self.session = self._tally

    def _end(self, failure: str | None) -> NoReturn:
        try:
            self._scratch.remove()
            self.session.remove()
            answer = self._tally.answer() if failure is None else TallyAnswer(error=f"{failure}.")
        except StokerError as error:
            answer = TallyAnswer(error=f"{self._request.program}: {error}")
        except Exception as error:
            traceback.print_exception(error)
            answer = TallyAnswer(error=f"{self._request.program} could not be counted: {type(error).__name__}: {one_line(error)}")
        self._leave_with(answer)


def main(arguments: list[str]) -> NoReturn:
    """Run the request that the command line holds."""
    connection = Connection(int(arguments[0]), readable=False)
    Tally(msgspec.json.decode(arguments[1], type=TallyRequest), connection).run()
