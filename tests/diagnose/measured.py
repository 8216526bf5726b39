"""Measurements made up for tests: of a GPU from the numbers of a table, of a CPU from phases."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.diagnose.measurements import Loader, Machine, Measurements, Phases, SourceLine, Stretch, WhatIf, Work

MS = 1e-3
NO_PHASES = Phases(next=0.0, prepare=0.0, forward=0.0, backward=0.0, optimizer=0.0, rest=0.0)
H200 = Machine(
    cores=16,
    threads=8,
    gpu="NVIDIA H200",
    matmul_flops={"fp32": 5.1e13, "tf32": 3.9e14, "bf16": 7.83e14, "fp16": 7.8e14},
    dispatch_seconds=3e-6,
    launch_seconds=4e-6,
)
TWO_CORES = Machine(cores=2, threads=2, matmul_flops={"fp32": 2e11, "bf16": 4e11}, dispatch_seconds=2e-6)
COMPUTING = {"gemm": 0.8, "elementwise": 0.1, "reduce": 0.02, "copy": 0.02, "optimizer": 0.02, "other": 0.04}
MOVING = {"gemm": 0.02, "elementwise": 0.7, "reduce": 0.14, "copy": 0.08, "optimizer": 0.02, "other": 0.04}
LOG = SourceLine(file="train.py", line=57, function="log")


def around(seconds: float, *, spread: float = 0.02, number: int = 24) -> Stretch:
    """Steps that vary a little."""
    return Stretch(seconds=[seconds * (1 + 2 * spread * ((place * 7) % 5 - 2) / 2) for place in range(number)])


def changed(before: float, after: float, *, spread: float = 0.02) -> WhatIf:
    """Steps without a change and with it, in milliseconds."""
    return WhatIf(as_it_is=around(before * MS, spread=spread), with_fix=around(after * MS, spread=spread))


def on_gpu(
    step: float,
    *,
    cached: float | None = None,
    copies: float | None = None,
    reads: float | None = None,
    everything: float | None = None,
    device: float,
    kernels: float = 300.0,
    rest: float = 0.0,
    reached: float = 0.0,
    shares: dict[str, float] | None = None,
    optimizer: float = 0.0,
    precision: str = "fp32",
    **more: Any,
) -> Measurements:
    """A training on a GPU: milliseconds of a step as it is and without each suspect, of its kernels, and of Python after the update.

    `reached` is the share of the bf16 peak. A suspect without a number costs nothing, and what is left without all of them is what is
    left without the largest.
    """
    single = {"copies": step if copies is None else copies, "reads": step if reads is None else reads}
    cached = step if cached is None else cached
    left = min(step, cached, *single.values()) if everything is None else everything
    flops = reached * H200.matmul_flops["bf16"] * device * MS
    given: dict[str, Any] = {
        "loop": around(step * MS),
        "phases": NO_PHASES,
        "cached": around(cached * MS),
        "device_alone": around(device * MS),
        "device_phases": {"backward": (device - optimizer) * MS, "optimizer": optimizer * MS} if optimizer else {},
        "loader": Loader(kind="DataLoader"),
        "machine": H200,
        "work": Work(ops=2 * kernels, kernels=kernels, flops=flops, device_seconds=device * MS, shares=shares or {}),
        "removed": {name: changed(step, without) for name, without in {**single, "everything": left}.items()},
        "phases_alone": msgspec.structs.replace(NO_PHASES, rest=rest * MS, forward=max(0.0, left - rest) * MS),
    }
    return Measurements(device="cuda", steps_seen=100, precision=precision, **{**given, **more})


def on_cpu(
    *,
    next: float = 0.1,
    prepare: float = 0.1,
    forward: float = 4.0,
    backward: float = 5.0,
    optimizer: float = 0.5,
    rest: float = 0.1,
    ops: float = 100.0,
    shares: dict[str, float] | None = None,
    flops: float = 1e9,
    spread: float = 0.02,
    number: int = 24,
    **more: Any,
) -> Measurements:
    """A training on two cores, in milliseconds by phase; without its data it takes what the other phases take."""
    step = next + prepare + forward + backward + optimizer + rest
    work = Work(ops=ops, flops=flops, shares=COMPUTING if shares is None else shares)
    given: dict[str, Any] = {
        "loop": around(step * MS, spread=spread, number=number),
        "cached": around((step - next) * MS),
        "loader_alone": around(next * MS),
        "loader": Loader(kind="DataLoader"),
        "machine": TWO_CORES,
        "work": work,
        "optimizer": "AdamW",
        "optimizer_fused": False,
    }
    phases = {"next": next, "prepare": prepare, "forward": forward, "backward": backward, "optimizer": optimizer, "rest": rest}
    return Measurements(
        device="cpu", steps_seen=100, phases=Phases(**{name: one * MS for name, one in phases.items()}), **{**given, **more}
    )
