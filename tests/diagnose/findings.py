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
    Machine,
    Measurements,
    Phases,
    Rank,
    SourceLine,
    Stretch,
    Sync,
    TrialResult,
    WhatIf,
    Work,
)

DATASET = SourceLine(file="iceaggr/data.py", line=88, function="IceDataset.__getitem__")
LOOP = SourceLine(file="train.py", line=41, function="main")
LOG = SourceLine(file="train.py", line=57, function="log")


def around(seconds: float, *windows: float) -> Stretch:
    """Steps that vary a little, in windows whose speeds are given."""
    steps = [1 + 0.04 * ((number * 7) % 5 - 2) / 2 for number in range(25)]
    speeds = windows or (1.0,)
    return Stretch(seconds=[seconds * factor / speed for speed in speeds for factor in steps], pieces=[25] * len(speeds))


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
            Advice(
                name="feed",
                sentence="pack to a store and use stoker.Feed",
                predicted=2.23,
                tried=TrialResult(
                    speedup=2.11, low=2.02, high=2.2, losses="equal", largest_difference=0.0, peak_bytes=1_210_000_000
                ),
            ),
            Advice(
                name="graph",
                sentence="then capture the step as a CUDA graph",
                predicted=1.86,
                tried=TrialResult(
                    speedup=1.79, low=1.71, high=1.9, losses="within tolerance", largest_difference=8.3e-7, peak_bytes=1_390_000_000
                ),
            ),
            Advice(
                name="autocast",
                sentence="compute in bfloat16 (torch.autocast)",
                predicted=1.0,
                tried=TrialResult(
                    speedup=0.97, low=0.94, high=1.01, losses="changed", largest_difference=0.042, peak_bytes=900_000_000
                ),
            ),
            Advice(
                name="compile",
                sentence="torch.compile the model",
                predicted=1.4,
                tried=TrialResult(
                    speedup=float("nan"),
                    low=float("nan"),
                    high=float("nan"),
                    losses="not compared",
                    error="data-dependent jump (model.py:31)",
                ),
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
            device_phases={"forward": 0.0011, "backward": 0.0015, "optimizer": 0.00065},
            fewer_threads={"8": 0.0061, "1": 0.0058},
            syncs=[Sync(place=LOG, count=2.0), Sync(place=None, count=1.0)],
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
                batch_size=256,
                dataset="IceDataset",
                place=LOOP,
                functions=[
                    Blame(place=DATASET, share=0.72),
                    Blame(place=SourceLine(file="iceaggr/data.py", line=61, function="read_file"), share=0.55),
                ],
                bytes_used=3_352_000.0,
                startup_seconds=1.9,
            ),
            work=Work(
                ops=412.0,
                kernels=218.0,
                flops=7.9e9,
                flops_by_dtype={"fp32": 7.1e9, "bf16": 8e8},
                h2d_bytes=3_352_000.0,
                h2d_copies=2.0,
                peak_bytes=1_200_000_000,
                shares={"gemm": 0.31, "elementwise": 0.38, "reduce": 0.11, "copy": 0.06, "optimizer": 0.1, "other": 0.04},
            ),
            machine=Machine(
                cores=16,
                threads=8,
                gpu="NVIDIA H200",
                matmul_flops={"fp32": 5.1e13, "tf32": 3.9e14, "bf16": 7.83e14},
                dispatch_seconds=3.1e-6,
                launch_seconds=4.4e-6,
            ),
            precision="fp32",
            optimizer="AdamW",
            optimizer_fused=False,
            what_ifs={"fused": WhatIf(as_it_is=around(0.00605), with_fix=around(0.0055))},
            removed={
                "copies": WhatIf(as_it_is=around(0.01353, 1.0, 1.0), with_fix=around(0.01341, 0.99, 1.02)),
                "everything": WhatIf(as_it_is=around(0.01349, 1.0, 1.0), with_fix=around(0.00583, 0.98, 1.01)),
            },
            gpu_taken=0.02,
            waited_for_cores=0.01,
            slow_steps=3,
            notes=[
                "torch.save to runs/best.pt went to /tmp/stoker-x1/best.pt",
                "steps 1 to 14 were left out: they were still getting faster",
            ],
            losses=[0.91, 0.88, 0.86],
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
            ranks=[
                Rank(rank=0, step_seconds=0.0135, apart_seconds=0.0129),
                Rank(rank=1, step_seconds=0.0135, apart_seconds=0.0091),
            ],
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
