"""The gate: does a step do more than its budget allows? Counts are compared, never times, so a busy machine cannot raise an alarm.

`gate_step` counts the steps of a function, `gate_script` those of a script in a child process; both compare the counts with a budget
file or write it. A run is over its budget only where chance cannot be the reason: of a count that varies, the least of the run must be
more than the most of the budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stoker._text import readable_bytes
from stoker.diagnose.child import Request
from stoker.diagnose.measurements import SourceLine
from stoker.errors import OptionError, TrainError
from stoker.gate.budget import TITLES, Budget, RunCounts, budget_of, read_budget, summarize, write_budget

if TYPE_CHECKING:
    from stoker.gate.counts import Counts

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
        return (
            f"{TITLES[self.name]}: {_shown(self.name, self.found)} per step, allowed {_shown(self.name, self.allowed)}"
            + "".join(
                f"\n  {reason.more:+,} {reason.what}" + (f" ({reason.place.file}:{reason.place.line})" if reason.place else "")
                for reason in self.reasons
            )
        )


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
        head = f"within the budget: {_summary(self.run)}" if self.ok else f"over the budget: {len(self.growths)} of the counts grew"
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
    run, lines = count_steps(train_step, batches, steps=steps, warmup=warmup)
    return _compare_with_file(run, lines, Path(budget), write=write)


def _compare_with_file(run: RunCounts, lines: Mapping[str, SourceLine], path: Path, *, write: bool) -> Gate:
    if write:
        write_budget(path, budget_of(run))
    return compare(run, read_budget(path), lines)


def count_steps(
    train_step: Callable[[Any], Any], batches: Iterable[Any], *, steps: int, warmup: int
) -> tuple[RunCounts, Mapping[str, SourceLine]]:
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
    return summarize(counted, device=counter.device, torch=str(torch.__version__)), counter.lines


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


def _summary(run: RunCounts) -> str:
    shown = [f"{_shown(name, usual.most)} {TITLES[name]}" for name, usual in run.usual.items() if usual.most]
    return ", ".join(shown) + " per step"
