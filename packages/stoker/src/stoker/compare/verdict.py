"""The verdict on two versions, and requirements of the user: pure rules over losses, facts, speed and quality."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from stoker.compare.facts import CHANGES, JUDGING, Fact
from stoker.compare.losses import LossComparison
from stoker.compare.quality import Quality
from stoker.compare.rounds import Speed
from stoker.errors import OptionError

BETTER, WORSE, UNKNOWN, CHANGED = 0, 1, 3, 4
"""Exit statuses: faster or better with equal results; slower or worse; undecided; results changed and not shown to be better."""
MOST_AT_START = 0.01
"""Relative difference of the first loss from which on the loss is another function: training has changed no weight yet."""
UNBIASED = ("judge", "inputs", "leak")
"""Facts without which an evaluator judges what it should: no requirement is met where one of them is wrong."""
LOSSES = {"equal": ("equal",), "rounding": ("equal", "rounding"), "tolerance": ("equal", "rounding", "tolerance")}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The exit status, and why."""

    status: int
    title: str
    why: str = ""


def decide(losses: LossComparison, facts: Sequence[Fact], speed: Speed | None, quality: Quality | None) -> Decision:
    """Return the verdict."""
    pace = speed.verdict if speed is not None else "unknown"
    wrong = [fact for fact in facts if fact.same is False]
    judged = [fact.text for fact in wrong if fact.name in (*JUDGING, *UNBIASED)]
    changed = [fact.text for fact in wrong if fact.name in CHANGES]
    result = quality.verdict if quality is not None else "unknown"
    if losses.verdict == "changed":
        changed.insert(0, wording(losses))
    if quality is not None and quality.unexplained:
        judged.append(f"{quality.name} differs in {quality.unexplained} of {quality.pairs} repeats whose losses are the same bits")
    if quality is not None and quality.of_losses and losses.start > MOST_AT_START and all(_same(facts, "weights", "samples")):
        judged.append(
            "the same weights have another loss on the same samples at step 1, so losses cannot be compared: use a metric"
        )
    if judged:
        return Decision(status=CHANGED, title="CHANGED: what the result is judged by is another", why="; ".join(judged))
    if result == "worse":
        return Decision(status=WORSE, title="WORSE", why="; ".join(changed))
    if result == "better":
        return Decision(status=BETTER, title="BETTER" + (" and faster" if pace == "faster" else ""), why="; ".join(changed))
    no_worse = quality is not None and quality.no_worse
    if changed and not no_worse:
        title = {"faster": "FASTER, BUT CHANGED", "slower": "SLOWER, and changed"}.get(pace, "CHANGED")
        return Decision(status=WORSE if pace == "slower" else CHANGED, title=title, why="; ".join(changed))
    if losses.verdict == "unknown" and not no_worse:
        return Decision(status=WORSE if pace == "slower" else UNKNOWN, title="UNDECIDED whether results are equal", why=losses.why)
    if pace == "faster":
        how = "no worse results" if changed else _words(losses)
        return Decision(status=BETTER, title=f"FASTER with {how}", why="")
    if pace == "slower":
        return Decision(status=WORSE, title=f"SLOWER with {_words(losses)}")
    if speed is not None and pace == "same":
        return Decision(status=UNKNOWN, title=f"NO DIFFERENCE in speed above {speed.excluded:.1%}, with {_words(losses)}")
    untimed = "SPEED NOT COMPARED" if speed is None else "UNDECIDED whether it is faster"
    why = f"a difference above {speed.excluded:.0%} is excluded" if speed is not None and speed.excluded < 1 else ""
    return Decision(status=UNKNOWN, title=f"{untimed}; {_words(losses)}", why=why)


def _same(facts: Sequence[Fact], *names: str) -> list[bool]:
    return [any(fact.name == name and fact.same for fact in facts) for name in names]


def _words(losses: LossComparison) -> str:
    return {"equal": "equal results", "rounding": "results equal within rounding"}.get(
        losses.verdict, "results within the tolerance"
    )


def wording(losses: LossComparison) -> str:
    """Return the comparison of losses in words."""
    if losses.verdict == "unknown":
        return losses.why
    if losses.verdict == "equal":
        return f"bit-equal over {losses.steps:,} steps"
    start = f"bit-equal up to step {losses.first - 1:,}, then " if losses.first is not None and losses.first > 1 else ""
    yardstick = "" if losses.yardstick is None else f" (rounding alone: {losses.yardstick:.1g})"
    if losses.verdict == "rounding":
        return f"{start}equal within {losses.largest:.1g}{yardstick}"
    values = f"{losses.before:.6g} and {losses.after:.6g} at step {losses.at:,}"
    more = "beyond rounding but within the tolerance" if losses.verdict == "tolerance" else "beyond rounding"
    growing = ", and the difference grows" if losses.grows else ""
    return f"{start}{more}: {values}{yardstick}{growing}"


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """A clause of `require`, and whether it holds; None where that is undecided."""

    clause: str
    holds: bool | None


def check_requirements(
    text: str, losses: LossComparison, facts: Sequence[Fact], speed: Speed | None, quality: Quality | None, memory: float | None
) -> list[Requirement]:
    """Return which clauses hold, such as those of `speed>=1.2,loss=equal,memory<=1.1,quality=better,samples=same`.

    A speed-up is required of the lower end of its interval. `memory` is the ratio of the peaks, AFTER to BEFORE.
    """
    verdict = decide(losses, facts, speed, quality)
    results = []
    for clause in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(speed>=|memory<=)([0-9.]+)|(loss|quality|samples)=([\w-]+)", clause)
        if match is None:
            raise OptionError(
                f"{clause!r} is not a requirement; expected one like speed>=1.2, loss=equal or memory<=1.1.", parameter="require"
            )
        number, name, value = match[2], match[3], match[4]
        holds: bool | None
        if match[1] == "speed>=":
            low, high = (speed.low, speed.high) if speed is not None else (0.0, math.inf)
            holds = True if low >= float(number) else False if high < float(number) else None
        elif match[1] == "memory<=":
            holds = None if memory is None else memory <= float(number)
        elif name == "loss" and value in LOSSES:
            holds = None if losses.verdict == "unknown" else losses.verdict in LOSSES[value] and "CHANGED" not in verdict.title
        elif name == "quality" and value in ("better", "no-worse"):
            good = quality is not None and (quality.verdict == "better" or (value == "no-worse" and quality.no_worse))
            holds = good and verdict.status != CHANGED if quality is not None else None
        elif name == "samples" and value == "same":
            holds = next((fact.same for fact in facts if fact.name == "samples"), None)
        else:
            raise OptionError(f"{clause!r} is not a requirement: {value!r} is not known.", parameter="require")
        results.append(Requirement(clause=clause, holds=holds))
    return results


def status_of(requirements: Sequence[Requirement]) -> int:
    """Return the exit status of requirements: 0 if all hold, 4 if results are not as required, 1 for any other, 3 if unknown."""
    failed = [requirement.clause for requirement in requirements if requirement.holds is False]
    if failed:
        return CHANGED if any(not clause.startswith(("speed", "memory")) for clause in failed) else WORSE
    return UNKNOWN if any(requirement.holds is None for requirement in requirements) else BETTER
