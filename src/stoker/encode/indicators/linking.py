"""Linking: an assembly and the outputs that are wanted of it become a program. Constants and lanes get their places here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.encode.indicators.assembly import Assembly, Instruction, Lane, Numbers, Output, Term
from stoker.encode.indicators.program import Arithmetic, Program

Run = tuple[int, int, int]


def link(assembly: Assembly, outputs: Sequence[Output], arithmetic: Arithmetic, *, emit_from: int, pad: float) -> Program:
    """The program that computes these outputs, in this order."""
    table = list(assembly.instructions)
    runs: list[Run] = []
    lanes: list[Numbers] = []
    num_registers = assembly.num_registers
    groups: dict[tuple[str, Term], list[int]] = {}
    for feature, output in enumerate(outputs):
        if isinstance(output, Lane):
            groups.setdefault((output.kind, output.source), []).append(feature)
    for (kind, source), features in groups.items():
        found = _runs(features)
        table.append(
            Instruction(
                op=assembly.LANES[kind],
                a=source.back(1) if kind == "rsi" else source,
                window=len(features),
                register=num_registers,
                row=len(lanes),
                run=len(runs),
                count=len(found),
            )
        )
        runs += found
        lanes += [assembly.lane_numbers(output) for output in outputs if isinstance(output, Lane) and output[:2] == (kind, source)]
        num_registers += 1
    written = [(_place(assembly, output), feature, 1) for feature, output in enumerate(outputs) if isinstance(output, Term)]
    if written:
        table.append(Instruction(op=assembly.WRITE, run=len(runs), count=len(written)))
        runs += written
    return Program(
        arithmetic=arithmetic,
        sources=tuple(assembly.sources),
        num_features=len(outputs),
        instructions=np.array([_row(assembly, one) for one in table], dtype=np.int64),
        numbers=np.array([one.numbers for one in table], dtype=np.float64),
        runs=np.array(runs, dtype=np.int64).reshape(-1, 3),
        num_live=assembly.num_live,
        constants=np.array(assembly.constants, dtype=np.float64),
        lanes=np.concatenate([np.zeros((2, len(lanes))), np.array(lanes, dtype=np.float64).reshape(-1, 2).T]),
        num_sum_rows=assembly.num_sum_rows,
        num_registers=num_registers,
        history=assembly.history,
        emit_from=emit_from,
        pad=pad,
    )


def _runs(features: Sequence[int]) -> list[Run]:
    """Lanes that go to neighbouring features are copied together: first lane, first feature, how many."""
    runs: list[Run] = []
    for lane, feature in enumerate(features):
        if runs and runs[-1][1] + runs[-1][2] == feature:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((lane, feature, 1))
    return runs


def _row(assembly: Assembly, one: Instruction) -> list[int]:
    a, b = _place(assembly, one.a), _place(assembly, one.b)
    operands = [one.op, one.out, a, one.a.lag, b, one.b.lag]
    return [*operands, one.window, one.first, one.register, one.row, one.run, one.count]


def _place(assembly: Assembly, term: Term) -> int:
    """The column of a term; constants lie behind those that are written."""
    return term.column if term.column >= 0 else assembly.num_live - 1 - term.column
