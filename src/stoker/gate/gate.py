"""The budget: what a step may do, as a small file of whole numbers that is kept beside the code and changes with it.

It is written from the usual counts of a run, and later runs are held against it. The law: a run is over its budget only where no
chance can have made it so. A count that is the same in (nearly) all steps is compared exactly; of one that varies, as with series
of different lengths, the least of a run must be more than the most of the budget.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stoker._disk import make_folder, write_file
from stoker._text import readable_bytes
from stoker.diagnose.child import Request
from stoker.diagnose.measurements import SourceLine
from stoker.errors import ConfigError, OptionError, TrainError
from stoker.experiment.parse import parse_json

if TYPE_CHECKING:
    from stoker.gate.counts import Counts

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
        raise ConfigError(f"{path} is no text; expected a budget in JSON.") from None
    try:
        budget = msgspec.convert(parse_json(text, str(path)), Budget)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}. Write it anew with --write.") from None
    unknown = [name for name in (*budget.allowed, *budget.varying) if name not in NAMES]
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]!r} is no count; expected some of {', '.join(NAMES)}.")
    return budget


def write_budget(path: Path, budget: Budget) -> None:
    """Write a budget in a form that shows well what changed."""
    make_folder(path.absolute().parent)
    # Not published as files of a store are: this one may be edited.
    write_file(path, (json.dumps(msgspec.to_builtins(budget), indent=1) + "\n").encode(), durable=False)


# The gate: are the counts of a step within their budget? Times are never looked at, so a busy machine cannot raise an alarm.

START = "import sys; from stoker.gate.counts import main; main(sys.argv[1:])"
WARMUP = 4
STEPS = 16
MOST_REASONS = 4
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


class TallyRequest(Request, frozen=True, kw_only=True):
    """What is counted."""

    warmup: int
    steps: int


class TallyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back: counts and where the lines of the program are, or one line that says why there are none."""

    run: Run | None = None
    lines: dict[str, SourceLine] = {}
    error: str | None = None


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Something that adds to a count."""

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
        return f"{TITLES[self.name]}: {_told(self.name, self.found)} a step, allowed {_told(self.name, self.allowed)}" + "".join(
            f"\n  {reason.more:+,} {reason.what}" + (f" ({reason.place.file}:{reason.place.line})" if reason.place else "")
            for reason in self.reasons
        )


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands against its budget."""

    run: Run
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
        head = f"within the budget: {_summary(self.run)}" if self.ok else f"over the budget: {len(self.growths)} of the counts grew"
        return "\n".join([head, *map(str, self.growths), *(f"note: {note}" for note in self.notes)])


def compare(run: Run, budget: Budget, lines: Mapping[str, SourceLine]) -> Gate:
    """Hold a run against a budget; `lines` says where the lines of its code are now."""
    if run.device != budget.device:
        raise OptionError(f"the budget is of {budget.device}, but this run is on {run.device}. Keep a budget for each.")
    growths, notes, fewer = [], [], []
    for name in NAMES:
        if name not in run.usual:
            continue
        usual, allowed = run.usual[name], budget.allowed.get(name, 0 if name in ("recompiles", "graph_breaks") else None)
        if usual.varies:
            notes.append(
                f"{TITLES[name]} vary from step to step ({_told(name, usual.least)} to {_told(name, usual.most)}), "
                f"as data of different lengths do: the least is compared."
            )
        if allowed is None:
            notes.append(f"{TITLES[name]} have no budget. Write it anew to have one.")
        elif usual.least > allowed:
            growths.append(Growth(name=name, found=usual.least, allowed=allowed, reasons=_reasons(name, run, budget, lines)))
        elif usual.most < allowed and name not in budget.varying:
            fewer.append(f"{TITLES[name]} {_told(name, usual.most)} of {_told(name, allowed)}")
    if fewer:
        notes.append(f"less than allowed: {', '.join(fewer)}. Write the budget anew to keep it so.")
    if growths and run.torch != budget.torch:
        notes.append(f"the budget was written with torch {budget.torch}, this is {run.torch}. Write it anew if that is the reason.")
    return Gate(run=run, budget=budget, growths=growths, notes=notes)


def _reasons(name: str, run: Run, budget: Budget, lines: Mapping[str, SourceLine]) -> list[Reason]:
    """The user's lines that have more of it than before, then operations that come more often."""
    reasons = []
    for key, found in run.places.items():
        more = found.get(name, 0) - budget.places.get(key, {}).get(name, 0)
        if more > 0:
            reasons.append(Reason(what=key, more=more, place=lines.get(key)))
    reasons = sorted(reasons, key=lambda reason: -reason.more)[:MOST_REASONS]
    if name in ("ops", "kernels"):
        kinds = {kind: number - budget.kinds.get(kind, 0) for kind, number in run.kinds.items()}
        grown = sorted(((kind, more) for kind, more in kinds.items() if more > 0), key=lambda item: -item[1])
        reasons += [Reason(what=kind, more=more) for kind, more in grown[:MOST_REASONS]]
    return reasons


def gate_step(
    train_step: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    budget: str | Path,
    write: bool = False,
    steps: int = STEPS,
    warmup: int = WARMUP,
) -> Gate:
    """Count some steps of a function and hold them against a budget, or write it.

    `batches` are gone through again and again until there were `warmup` and `steps` of them; an iterator must have as many.
    """
    run, lines = count_steps(train_step, batches, steps=steps, warmup=warmup)
    return settle(run, lines, Path(budget), write=write)


def settle(run: Run, lines: Mapping[str, SourceLine], path: Path, *, write: bool) -> Gate:
    """Hold a run against the budget of a file, which is written first where that is asked for."""
    if write:
        write_budget(path, budget_of(run))
    return compare(run, read_budget(path), lines)


def count_steps(
    train_step: Callable[[Any], Any], batches: Iterable[Any], *, steps: int, warmup: int
) -> tuple[Run, Mapping[str, SourceLine]]:
    """The usual counts of a function's steps, and where its lines are."""
    import torch

    from stoker.gate.counts import StepCounter

    source = batches if isinstance(batches, Iterator) else _again(batches)
    for batch in itertools.islice(source, warmup):
        train_step(batch)
    counted: list[Counts] = []
    with StepCounter() as counter:
        for _ in range(steps):
            # The batch is made within the step: what a loader does to tensors belongs to it.
            batch = next(source, counter)
            if batch is counter:
                break
            train_step(batch)
            counted.append(counter.take())
    return usual_of(counted, device=counter.device, torch=str(torch.__version__)), counter.lines


def _again(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches without an end; none at all is an error."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise OptionError("there are no batches to count steps with; expected one at least.")


def gate_script(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    budget: str | Path,
    write: bool = False,
    module: bool = False,
    quiet: bool = False,
    steps: int = STEPS,
    warmup: int = WARMUP,
) -> Gate:
    """Run a script (or, with `module`, a module by its name) until some steps are counted, and hold them against a budget.

    What the program prints goes to stderr, or nowhere when `quiet`.
    """
    from stoker.diagnose.scripts import ask, scratch_for

    if not write:
        read_budget(Path(budget))  # a budget that cannot be used is known before the program has run
    words = [str(one) for one in arguments]
    with scratch_for(program, module=module) as folder:
        request = TallyRequest(
            program=str(program), module=module, arguments=words, scratch=str(folder), warmup=warmup, steps=steps
        )
        answer = ask(request, TallyAnswer, start=START, quiet=quiet)
    if answer.run is None:
        raise TrainError(answer.error or f"{program} gave no answer.")
    return settle(answer.run, answer.lines, Path(budget), write=write)


def _told(name: str, value: int) -> str:
    return readable_bytes(value) if name.endswith("_bytes") and value >= 10_000_000 else f"{value:,}"


def _summary(run: Run) -> str:
    shown = [f"{_told(name, usual.most)} {TITLES[name]}" for name, usual in run.usual.items() if usual.most]
    return ", ".join(shown) + " a step"
