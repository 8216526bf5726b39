"""The gate: does a step do more than its budget allows? Counts are compared, never times, so a busy machine cannot raise an alarm.

`gate_step` counts the steps of a function, `gate_script` those of a script in a child process; both compare the counts with a budget
or write it: a small JSON file of integers that is kept beside the code and changes with it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from stoker._disk import make_folder, write_file
from stoker.compare.sides import Version, prepared
from stoker.diagnose.measurements import SourceLine
from stoker.errors import OptionError
from stoker.gate.budget import (
    CountAnswer,
    CountOptions,
    Counts,
    Gate,
    RunCounts,
    budget_of,
    budget_to_write,
    compare,
    read_budget,
    summarize,
)

WARMUP = 4
STEPS = 16


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
        path = budget_to_write(path)  # again: the program has run meanwhile
        make_folder(path.parent)
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
    (budget_to_write if write else read_budget)(Path(budget))  # an error in it is reported before the program runs
    counted = count_steps(Version(program=str(program), module=module), arguments, quiet=quiet, steps=steps, warmup=warmup)
    return _compare_with_file(counted.run, counted.lines, Path(budget), write=write)


def count_steps(
    version: Version, arguments: Sequence[str], *, quiet: bool = True, steps: int = STEPS, warmup: int = WARMUP
) -> CountAnswer:
    """Run a version of a program until its steps are counted. Raises `TrainError` if it fails or ends before that."""
    options = msgspec.json.encode(CountOptions(warmup=warmup, steps=steps)).decode()
    with prepared(replace(version, extension="stoker.gate.counts:CountedProgram", options=options)) as side:
        run = side.run([str(word) for word in arguments], quiet=quiet, hooks=False)
    return msgspec.msgpack.decode(run.answer, type=CountAnswer)
