"""Budgets: the counts of a run, what a step may do, and how the two compare.

A count that is the same in (nearly) all steps is compared exactly; of one that varies, such as with series of different lengths, the
budget holds the most that was seen. A run is over its budget only where chance cannot be the reason: of a count that varies, the least
of the run must be more than that.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from stoker._text import readable_bytes
from stoker.diagnose.measurements import SourceLine
from stoker.errors import ConfigError, OptionError, TrainError
from stoker.experiment.parse import parse_json

MOST_BYTES = 64 << 20
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


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in one step."""

    ops: int
    """Operations that torch dispatches."""
    flops: int
    """Floating-point operations of matmuls and their like."""
    syncs: int
    """Times that the host waits for a result of the device (`.item()`, masks, copies back). On a CPU: would wait."""
    h2d_copies: int
    h2d_bytes: int
    d2h_copies: int
    d2h_bytes: int
    allocations: int
    """Blocks of memory that tensors were given: of the device, by its allocator, or of the host."""
    allocated_bytes: int
    kernels: int | None = None
    """On a GPU."""
    recompiles: int | None = None
    """Graphs that torch compiled in this step; None if it compiles nothing."""
    graph_breaks: int | None = None
    """Graph breaks in the whole program so far."""
    kinds: dict[str, int] = {}
    """Operations by name."""
    places: dict[str, dict[str, int]] = {}
    """Operations, syncs, copies and allocations by line of the user's code, as `key_of` writes it."""


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

    schema: Literal[1] = 1
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
    usual = {}
    for name in TITLES:
        values = [getattr(step, name) for step in steps]
        if None not in values:
            value, number = Counter(values).most_common(1)[0]
            varies = len(values) - number > len(values) // ODD_STEPS
            usual[name] = CountRange(least=min(values), most=max(values)) if varies else CountRange(least=value, most=value)
    ordinary = next((step for step in steps if step.ops == usual["ops"].least), steps[0])
    return RunCounts(device=device, torch=torch, steps=len(steps), usual=usual, kinds=ordinary.kinds, places=ordinary.places)


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


def budget_to_write(path: Path) -> Path:
    """Return the file that a budget is written to: where a link leads to. Raises `OptionError` unless it is new or a budget."""
    try:
        target = path.resolve()
        if os.path.lexists(target):
            read_budget(target)
    except (OSError, RuntimeError, ConfigError, OptionError) as error:
        raise OptionError(
            f"{path} is not replaced, because it is not a budget ({error}) Give the name of a new file.",
            parameter="budget",
            path=path,
        ) from None
    return target


def read_budget(path: Path) -> Budget:
    """Read a budget and check all of it."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:  # /dev/zero and pipes have no end
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a plain file, or too large"
            raise OptionError(f"{path} is {what}; expected a budget in JSON.", parameter="budget", path=path)
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise OptionError(
            f"{path} is not there; expected a budget. Write one from this run with write=True.", parameter="write", path=path
        ) from None
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}; expected a budget.", parameter="budget", path=path) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; expected a budget in JSON.", parameter="budget", path=path) from None
    try:
        budget = msgspec.convert(parse_json(text, str(path)), Budget)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}. Write it again with write=True.", parameter="write", path=path) from None
    unknown = [name for name in (*budget.allowed, *budget.varying) if name not in TITLES]
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]!r} is not a count; expected some of {', '.join(TITLES)}.")
    return budget


MOST_REASONS = 4


class CountOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps of a script are counted."""

    warmup: int
    steps: int


class CountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The counts, and where the lines of the program are."""

    run: RunCounts
    lines: dict[str, SourceLine]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A line of code or an operation that adds to a count."""

    what: str
    more: int
    place: SourceLine | None = None


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A count that is over its budget."""

    name: str
    found: int
    allowed: int
    reasons: list[Reason]

    def __str__(self) -> str:
        lines = [f"{TITLES[self.name]}: {_shown(self.name, self.found)} per step, allowed {_shown(self.name, self.allowed)}"]
        for reason in self.reasons:
            lines.append(
                f"  {reason.more:+,} {reason.what}" + (f" ({reason.place.file}:{reason.place.line})" if reason.place else "")
            )
        return "\n".join(lines)


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A run compared with its budget. `print` shows it, `ok` says whether nothing grew."""

    run: RunCounts
    budget: Budget
    growths: list[Growth]
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing grew."""
        return not self.growths

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"ok": self.ok, **msgspec.to_builtins(self)}

    def __str__(self) -> str:
        head = f"over the budget: {len(self.growths)} of the counts grew"
        if self.ok:
            counts = [f"{_shown(name, usual.most)} {TITLES[name]}" for name, usual in self.run.usual.items() if usual.most]
            head = f"within the budget: {', '.join(counts)} per step"
        return "\n".join([head, *map(str, self.growths), *(f"note: {note}" for note in self.notes)])


def compare(run: RunCounts, budget: Budget, lines: Mapping[str, SourceLine]) -> Gate:
    """Compare a run with a budget; `lines` says where the lines of its code are now."""
    if run.device != budget.device:
        raise OptionError(
            f"the budget was counted on {budget.device}, but this run is on {run.device}. Keep one budget per device."
        )
    growths, notes, fewer = [], [], []
    for name in TITLES:
        if name not in run.usual:
            continue
        usual, allowed = run.usual[name], budget.allowed.get(name, 0 if name in ("recompiles", "graph_breaks") else None)
        if usual.varies:
            notes.append(
                f"{TITLES[name]} vary from step to step ({_shown(name, usual.least)} to {_shown(name, usual.most)}), "
                f"as with data of different lengths: the least is compared."
            )
        if allowed is None:
            notes.append(f"{TITLES[name]} have no budget. Write it again to have one.")
        elif usual.least > allowed:
            growths.append(Growth(name=name, found=usual.least, allowed=allowed, reasons=_reasons(name, run, budget, lines)))
        elif usual.most < allowed and name not in budget.varying:
            fewer.append(f"{TITLES[name]} {_shown(name, usual.most)} of {_shown(name, allowed)}")
    if fewer:
        notes.append(f"less than allowed: {', '.join(fewer)}. Write the budget again to keep it so.")
    if growths and run.torch != budget.torch:
        notes.append(
            f"the budget was written with torch {budget.torch}, this is {run.torch}. Write it again if that is the reason."
        )
    return Gate(run=run, budget=budget, growths=growths, notes=notes)


def _reasons(name: str, run: RunCounts, budget: Budget, lines: Mapping[str, SourceLine]) -> list[Reason]:
    """The user's lines that add to a count, then operations that are called more often."""
    by_line = {key: found.get(name, 0) - budget.places.get(key, {}).get(name, 0) for key, found in run.places.items()}
    by_kind = {kind: number - budget.kinds.get(kind, 0) for kind, number in run.kinds.items() if name in ("ops", "kernels")}
    grown = [
        (what, more)
        for differences in (by_line, by_kind)
        for what, more in Counter(differences).most_common(MOST_REASONS)
        if more > 0
    ]
    return [Reason(what=what, more=more, place=lines.get(what)) for what, more in grown]


def _shown(name: str, value: int) -> str:
    return readable_bytes(value) if name.endswith("_bytes") and value >= 10_000_000 else f"{value:,}"
