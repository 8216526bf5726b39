"""How the examples tell what they do: lines of a story, commands with their exit codes, listings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def say(text: str) -> None:
    """A line of the story."""
    print(f"\n== {text}", flush=True)


def command(folder: Path, *words: str, expect: int | Sequence[int] = 0) -> None:
    """Show a command, run it, and insist on its exit code."""
    shown = " ".join(f'"{word}"' if "*" in word else word for word in words)
    print(f"\n$ stoker {shown}", flush=True)
    done = subprocess.run([sys.executable, "-m", "stoker", *words], cwd=folder, check=False)
    expected = [expect] if isinstance(expect, int) else expect
    if done.returncode not in expected:
        sys.exit(f"expected exit code {' or '.join(map(str, expected))}, found {done.returncode}")


def listing(text: str) -> None:
    """A file, as it is."""
    print("".join(f"    {line}\n" if line else "\n" for line in text.splitlines()))
