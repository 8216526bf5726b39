"""The budget: what a step may do, as a small JSON file of integers that is kept beside the code and changes with it.

`summarize` makes the usual counts of a run out of those of its steps, `budget_of` the budget that such a run keeps. A count that is
the same in (nearly) all steps is compared exactly; of one that varies, such as with series of different lengths, the budget holds the
most that was seen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from stoker._disk import make_folder, write_file
from stoker.errors import ConfigError, OptionError, TrainError
from stoker.experiment.parse import parse_json

if TYPE_CHECKING:
    from stoker.gate.counts import Counts

SCHEMA: Literal[1] = 1
MIN_STEPS = 8
"""Fewer steps say too little about what is usual."""
ODD_STEPS = 16
"""One step in this many may differ (a log line, a short last batch) before a count is said to vary."""
TITLES = {
    "ops": "operations",
    "flops": "floating-point operations",
    "kernels": "kernels",
    "syncs": "syncs",
    "h2d_copies": "copies to the device",
    "h2d_bytes": "bytes to the device",
    "d2h_copies": "copies to the host",
    "d2h_bytes": "bytes to the host",
    "allocations": "allocations",
    "allocated_bytes": "bytes allocated",
    "recompiles": "recompilations",
    "graph_breaks": "graph breaks",
}
"""The counts that have a budget, with what they are called, in the order in which they are shown."""


class CountRange(msgspec.Struct, frozen=True, kw_only=True):
    """The least and the most of one count over the steps of a run."""

    least: int
    most: int

    @property
    def varies(self) -> bool:
        """Whether it differs from step to step."""
        return self.least != self.most


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The usual counts of a step of a run."""

    device: str
    torch: str
    steps: int
    usual: dict[str, CountRange]
    kinds: dict[str, int]
    """Operations by name, of a usual step."""
    places: dict[str, dict[str, int]]
    """Counts by line of the user's code, of a usual step."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step may do.

    Example:
        >>> Budget(device="cpu", torch="2.10", steps=16, allowed={"ops": 86, "syncs": 4}).allowed["syncs"]
        4
    """

    schema: Literal[1] = SCHEMA
    device: str
    """Where it was counted: counts of a CPU say nothing about those of a GPU."""
    torch: str
    steps: int
    allowed: dict[str, int]
    """The most of each count per step. May be edited by hand."""
    varying: list[str] = []
    """Counts that depended on the data; their budget is the most that was seen."""
    kinds: dict[str, int] = {}
    places: dict[str, dict[str, int]] = {}


def summarize(steps: Sequence[Counts], *, device: str, torch: str) -> RunCounts:
    """The usual counts of the steps of a run."""
    if len(steps) < MIN_STEPS:
        raise TrainError(
            f"{len(steps)} steps were counted; expected at least {MIN_STEPS} after the warm-up. Let the program train longer."
        )
    usual = {name: found for name in TITLES if (found := _range_of([getattr(step, name) for step in steps])) is not None}
    ordinary = next((step for step in steps if step.ops == usual["ops"].least), steps[0])
    return RunCounts(device=device, torch=torch, steps=len(steps), usual=usual, kinds=ordinary.kinds, places=ordinary.places)


def _range_of(values: Sequence[int | None]) -> CountRange | None:
    """The range of a count; None where some steps do not have it. One odd step in 16 is left out."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    value, number = Counter(known).most_common(1)[0]
    if len(known) - number <= len(known) // ODD_STEPS:
        return CountRange(least=value, most=value)
    return CountRange(least=min(known), most=max(known))


def budget_of(run: RunCounts) -> Budget:
    """The budget that a run keeps, and no smaller one."""
    return Budget(
        device=run.device,
        torch=run.torch,
        steps=run.steps,
        allowed={name: usual.most for name, usual in run.usual.items()},
        varying=[name for name, usual in run.usual.items() if usual.varies],
        kinds=run.kinds,
        places=run.places,
    )


def read_budget(path: Path) -> Budget:
    """Read a budget and check all of it."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise OptionError(f"{path} is not there; expected a budget. Write one from this run with write=True.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; expected a budget in JSON.") from None
    try:
        budget = msgspec.convert(parse_json(text, str(path)), Budget)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}. Write it again with write=True.") from None
    unknown = [name for name in (*budget.allowed, *budget.varying) if name not in TITLES]
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]!r} is not a count; expected some of {', '.join(TITLES)}.")
    return budget


def write_budget(path: Path, budget: Budget) -> None:
    """Write a budget with one number per line, so that a diff shows what changed."""
    make_folder(path.absolute().parent)
    write_file(path, (json.dumps(msgspec.to_builtins(budget), indent=1) + "\n").encode(), durable=False)
