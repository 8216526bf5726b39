"""Findings made up for tests: one with everything that there is, one of a CPU, and one without a verdict."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import (
    Advice,
    Blame,
    Cause,
    Loader,
    Losses,
    Machine,
    Measurements,
    Phases,
    SourceLine,
    Stretch,
    TrialResult,
    WhatIf,
)

DATASET = SourceLine(file="iceaggr/data.py", line=88, function="IceDataset.__getitem__")
LOOP = SourceLine(file="train.py", line=41, function="main")
NAN = float("nan")
LOG = SourceLine(file="train.py", line=57, function="log")


def around(seconds: float, *windows: float) -> Stretch:
    """Steps that vary a little, in windows whose speeds are given."""
    steps = [1 + 0.04 * ((number * 7) % 5 - 2) / 2 for number in range(25)]
    speeds = windows or (1.0,)
    return Stretch(seconds=[seconds * factor / speed for speed in speeds for factor in steps], pieces=[25] * len(speeds))


def tried(
    name: str,
    sentence: str,
    predicted: float,
    speedups: tuple[float, float, float],
    losses: Losses,
    difference: float | None = None,
    peak_bytes: int | None = None,
    error: str | None = None,
) -> Advice:
    """An advice with its trial: speed-up, and both ends of its interval."""
    speedup, low, high = speedups
    trial = TrialResult(
        speedup=speedup, low=low, high=high, losses=losses, largest_difference=difference, peak_bytes=peak_bytes, error=error
    )
    return Advice(name=name, sentence=sentence, predicted=predicted, tried=trial)


def on_gpu() -> Finding:
    """A training with all that can be measured: held back by its data, then by launches."""
    return Finding(
        verdict="data",
        confidence="high",
        spread=0.031,
        causes=[
            Cause(verdict="data", share=0.551, sentence="without loading, a step takes 6.05 ms instead of 13.5 ms (2.23x)"),
            Cause(
                verdict="launch",
                share=0.209,
                sentence="21 % of each step the GPU is idle: 218 kernels are issued more slowly than they run",
            ),
        ],
        why="IceDataset.__getitem__ (iceaggr/data.py:88): 72 % of the loader's time",
        place=DATASET,
        next=[
            tried("feed", "pack to a store and use stoker.Feed", 2.23, (2.11, 2.02, 2.2), "equal", 0.0),
            tried("graph", "then capture the step as a CUDA graph", 1.86, (1.79, 1.71, 1.9), "within tolerance", 8.3e-7),
            tried("autocast", "compute in bfloat16 (torch.autocast)", 1.0, (0.97, 0.94, 1.01), "changed", 0.042, 900_000_000),
            tried(
                "compile",
                "torch.compile the model",
                1.4,
                (NAN, NAN, NAN),
                "not compared",
                error="data-dependent jump (model.py:31)",
            ),
            Advice(name="workers", sentence="4 worker processes in place of 0", predicted=1.9),
            Advice(name="batch", sentence="a larger batch", predicted=None),
        ],
        correctness=[
            "samples come again: 10 of 150 rows of epoch 0 came twice (data.py:88)",
            "x and y are of different rows in 3 of 24 batches",
        ],
        measurements=Measurements(
            device="cuda",
            steps_seen=214,
            loop=around(0.01349, 0.99, 1.0, 1.01),
            phases=Phases(next=0.00745, prepare=0.0004, forward=0.0022, backward=0.0018, optimizer=0.0011, rest=0.00054),
            cached=around(0.00605, 1.01, 1.0, 0.98),
            loader_alone=around(0.00805),
            device_alone=around(0.00325),
            blames={
                "next": [
                    Blame(place=DATASET, share=0.83),
                    Blame(place=SourceLine(file="iceaggr/data.py", line=120, function="collate"), share=0.09),
                ],
                "forward": [Blame(place=SourceLine(file="model.py", line=31, function="Encoder.forward"), share=0.7)],
                "rest": [Blame(place=LOG, share=0.95)],
            },
            loader=Loader(
                kind="DataLoader",
                workers=0,
                pinned=False,
                dataset="IceDataset",
                place=LOOP,
                functions=[
                    Blame(place=DATASET, share=0.72),
                    Blame(place=SourceLine(file="iceaggr/data.py", line=61, function="read_file"), share=0.55),
                ],
            ),
            machine=Machine(
                cores=16,
                threads=8,
                gpu="NVIDIA H200",
                matmul_flops={"fp32": 5.1e13, "tf32": 3.9e14, "bf16": 7.83e14},
                dispatch_seconds=3.1e-6,
                launch_seconds=4.4e-6,
            ),
            removed={
                "copies": WhatIf(as_it_is=around(0.01353, 1.0, 1.0), with_fix=around(0.01341, 0.99, 1.02)),
                "everything": WhatIf(as_it_is=around(0.01349, 1.0, 1.0), with_fix=around(0.00583, 0.98, 1.01)),
            },
            notes=[
                "torch.save to runs/best.pt went to /tmp/stoker-x1/best.pt",
                "steps 1 to 14 were left out: they were still getting faster",
            ],
        ),
    )


def on_cpu() -> Finding:
    """A training on a CPU, with what can be measured of it and no tries."""
    return Finding(
        verdict="dispatch",
        confidence="medium",
        spread=0.06,
        causes=[
            Cause(verdict="dispatch", share=0.58, sentence="1,840 small operations a step cost more to dispatch than to compute")
        ],
        why="GRUCell (model.py:12) is called once a time step: 96 times 19 operations",
        place=SourceLine(file="model.py", line=12, function="Encoder.forward"),
        next=[Advice(name="compile", sentence="torch.compile the model", predicted=1.7)],
        correctness=[],
        measurements=Measurements(
            device="cpu",
            steps_seen=80,
            loop=around(0.0243),
            phases=Phases(next=0.00005, prepare=0.0, forward=0.0101, backward=0.0122, optimizer=0.0016, rest=0.0003),
            cached=around(0.0242),
            loader_alone=around(0.00005),
            loader=Loader(kind="list"),
            machine=Machine(cores=2, threads=2, matmul_flops={"fp32": 9.1e10}, dispatch_seconds=4.2e-6),
        ),
    )


def without_verdict() -> Finding:
    """Steps too few, and nothing measured."""
    return Finding(
        verdict="none",
        confidence="low",
        spread=float("inf"),
        causes=[],
        why="only 5 steps were seen, and 12 are needed: let the script run longer",
        place=None,
        next=[],
        correctness=[],
        measurements=None,
    )


ALL = {"gpu": on_gpu, "cpu": on_cpu, "none": without_verdict}


hints_of = functools.cache(typing.get_type_hints)


def with_texts(value: Any, text: str, kind: Any = None) -> Any:
    """The same finding with one text in place of each that is free: fields, items of lists, and keys."""
    if isinstance(value, msgspec.Struct):
        hints = hints_of(type(value))
        return msgspec.structs.replace(
            value, **{name: with_texts(getattr(value, name), text, hints[name]) for name in value.__struct_fields__}
        )
    if isinstance(value, list):
        return [with_texts(item, text, typing.get_args(kind)[0]) for item in value]
    if isinstance(value, dict):
        # Keys stay different from each other.
        return {f"{text}{number}": with_texts(item, text, typing.get_args(kind)[1]) for number, item in enumerate(value.values())}
    return text if isinstance(value, str) and str in (kind, *typing.get_args(kind)) else value


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a finding, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from texts_of(getattr(value, name))
