"""The finding: verdict, why and next, as one object for people and programs; its JSON form is told in docs/diagnosing.md."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stoker.diagnose.measurements import Measurements, Place

SCHEMA: Literal[1] = 1
Verdict = Literal[
    "data",
    "transfer",
    "sync",
    "host",
    "launch",
    "optimizer",
    "compute",
    "precision",
    "memory",
    "kernel",
    "dispatch",
    "oversubscribed",
    "straggler",
    "communication",
    "none",
]
Confidence = Literal["high", "medium", "low"]
Losses = Literal["equal", "within tolerance", "changed", "not compared"]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that holds a training back."""

    verdict: Verdict
    share: float
    """Of a step's time that would be gone without it."""
    sentence: str


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a fix in a fresh process with the same seed."""

    speedup: float
    low: float
    high: float
    losses: Losses
    largest_difference: float | None = None
    peak_bytes: int | None = None
    step_seconds: float | None = None
    """Of the program as it is, next to it: a machine that changed its speed since the diagnosis makes another speed-up."""
    error: str | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do next."""

    name: str
    """Short, fixed: feed, workers, pinned, fused, autocast, tf32, compile, graph, threads, batch, cached, …"""
    sentence: str
    predicted: float | None
    """How many times faster; None where that cannot be said to about ten per cent."""
    predicted_low: float | None = None
    """The lower end of what is predicted; None where only the upper one is known."""
    predicted_high: float | None = None
    tried: Tried | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What holds a training back."""

    schema: Literal[1] = SCHEMA
    verdict: Verdict
    """"none" where nothing can be said; `why` then has the reason."""
    confidence: Confidence
    spread: float
    causes: list[Cause]
    """The first is the verdict, the second the next one; empty where there is no verdict."""
    why: str
    place: Place | None
    ladder: dict[str, float]
    """Steps a second: now, data_free, sync_free, launch_free, roofline; each at least the one before."""
    next: list[Step]
    correctness: list[str]
    """What is wrong with the batches, beside speed."""
    measurements: Measurements | None

    @property
    def second(self) -> Cause | None:
        """The second cause."""
        return self.causes[1] if len(self.causes) > 1 else None

    def __str__(self) -> str:
        from stoker.diagnose.show import text

        return text(self)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: the fields, and `second` as a verdict's name."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["second"] = self.second.verdict if self.second is not None else None
        return plain
