"""Why one version of a program is faster: what its steps do more or less than those of the other, and what they spend their time on.

`explain` runs both versions in the engine of `stoker.compare` and returns lines for the receipt. `changed_counts` and `changed_shares` are
pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from stoker._text import readable_bytes
from stoker.compare.sides import Version
from stoker.diagnose.versions import shares_of
from stoker.errors import TrainError
from stoker.gate.budget import TITLES, RunCounts
from stoker.gate.gate import count_steps

MOST_LINES = 3
CHANGED_SHARE = 0.05  # of a step, from which on the share of a cause has changed
LEAST_CHANGE = 0.01  # of a count, from which on it is said: short last batches change bytes a little


def explain(
    before: Version, after: Version, arguments: Sequence[str] = (), *, diagnose: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> list[str]:  # fmt: skip
    """Run both versions for some steps each, and return what is different in a step. With `diagnose`, also why it takes its time."""
    lines = []
    try:
        progress("counting what a step does")
        counts = [count_steps(version, arguments).run for version in (before, after)]
        lines += changed_counts(counts[0], counts[1])
    except TrainError as error:
        lines.append(f"what a step does was not counted: {error}".rstrip("."))
    if diagnose:
        try:
            progress("measuring why a step takes its time")
            shares = [shares_of(version, arguments) for version in (before, after)]
            lines += changed_shares(shares[0], shares[1])
        except TrainError as error:
            lines.append(f"why a step takes its time was not measured: {error}".rstrip("."))
    return lines


def changed_counts(before: RunCounts, after: RunCounts) -> list[str]:
    """Return the counts per step that differ, and the lines of code that make the most of it."""
    changes = []
    for name, title in TITLES.items():
        a, b = (run.usual[name].most if name in run.usual else None for run in (before, after))
        if a is not None and b is not None and abs(a - b) > LEAST_CHANGE * max(a, b):
            changes.append(f"{title} {_shown(name, a)} -> {_shown(name, b)}")
    if not changes:
        return ["a step does the same in both"]
    lines = [f"per step: {', '.join(changes)}"]
    places = _ops_by_line(after)
    places.subtract(_ops_by_line(before))
    largest = sorted((line for line in places if places[line]), key=lambda line: -abs(places[line]))[:MOST_LINES]
    if largest:
        lines.append("operations by line: " + "; ".join(f"{places[line]:+,} {line}" for line in largest))
    return lines


def _ops_by_line(run: RunCounts) -> Counter[str]:
    """Operations by line, without the name of its file: the versions may be two files."""
    ops = Counter[str]()
    for line, counts in run.places.items():
        ops[line.partition(" ")[2]] += counts.get("ops", 0)
    return ops


def _shown(name: str, value: int) -> str:
    return readable_bytes(value) if name.endswith("_bytes") else f"{value:,}"


def changed_shares(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return the causes whose share of a step differs, those that changed most first."""
    changes = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}}
    largest = sorted(changes.items(), key=lambda entry: -abs(entry[1][1] - entry[1][0]))
    words = [f"{name} {a:.0%} -> {b:.0%}" for name, (a, b) in largest[:MOST_LINES] if abs(b - a) >= CHANGED_SHARE]
    return [f"shares of a step: {', '.join(words)}"] if words else []
