"""The gate: does a step do more than its budget allows? Counts are compared, never times, so a busy machine cannot raise an alarm.

`gate_step` counts the steps of a function, `gate_script` those of a script in a child process; both compare the counts with a budget
or write it: a small JSON file of integers that is kept beside the code and changes with it. A count that is the same in (nearly) all
steps is compared exactly; of one that varies, such as with series of different lengths, the budget holds the most that was seen. A run
is over its budget only where chance cannot be the reason: of a count that varies, the least of the run must be more than that.
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


START = "import sys; from stoker.gate.counts import main; main(sys.argv[1:])"
WARMUP = 4
STEPS = 16
MOST_REASONS = 4


class CountRequest(Request, frozen=True, kw_only=True):
    """Asks a child process to count steps of a script."""

    warmup: int
    steps: int


class CountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and where the lines of the program are, or an error."""

    run: RunCounts | None = None
    lines: dict[str, SourceLine] = {}
    error: str | None = None


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
        for one in self.reasons:
            lines.append(f"  {one.more:+,} {one.what}" + (f" ({one.place.file}:{one.place.line})" if one.place else ""))
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


def gate_step(
    train_step: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    budget: str | Path,
    write: bool = False,
    steps: int = STEPS,
    warmup: int = WARMUP,
) -> Gate:
    """Count steps of a function and compare them with a budget, or write it.

    Args:
        train_step: Called with each batch; makes one step.
        batches: An iterable, repeated until there were `warmup + steps` batches; an iterator must have as many.
        budget: The path of the budget, a JSON file.
        write: Whether to write the budget from this run.
        steps: Steps that are counted.
        warmup: Steps before them that are not counted.

    Returns:
        The counts, the budget, and what grew.

    Raises:
        OptionError: The budget does not exist or is of another device, or there are no batches.
        ConfigError: The budget is not valid.
        TrainError: Fewer than 8 steps were counted.

    Example:
        >>> import tempfile, torch
        >>> weight = torch.zeros(2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> def train_step(batch):
        ...     optimizer.zero_grad()
        ...     (weight * batch).sum().backward()
        ...     optimizer.step()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     gate_step(train_step, [torch.ones(2)], budget=f"{folder}/budget.json", write=True).ok
        True
    """
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
    run = summarize(counted, device=counter.device, torch=str(torch.__version__))
    return _compare_with_file(run, counter.lines, Path(budget), write=write)


def _compare_with_file(run: RunCounts, lines: Mapping[str, SourceLine], path: Path, *, write: bool) -> Gate:
    if write:
        make_folder(path.absolute().parent)
        # One number per line, so that a diff shows what changed.
        write_file(path, (json.dumps(msgspec.to_builtins(budget_of(run)), indent=1) + "\n").encode(), durable=False)
    return compare(run, read_budget(path), lines)


def _again(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches without end."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise OptionError("batches is empty; expected at least one batch.")


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
    """Run a script in a child process until its steps are counted, and compare them with a budget, or write it.

    Args:
        program: The script, or a module's name with `module=True`.
        arguments: The script's arguments.
        budget: The path of the budget, a JSON file.
        write: Whether to write the budget from this run.
        module: Whether `program` is the name of a module.
        quiet: Whether to drop what the script prints; otherwise it goes to stderr.
        steps: Steps that are counted.
        warmup: Steps before them that are not counted.

    Returns:
        The counts, the budget, and what grew.

    Raises:
        OptionError: The script or the budget does not exist, or the budget is of another device.
        ConfigError: The budget is not valid.
        TrainError: The script failed, or ended before enough steps were counted.

    Example:
        >>> gate = gate_script("train.py", ["--epochs", "1"], budget="budget.json")  # doctest: +SKIP
        >>> print(gate)  # doctest: +SKIP
        within the budget: 86 operations, 4 syncs per step
    """
    from stoker.diagnose.api import ask, scratch_for

    if not write:
        read_budget(Path(budget))  # an error in it is reported before the program runs
    words = [str(one) for one in arguments]
    with scratch_for(program, module=module) as folder:
        request = CountRequest(
            program=str(program), module=module, arguments=words, scratch=str(folder), warmup=warmup, steps=steps
        )
        answer = ask(request, CountAnswer, start=START, quiet=quiet)
    if answer.run is None:
        raise TrainError(answer.error or f"{program} gave no answer.")
    return _compare_with_file(answer.run, answer.lines, Path(budget), write=write)


def _shown(name: str, value: int) -> str:
    return readable_bytes(value) if name.endswith("_bytes") and value >= 10_000_000 else f"{value:,}"
