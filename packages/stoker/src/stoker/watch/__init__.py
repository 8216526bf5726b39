"""A watch on a training loop, always on: slowdowns with their causes. `stoker.watch` is the function of this module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stoker.watch.loop import Watch

T = TypeVar("T")


def watch(
    batches: Iterable[T] | None = None,
    *,
    report: Callable[[str], object] | None = None,
    size: Callable[[T], float] | None = None,
) -> Watch[T]:
    """Watch a training loop: its speed, its waits for data, and slowdowns with their causes. The batches are unchanged.

    A lasting slowdown of 10 % is found within 100 steps, if step times scatter by at most 5 %.

    Args:
        batches: A loader or another iterable of batches. Without it, call the method `step` of the watch after each step.
        report: Called with a line when a slowdown is found, and with a summary at the end of each pass; for example `print` or a
            method of a logger.
        size: Called with each batch; returns its size, such as its number of tokens. Steps are then compared with those of batches of
            about the same size. Use it where batches differ in size. It should not wait for a GPU: shapes are known, values are not.

    Returns:
        An iterable of the same batches. `slowdowns` has the slowdowns found; `print` it to see how much of the time waits.

    Example:
        >>> import stoker
        >>> with stoker.watch([1, 2, 3]) as watched:
        ...     for batch in watched:
        ...         pass
        >>> watched.steps
        3
    """
    from stoker.watch.loop import Watch

    return Watch(batches, report, size=size)
