"""A program: a script with arguments, the cause that was put into it, and the same program without that cause.

Its cause is known because it was put there, and dominant because the same program without it is that much faster:
`bench_verdicts --ablation` applies the fix (`clean` or `fixes.py`) and measures by how much. Nothing in a script names its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from verdicts.table.fixes import FIXES

TRAIN, STREAM, WINDOWS, RANKS = "train.py", "train_stream.py", "train_windows.py", "train_ranks.py"
Kind = Literal["single", "mixed", "sabotaged", "story", "other", "everyday", "gpu", "apart"]

FOLDERS = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Program:
    """A script with arguments, and what is the matter with it."""

    name: str
    folder: Literal["programs", "others", "everyday", "gpu", "apart"] = "programs"
    """Where its script lies."""
    script: str = "train.py"
    arguments: str
    clean: str | None
    """Arguments that take the cause away; None where nothing was put in, in `others`, where `fixes.py` has edits, and in `gpu`."""
    verdict: str
    """What `stoker diagnose` must say."""
    also: tuple[str, ...] = ()
    """Causes that come first on some machines: `verdict` on others."""
    second: str | None = None
    """What it must say next; None where only one cause was put in."""
    second_clean: str | None = None
    """Arguments that take the second cause away instead."""
    kind: Kind = "single"
    device: Literal["cpu", "cuda"] = "cpu"
    processes: int = 1
    """That train together, started by torchrun."""
    environment: Mapping[str, str] = field(default_factory=dict)
    neighbour: bool = False
    """Whether other processes burn the processor in bursts meanwhile."""
    claim: str = ""
    """What people believed of a story."""
    without: tuple[str, ...] = ()
    """Suspects that `--without NAME` removes, each by itself; only in `gpu`."""
    period: int = 1
    """Steps from one rare event to the next."""

    @property
    def path(self) -> Path:
        """Its script."""
        return FOLDERS / self.folder / self.script

    @property
    def words(self) -> list[str]:
        """The arguments as a command line has them; only those of `programs` know a device."""
        if self.folder != "programs":
            return self.arguments.split()
        return [*self.arguments.split(), "--device", self.device]

    @property
    def clean_words(self) -> list[str]:
        """The same without the cause: later arguments win."""
        return [*self.words, *(self.clean or "").split()]

    @property
    def edited(self) -> bool:
        """Whether its fix is an edit of the script, not an argument."""
        return self.clean is None and self.path.stem in FIXES and self.kind == "other"

    @property
    def has_fix(self) -> bool:
        """Whether it can be run without its cause."""
        return self.clean is not None or self.edited

    @property
    def second_clean_words(self) -> list[str]:
        """The same without the second cause."""
        return [*self.words, *(self.second_clean or "").split()]


def single(verdict: str, rows: Mapping[str, tuple[str, str, str]], **common: object) -> list[Program]:
    """Programs with one cause: by name, a script, its arguments, and those that take the cause away."""
    return [
        Program(name=f"{verdict}-{name}", script=script, arguments=arguments, clean=clean, verdict=verdict, **common)  # type: ignore[arg-type]
        for name, (script, arguments, clean) in rows.items()
    ]
