"""Observed runs made by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.compare.observed import Observed, SeenSamples

STEPS = 40


def samples(numbers: list[int], *, batch: int = 4, mode: bool = True) -> SeenSamples:
    """SeenSamples by their fingerprints."""
    per_step = [min(len(numbers), batch * (step + 1)) for step in range(STEPS)]
    return SeenSamples(exact=numbers, rounded=[number + 1_000_000 for number in numbers], per_step=per_step, training_mode=mode)


def observed(step: float = 0.01, first: float = 1.0, **changes: Any) -> Observed:
    """A run whose steps take `step` seconds after a start that takes `first`."""
    ends = [first + step * number for number in range(STEPS)]
    run = Observed(
        losses=[1.0 / (number + 1) for number in range(STEPS)],
        ends=ends,
        middle=ends[STEPS // 2 - 1],
        end=ends[-1],
        weights=["(4,) torch.float32 1a", "(2, 4) torch.float32 2b"],
        parameters=12,
        random={"torch": list(range(STEPS))},
        training=samples(list(range(4 * STEPS))),
        evaluation=samples(list(range(10_000, 10_064)), mode=False),
        epoch_samples=80,
        host_bytes=1000,
        packages={"torch": "2.13"},
        code={"train.py": "ab" * 32},
        disturbed=0.0,
    )
    return msgspec.structs.replace(run, **changes)
