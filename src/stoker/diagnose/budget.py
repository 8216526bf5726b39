"""The budget: what a step may do, as a small file of whole numbers that is kept beside the code and changes with it.

It is written from the usual counts of a run, and later runs are held against it. The law: a run is over its budget only where no
chance can have made it so. A count that is the same in (nearly) all steps is compared exactly; of one that varies, as with series
of different lengths, the least of a run must be more than the most of the budget.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from stoker.errors import ConfigInvalid, OptionError, TrainError
from stoker.files import make_folder, write_file
from stoker.train.config.document import parse_json

if TYPE_CHECKING:
    from stoker.diagnose.counts import Counts

SCHEMA: Literal[1] = 1
MIN_STEPS = 8
"""Fewer say too little about what is usual."""
ODD_STEPS = 16
"""One step in so many may differ (a log line, a short last batch) before a count is said to vary."""
NAMES = (
    "ops",
    "flops",
    "kernels",
    "syncs",
    "h2d_copies",
    "h2d_bytes",
    "d2h_copies",
    "d2h_bytes",
    "allocations",
    "allocated_bytes",
    "recompiles",
    "graph_breaks",
)
"""The counts that have a budget, in the order in which they are shown."""


class Usual(msgspec.Struct, frozen=True, kw_only=True):
    """One count over the steps of a run."""

    least: int
    most: int

    @property
    def varies(self) -> bool:
        """Whether it depends on the data."""
        return self.least != self.most


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run: what is usual in its steps."""

    device: str
    torch: str
    steps: int
    usual: dict[str, Usual]
    kinds: dict[str, int]
    """Operations by name, of a usual step."""
    places: dict[str, dict[str, int]]
    """Counts by line of the user's code, of a usual step."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step may do."""

    schema: Literal[1] = SCHEMA
    device: str
    """On which it was counted: counts of a CPU say nothing about those of a GPU."""
    torch: str
    steps: int
    allowed: dict[str, int]
    """The most of each count that a step may have. May be edited by hand."""
    varying: list[str] = []
    """Counts that depended on the data; their budget is the most that was seen."""
    kinds: dict[str, int] = {}
    places: dict[str, dict[str, int]] = {}


def usual_of(steps: Sequence[Counts], *, device: str, torch: str) -> Run:
    """What is usual in the steps of a run."""
    if len(steps) < MIN_STEPS:
        raise TrainError(
            f"{len(steps)} steps were counted; expected at least {MIN_STEPS} behind the warm-up. Let the training run longer."
        )
    usual = {name: found for name in NAMES if (found := _usual([getattr(step, name) for step in steps])) is not None}
    ordinary = next((step for step in steps if step.ops == usual["ops"].least), steps[0])
    return Run(device=device, torch=torch, steps=len(steps), usual=usual, kinds=ordinary.kinds, places=ordinary.places)


def _usual(values: Sequence[int | None]) -> Usual | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    value, number = Counter(known).most_common(1)[0]
    if len(known) - number <= len(known) // ODD_STEPS:
        return Usual(least=value, most=value)
    return Usual(least=min(known), most=max(known))


def budget_of(run: Run) -> Budget:
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
    """Read a budget; all that it holds is checked."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise OptionError(f"{path} is not there; expected a budget. Write one from this run with --write.") from None
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{path} is no text; expected a budget in JSON.") from None
    try:
        budget = msgspec.convert(parse_json(text, str(path)), Budget)
    except msgspec.ValidationError as error:
        raise ConfigInvalid(f"{path}: {error}. Write it anew with --write.") from None
    unknown = [name for name in (*budget.allowed, *budget.varying) if name not in NAMES]
    if unknown:
        raise ConfigInvalid(f"{path}: {unknown[0]!r} is no count; expected some of {', '.join(NAMES)}.")
    return budget


def write_budget(path: Path, budget: Budget) -> None:
    """Write a budget in a form that shows well what changed."""
    make_folder(path.absolute().parent)
    # Not published as files of a store are: this one may be edited.
    write_file(path, (json.dumps(msgspec.to_builtins(budget), indent=1) + "\n").encode(), durable=False)
