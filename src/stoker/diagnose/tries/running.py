"""A trial that runs, as the process sees it that compares: it warms up, gives stretches of steps when asked, and is ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path

import msgspec

from stoker.diagnose.measurements import Stretch
from stoker.diagnose.scripts import scratch_for, start_child
from stoker.diagnose.tries.trial import START, Measured, Outcome, TrialRequest
from stoker.errors import TrainError


class Running:
    """One process. What goes wrong in it is told in its outcome, not raised."""

    def __init__(
        self,
        program: str | Path,
        arguments: Sequence[str] = (),
        *,
        fix: str | None = None,
        value: int | None = None,
        module: bool = False,
        quiet: bool = False,
        limit_seconds: float,
    ) -> None:
        self._limit = limit_seconds
        self._name = str(program)
        self._outcome: Outcome | None = None
        self._open = contextlib.ExitStack()
        folder = self._open.enter_context(scratch_for(program, module=module))
        self._connection, other = Pipe()
        self._open.enter_context(self._connection)
        words = [str(one) for one in arguments]
        request = TrialRequest(program=self._name, module=module, arguments=words, scratch=str(folder), fix=fix, value=value)
        with other:
            self._child = start_child(request, START, other.fileno(), quiet=quiet)

    def is_ready(self) -> bool:
        """Wait until it has warmed up; False where it has ended."""
        return self._outcome is None and self._receive() is not None

    def stretch(self, seconds: float) -> Stretch | None:
        """Some steps; None where it has ended."""
        if self._outcome is not None:
            return None
        self._send(seconds)
        measured = self._receive()
        return Stretch(seconds=measured.seconds) if measured is not None else None

    def end(self) -> Outcome:
        """End it, and tell what came of it."""
        while self._outcome is None:
            self._send(0.0)
            self._receive()
        return self._outcome

    def _send(self, seconds: float) -> None:
        with contextlib.suppress(OSError):  # it has ended, and says why
            self._connection.send_bytes(msgspec.msgpack.encode(seconds))

    def _receive(self) -> Measured | None:
        try:
            if not self._connection.poll(self._limit):
                raise TrainError(f"{self._name} took more than {self._limit:,.0f} s and was stopped.")
            told: Measured | Outcome = msgspec.msgpack.decode(self._connection.recv_bytes(), type=Measured | Outcome)
        except (EOFError, OSError):
            told = Outcome(error=f"{self._name} ended with code {self._child.wait()} before anything was measured.")
        except TrainError as error:
            told = Outcome(error=str(error))
        except BaseException:
            self._close()
            raise
        if isinstance(told, Measured):
            return told
        self._outcome = told
        self._close()
        return None

    def _close(self) -> None:
        self._open.close()
        if self._child.poll() is None:
            with contextlib.suppress(TimeoutError):
                self._child.terminate()
        self._child.wait()
