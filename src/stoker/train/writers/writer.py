"""What a writer can do, and how training is kept safe from one that fails."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Protocol

from stoker.errors import OptionError


class Writer(Protocol):
    """Takes the numbers of a run as they come."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of one step; steps do not go back."""

    def close(self) -> None:
        """Put away what is still held; nothing comes after."""


class Writers:
    """Several writers as one that never raises: a writer that fails is dropped, with one warning that says why."""

    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers = list(writers)
        for writer in self._writers:
            if (
                isinstance(writer, type)
                or not callable(getattr(writer, "write", None))
                or not callable(getattr(writer, "close", None))
            ):
                raise OptionError(
                    f"writers holds {writer!r}; expected what has write(step, values) and close(), such as TensorBoard(…)."
                )

    def __len__(self) -> int:
        return len(self._writers)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Give the numbers to each."""
        for writer in list(self._writers):
            try:
                writer.write(step, values)
            except Exception as error:  # whatever a writer does, it is not worth a training
                self._writers.remove(writer)
                _warn(writer, error, f"at step {step:,}; it gets no more numbers")

    def close(self) -> None:
        """Close each."""
        for writer in self._writers:
            try:
                writer.close()
            except Exception as error:
                _warn(writer, error, "as it was closed; its last numbers may be missing")
        self._writers.clear()


def _warn(writer: Writer, error: Exception, when: str) -> None:
    reason = " ".join(str(error).split()) or "no reason given"
    warnings.warn(f"writer {type(writer).__name__} failed {when}. {type(error).__name__}: {reason}", RuntimeWarning, stacklevel=4)
