"""How tests call the command line: in this process, or as a user does, in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import stoker

SOURCE = Path(stoker.__file__).parents[1]

SLOW = """
import sys, time
from stoker.store.pack import packer
from stoker.store.pack.sorted_runs import SortedRun
packer.JOURNAL_BYTES = 1 << 20
write = SortedRun._write
def slowly(self, *arguments):
    time.sleep(float(sys.argv[1]))
    write(self, *arguments)
SortedRun._write = slowly
from stoker.cli.main import main
main(sys.argv[2:])
"""
"""A pack that sleeps at each write and journals each megabyte, so that a signal can meet it at work."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    """What it wrote to stderr, without its line at the start."""
    began: str = field(default="", compare=False)
    """That line, which says what is going on."""

    @classmethod
    def of(cls, code: int, out: str, err: str) -> Done:
        """Take the line at the start from the rest of stderr; it is the one that ends with an ellipsis."""
        first, newline, rest = err.partition("\n")
        begins = bool(newline) and first.startswith("stoker: ") and first.endswith(" …")
        return cls(code, out, rest if begins else err, first if begins else "")


def check_end(arguments: Sequence[str], done: Done) -> None:
    """Check what docs/cli.md says of the end of all commands: --json prints one document and nothing else, others the next useful command.

    The fixture `stoker` calls it after each command that succeeds, so every test of a command is a test of this.
    """
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    from tests.cli.walking import COMMANDS

    own = {path.split()[0] for path in COMMANDS}  # not those that a test registers, nor its recipe
    if (
        done.code != 0
        or not words
        or words[0] not in own
        or "waves" in words
        or {"-h", "--help", "--version", "--fields", "--thresholds"} & set(words)
    ):
        return
    if "--json" in words:
        json.loads(done.out, parse_constant=lambda name: int(name))  # NaN and Inf are no JSON
        return
    ends = [line for line in done.out.splitlines() if line.strip()][-3:]
    if not {"-q", "--quiet"} & set(words) and words[0] != "watch":  # which ends as the script does
        assert any("next:" in line for line in ends) or "\nNEXT" in done.out, (
            f"stoker {words[0]} ends without a next command: {ends}"
        )


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), **extra}


def stoker_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "stoker", *map(str, arguments)]


def slow_command(seconds: float, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", SLOW, str(seconds), *map(str, arguments)]


def call(command: Sequence[str], folder: Path, **extra: str) -> Done:
    """Run a command to its end in a process of its own."""
    done = subprocess.run(
        command, cwd=folder, env=environment(**extra), capture_output=True, text=True, timeout=280, check=False, encoding="utf-8"
    )
    return Done.of(done.returncode, done.stdout, done.stderr)
