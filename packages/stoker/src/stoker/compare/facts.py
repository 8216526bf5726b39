"""Facts about two versions that say why their results differ, or that equal losses hide a difference: pure, from what was observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from stoker.compare.losses import first_difference
from stoker.compare.observed import Observed, SeenSamples

MOST_OTHERS = 0.01
"""Share of samples that may differ where inputs are computed in another order: rounding moves few across a border of bfloat16."""
CHANGES = ("parameters", "epoch", "mode", "steps", "repeats")
"""Facts that are a change of the results even where the losses that were compared are equal."""
JUDGING = ("evaluation", "leak")
"""Facts that change what a result is judged by: then no metric of AFTER says that it is better."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One property of both versions."""

    name: str
    same: bool | None
    """None where it cannot be known."""
    text: str


def facts_of(before: Observed, after: Observed, *, parted: int | None) -> list[Fact]:
    """Return all facts that are known. `parted` is the step at which losses part."""
    others = (_epoch, _random, _weights, _mode, _steps, _evaluation)
    return [*_samples(before.training, after.training, parted), *(fact for known in others for fact in known(before, after))]


def _samples(before: SeenSamples, after: SeenSamples, parted: int | None) -> list[Fact]:
    size = min(len(before.exact), len(after.exact))
    if not size:
        return []
    total = f"{size:,} samples"
    if before.exact[:size] == after.exact[:size]:
        return [Fact(name="samples", same=True, text=f"the same {total} in the same order")]
    equal = sum(a == b for a, b in zip(before.rounded[:size], after.rounded[:size], strict=True))
    if equal >= (1 - MOST_OTHERS) * size:
        return [Fact(name="samples", same=True, text=f"the same {total} in the same order, with values rounded otherwise")]
    first = next(number for number in range(size) if before.rounded[number] != after.rounded[number])
    step = next((number for number, seen in enumerate(before.per_step, 1) if seen > first), len(before.per_step))
    if parted is not None and step > parted:
        text = f"the same until losses part; from step {step} on, inputs depend on the model"
        return [Fact(name="samples", same=None, text=text)]
    common = (Counter(before.rounded[:size]) & Counter(after.rounded[:size])).total()
    facts = []
    if common >= (1 - MOST_OTHERS) * size:
        facts.append(Fact(name="samples", same=False, text=f"the same {total} in another order, from step {step} on"))
    else:
        text = f"other samples from step {step} on: {common / size:.0%} of {total} are in both"
        facts.append(Fact(name="samples", same=False, text=text))
    distinct = [len(set(side.exact[:size])) for side in (before, after)]
    if distinct[1] < 0.9 * distinct[0]:
        text = f"samples repeat: {distinct[1]:,} distinct ones of {size:,} instead of {distinct[0]:,}"
        facts.append(Fact(name="repeats", same=False, text=text))
    return facts


def _epoch(before: Observed, after: Observed) -> list[Fact]:
    a, b = before.epoch_samples, after.epoch_samples
    if a is None or b is None:
        return []
    text = f"{a:,} samples per epoch in both" if a == b else f"{b:,} samples per epoch instead of {a:,}"
    return [Fact(name="epoch", same=a == b, text=text)]


def _random(before: Observed, after: Observed) -> list[Fact]:
    names = [name for name in before.random if name in after.random]
    steps = {name: _first_other(before.random[name], after.random[name]) for name in names}
    others = {name: step for name, step in steps.items() if step is not None}
    if not names:
        return []
    if not others:
        return [Fact(name="random", same=True, text="the same random numbers drawn")]
    name, step = min(others.items(), key=lambda entry: entry[1])
    return [Fact(name="random", same=False, text=f"other random numbers from step {step} on ({name})")]


def _first_other(a: Sequence[int], b: Sequence[int]) -> int | None:
    return next((step for step, (x, y) in enumerate(zip(a, b, strict=False), 1) if x != y), None)


def _weights(before: Observed, after: Observed) -> list[Fact]:
    if not before.weights or not after.weights:
        return []
    facts = []
    if sorted(before.weights) == sorted(after.weights):
        facts.append(Fact(name="weights", same=True, text="the same initial weights"))
    elif before.parameters == after.parameters:
        types = [{weight.rsplit(" ", 2)[1] for weight in side.weights} for side in (before, after)]
        other = "initial weights of another type" if types[0] != types[1] else "other initial weights"
        facts.append(Fact(name="weights", same=None if types[0] != types[1] else False, text=other))
    same = before.parameters == after.parameters
    text = (
        f"{before.parameters:,} parameters in both" if same else f"{after.parameters:,} parameters instead of {before.parameters:,}"
    )
    return [*facts, Fact(name="parameters", same=same, text=text)]


def _mode(before: Observed, after: Observed) -> list[Fact]:
    modes = before.training.training_mode, after.training.training_mode
    if None in modes or modes[0] == modes[1]:
        return []
    return [
        Fact(name="mode", same=False, text=f"the model trains in {'training' if modes[1] else 'evaluation'} mode, not as before")
    ]


def _steps(before: Observed, after: Observed) -> list[Fact]:
    a, b = len(before.ends), len(after.ends)
    if a == b or not (before.finished or after.finished):
        return []
    text = f"{b:,} steps to the end of the program instead of {a:,}{'' if before.finished and after.finished else ' or more'}"
    return [Fact(name="steps", same=False, text=text)]


def _evaluation(before: Observed, after: Observed) -> list[Fact]:
    rows = [set(side.evaluation.rounded) for side in (before, after)]
    if not rows[0] and not rows[1]:
        return []
    size = max(len(rows[0]), len(rows[1]))
    same = len(rows[0] ^ rows[1]) <= MOST_OTHERS * size
    text = (
        f"the same {size:,} samples evaluated"
        if same
        else f"{len(rows[1]):,} distinct samples evaluated instead of {len(rows[0]):,}"
    )
    if not same and len(rows[0]) == len(rows[1]):
        text = f"other samples evaluated: {len(rows[0] & rows[1]):,} of {size:,} are in both"
    facts = [Fact(name="evaluation", same=same, text=text)]
    leaks = [len(set(side.training.exact) & set(side.evaluation.exact)) for side in (before, after)]
    if leaks[1] > leaks[0] + MOST_OTHERS * size:
        text = f"{leaks[1]:,} samples of the evaluation are trained on, instead of {leaks[0]:,}"
        facts.append(Fact(name="leak", same=False, text=text))
    return facts


def repeats_of(name: str, runs: Sequence[Sequence[float]]) -> Fact | None:
    """Return the fact that runs of one side with the same seeds differ; None if they are the same bits."""
    steps = [step for run in runs[1:] if (step := first_difference(runs[0], run)) is not None]
    if not steps:
        return None
    return Fact(name=f"{name} again", same=False, text=f"{name} differs from itself from run to run, from step {min(steps)} on")
