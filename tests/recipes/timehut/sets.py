"""Data sets of tests: those that aeon ships, as files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

_AEON = find_spec("aeon")  # found, not imported: that takes seconds
FOLDER = Path(str(_AEON and _AEON.origin)).parent / "datasets" / "data"


def files(name: str) -> tuple[Path, Path]:
    """The training and test file of a set."""
    return FOLDER / name / f"{name}_TRAIN.ts", FOLDER / name / f"{name}_TEST.ts"


def write_tsv(folder: Path, name: str = "Waves", *, num: int = 12, steps: int = 16) -> tuple[Path, Path]:
    """Two classes of waves in UCR's format, without random numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, shift in (("TRAIN", 0.0), ("TEST", 0.5)):
        lines = []
        for i in range(num):
            values = [f"{((t * (1 + i % 2) + i + shift) % 7) - 3:.3f}" for t in range(steps)]
            lines.append("\t".join([str(1 + i % 2), *values]))
        (folder / f"{name}_{part}.tsv").write_text("\n".join(lines) + "\n")
    return folder / f"{name}_TRAIN.tsv", folder / f"{name}_TEST.tsv"


SMALL: dict[str, Any] = {"hidden": 6, "depth": 4, "width": 12, "epochs": 6}
"""Options of a small encoder."""
