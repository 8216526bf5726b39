"""The ledger of judgements: one line of JSON for each, which is only added to.

Each line has the hash of the line before it, so that a line that was changed or removed later is noticed. A line is written whole or not
at all: a process that is killed leaves at most a torn last line, which the next one removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker import _disk
from stoker.errors import OptionError

START = "0" * 16  # what the first line has as the hash of the line before it


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Return all lines, the oldest first.

    Raises:
        OptionError: It is not a plain file, or a line is not one of a ledger, or was changed later.
    """
    if os.path.lexists(path) and not path.is_file():  # a pipe never ends
        raise OptionError(f"{path} is not a plain file; expected one that --log has written, or a new name.", path=path)
    lines: list[dict[str, Any]] = []
    previous = START
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.exists() else [], 1):
        try:
            values = json.loads(line)
            earlier = values["previous"]
        except (ValueError, KeyError, TypeError) as error:
            if not line.endswith(b"\n") and line.startswith(b"{") and isinstance(error, ValueError):
                break  # torn by a process that was killed
            raise OptionError(
                f"{path}, line {number} is not a judgement; expected a file that --log has written.", path=path
            ) from None
        if not line.endswith(b"\n"):
            break  # torn in front of its end
        if earlier != previous:
            raise OptionError(
                f"{path}, line {number} does not follow the line before it: a line was changed or removed. Start a new file.",
                path=path,
            )
        lines.append(values)
        previous = _hash(line)
    return lines


def append_to_ledger(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Add a line, and return it when it would survive a power loss. Lines of several processes come one after the other."""
    with _alone(path):
        lines = read_ledger(path)
        previous = _hash(_line(lines[-1])) if lines else START
        line = {"number": len(lines) + 1, **values, "previous": previous}
        log = _disk.LogFile(path)
        try:
            log.append(_line(line))
            log.sync()
        finally:
            log.close()
    return line


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process adds a line."""
    folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, allow_nan=False, sort_keys=True).encode() + b"\n"


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:16]
