"""Measurements for the laws of the rule: drawn at random, with fields that may be missing, and those of `kept`.

The files of `kept` are those of `verdicts.run --keep`, thinned out.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.diagnose.measured import COMPUTING, LOG, MS, TWO_CORES, around, on_cpu, on_gpu

from stoker.diagnose.measurements import (
    Blame,
    BusyThread,
    Loader,
    Measurements,
    Phases,
    Rank,
    RareSteps,
    Stretch,
    Sync,
    WhatIf,
)

KEPT = Path(__file__).parent / "kept"
NAMES = sorted(path.stem for path in KEPT.glob("*.json"))
EXPERIMENTS = ("copies", "reads", "callbacks", "between", "everything")
FIXES = ("feed", "workers", "pinned", "fused", "autocast", "tf32", "compile", "graph", "threads", "batch", "malloc", "float32")
OPTIONAL: dict[str, Any] = {
    "cached": None,
    "loader_alone": None,
    "device_alone": None,
    "device_phases": {},
    "work": None,
    "phases_alone": None,
    "waited_for_cores": None,
    "busy_thread": None,
    "asleep": None,
    "removed": {},
    "what_ifs": {},
    "fewer_threads": {},
    "syncs": [],
    "blames": {},
    "pages": {},
    "optimizer": None,
}
"""What a measurement may lack, and how."""

times = st.floats(0.0, 50.0)
share = st.floats(0.0, 1.0)
shares = st.fixed_dictionaries(dict.fromkeys(COMPUTING, share)).map(
    lambda drawn: {kind: value / max(1e-9, sum(drawn.values())) for kind, value in drawn.items()}
)


@functools.cache
def kept(name: str) -> Measurements:
    """Return what was measured of a program."""
    return msgspec.json.decode((KEPT / f"{name}.json").read_bytes(), type=Measurements)


@st.composite
def windows(draw: st.DrawFn, step: float) -> WhatIf:
    """Steps with a change that makes them up to twice as long or next to nothing, in a few windows."""
    number, spread = draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 0.02, 0.3]))
    ratio = draw(st.floats(0.01, 2.0))

    def stretch(seconds: float) -> Stretch:
        return Stretch(seconds=around(seconds, spread=spread, number=6 * number).seconds, pieces=[6] * number)

    return WhatIf(as_it_is=stretch(step * draw(st.floats(0.8, 1.2))), with_fix=stretch(step * ratio))


@st.composite
def extras(draw: st.DrawFn, step: float) -> dict[str, Any]:
    """What may be known of a program besides its steps."""
    rare = st.builds(
        RareSteps,
        share=st.floats(0.0, 0.95),
        every=st.none() | st.floats(2.0, 100.0),
        seconds=st.floats(2.0, 100.0).map(lambda times: times * step),
        others=st.just(step),
        between_epochs=st.booleans(),
        phase=st.sampled_from([None, "next", "prepare", "forward", "rest"]),
        alone=st.booleans(),
        place=st.none() | st.just(LOG),
    )
    changes = windows(step)
    return {
        "removed": draw(st.dictionaries(st.sampled_from(EXPERIMENTS), changes)),
        "what_ifs": draw(st.dictionaries(st.sampled_from(FIXES), changes, max_size=3)),
        "waited_for_cores": draw(st.none() | st.sampled_from([0.0, 0.05, 0.5])),
        "busy_thread": draw(
            st.none() | st.builds(BusyThread, name=st.just("statistics"), share=share, place=st.none() | st.just(LOG))
        ),
        "asleep": draw(st.none() | share),
        "rare": draw(st.none() | rare),
        "also_rare": None,
        "pages": draw(st.just({}) | st.just({"loop": [900.0, 1200.0], "cached": [900.0]})),
        "blames": draw(st.just({}) | share.map(lambda part: {"rest": [Blame(place=LOG, share=part)]})),
        "between_epochs": draw(st.just({}) | share.map(lambda part: {"loader": part, "other": 0.0})),
        "precision": draw(st.sampled_from(["fp32", "tf32", "bf16", "fp64"])),
    }


@st.composite
def cpu_runs(draw: st.DrawFn) -> Measurements:
    """Any training on a CPU, also such as cannot be."""
    options: dict[str, Any] = {name: draw(times) for name in Phases.__struct_fields__}
    options["backward"] += 0.01
    step = sum(options.values())
    options["cached"] = draw(st.none() | st.floats(0.1, 1.2).map(lambda part: around(part * step * MS)))
    options["loader_alone"] = draw(st.none() | times.map(lambda alone: around(alone * MS)))
    options["loader"] = Loader(kind=draw(st.sampled_from(["DataLoader", "loop"])), workers=draw(st.integers(0, 16)))
    options["machine"] = msgspec.structs.replace(TWO_CORES, threads=draw(st.integers(1, 32)))
    options["fewer_threads"] = draw(st.dictionaries(st.sampled_from(["1", "2", "16"]), st.floats(1e-4, 0.1)))
    apart = draw(st.just([]) | st.lists(st.floats(0.05, 1.0), min_size=2, max_size=3))
    options["ranks"] = [Rank(rank=i, step_seconds=step * MS, apart_seconds=part * step * MS) for i, part in enumerate(apart)]
    options["spread"] = draw(st.sampled_from([0.0, 0.02, 0.2]))
    measured = on_cpu(**options, ops=draw(st.floats(0, 1e5)), shares=draw(st.just({}) | shares), flops=draw(st.floats(0, 1e12)))
    return msgspec.structs.replace(measured, **draw(extras(step * MS)))


@st.composite
def gpu_runs(draw: st.DrawFn) -> Measurements:
    """Any training on a GPU."""
    step = draw(st.floats(0.1, 50.0))
    part = (st.just(0.0) | st.floats(1e-3, 1.2)).map(lambda fraction: fraction * step)
    measured = on_gpu(
        step,
        cached=draw(part),
        device=draw(part),
        rest=draw(part),
        kernels=draw(st.floats(0, 5000)),
        reached=draw(share),
        shares=draw(st.just({}) | shares),
        optimizer=draw(st.just(0.0) | part),
        phases=Phases(**{name: draw(times) * MS for name in Phases.__struct_fields__}),
        syncs=draw(st.just([]) | st.just([Sync(place=LOG, count=50.0)])),
        sized=draw(st.booleans()),
        gpu_taken=draw(st.none() | st.sampled_from([0.0, 0.05, 0.5])),
    )
    return msgspec.structs.replace(measured, **draw(extras(step * MS)))


def runs() -> st.SearchStrategy[Measurements]:
    """Any training: drawn, or kept; some of what is optional may be missing."""
    complete = cpu_runs() | gpu_runs() | st.sampled_from(NAMES).map(kept)
    return st.builds(
        lambda measured, missing: msgspec.structs.replace(measured, **{name: OPTIONAL[name] for name in missing}),
        complete,
        st.sets(st.sampled_from(sorted(OPTIONAL)), max_size=4),
    )
