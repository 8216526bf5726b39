"""What the attacks share: try each attempt, say what came of it, and count those that succeeded."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from stoker.errors import StokerError

Attempts = Callable[[Path], Iterator[tuple[str, Callable[[], object]]]]
"""From an empty folder to what is tried, in words, and the function that tries it and returns what it got."""

SECONDS = 60


class Survived(Exception):
    """The attempt was not refused, and did no harm."""


def run(attempts: Attempts) -> int:
    """Make all attempts; the number of those that succeeded."""
    succeeded = 0
    signal.alarm(SECONDS)  # an attempt that hangs has succeeded as well: it ends the process with a signal
    with tempfile.TemporaryDirectory(prefix="stoker-attack-") as folder:
        for what, attempt in attempts(Path(folder)):
            try:
                got = attempt()
            except StokerError as error:
                print(f"refused    {what}: {type(error).__name__}: {error}")
                continue
            except Survived as harmless:
                print(f"survived   {what}: {harmless}")
                continue
            succeeded += 1
            print(f"SUCCEEDED  {what}: {str(got)[:200]}")
    return succeeded


def main(attempts: Attempts) -> None:
    """Run as a script."""
    sys.exit(1 if run(attempts) else 0)
