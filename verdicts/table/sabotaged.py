"""Programs of which nothing can be said: they end after a few steps, or run beside noisy neighbours."""

from __future__ import annotations

from dataclasses import replace

from verdicts.table.cpu import ON_CPU
from verdicts.table.program import Program

_BY_NAME = {program.name: program for program in ON_CPU}


def _few_steps(name: str) -> Program:
    return replace(
        _BY_NAME[name],
        name=f"few-steps-{name}",
        arguments=f"{_BY_NAME[name].arguments} --steps 5",
        clean=None,
        verdict="none",
        kind="sabotaged",
    )


def _noisy(name: str) -> Program:
    return replace(_BY_NAME[name], name=f"noisy-{name}", clean=None, verdict="none", kind="sabotaged", neighbour=True)


SABOTAGED = [
    *(_few_steps(name) for name in ("data-mlp", "host-mlp", "optimizer-tabular", "compute-mlp", "dispatch-mlp")),
    *(_noisy(name) for name in ("data-windows", "host-transformer", "optimizer-transformer", "compute-tabular", "memory-mlp")),
]
