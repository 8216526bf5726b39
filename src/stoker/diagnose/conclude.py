"""Conclude: measurements -> finding. The last station of a diagnosis, a pure function without torch: numbers in, words out."""

from __future__ import annotations

from stoker.diagnose.advice import advise, advise_on, place_of
from stoker.diagnose.finding import Cause, Confidence, Finding, Verdict
from stoker.diagnose.ladder import climb
from stoker.diagnose.measurements import Measurements, Place, Rank, Rare, Reads
from stoker.diagnose.parts import Division, copies_seconds, divide, flops_seconds, scaled_phases, seconds_of
from stoker.diagnose.rule import LARGEST_RESIDUAL, OF_RANKS, WASTE, doubt, holding, rank
from stoker.diagnose.words import percent
from stoker.units import readable_bytes, readable_seconds

SURE_SPREAD = 0.05
SURE_STEPS = 20
WORTH_TELLING = 0.05
"""Of all time, between epochs."""
READ_AGAIN = 1.5
"""Reads of each file from which on they are told of."""
CLOSE = 1.25
"""Two causes whose shares differ by less than this factor could change places."""


def conclude(measured: Measurements, *, correctness: list[str] | None = None) -> Finding:
    """What holds the training back, or why that cannot be said."""
    division = divide(measured)
    reason, rare = doubt(measured, division), holding(measured)
    causes = rank(measured, division) if reason is None else []
    verdict: Verdict = causes[0].verdict if causes else "none"
    if rare is not None:
        place, why = rare.place, _why_rare(rare)
        sure, steps = _confidence_in(rare), advise_on(rare)
    else:
        place = place_of(verdict, measured) if causes and verdict not in OF_RANKS else None
        why = _why(verdict, place, measured, division) if causes else ""
        sure = _confidence(measured, division, causes) if causes else "low"
        steps = advise(measured, division, causes) if causes else []
    return Finding(
        verdict=verdict,
        confidence=sure if causes else "low",
        spread=measured.loop.spread,
        causes=causes,
        why=reason if reason is not None else why,
        place=place if causes else None,
        ladder=climb(measured, division) if causes else {},
        next=steps if causes else [],
        correctness=correctness or [],
        measurements=measured,
    )


def _confidence_in(rare: Rare) -> Confidence:
    """High where its line is known, and it holds most of the time."""
    return "high" if rare.place is not None and rare.share >= 0.3 else "medium"


def _why_rare(rare: Rare) -> str:
    """What takes the time, where it was called, and what other steps take."""
    at = f"{rare.place}" if rare.place is not None else ""
    if rare.called is not None:
        at += f", called in {rare.called.file}:{rare.called.line}"
    every = f"{rare.every:,.0f} steps" if rare.every is not None else "some steps"
    took = (
        f"{_time(rare.seconds)} pass behind each epoch of {every}"
        if rare.between_epochs
        else f"1 of {every} takes {_time(rare.seconds)}"
    )
    return f"{at + ': ' if at else ''}{took}, the others {_time(rare.others)} each"


def _confidence(measured: Measurements, division: Division, causes: list[Cause]) -> Confidence:
    """High where nothing wavers; low where the second cause could as well be the first, or where next to nothing would be won."""
    residual = abs(division.residual) / division.step
    first, second = causes[0], causes[1]
    close = first.share < CLOSE * second.share and second.share >= WASTE and first.share < 0.5
    if close or residual > 0.8 * LARGEST_RESIDUAL or first.share < WASTE:
        return "low"
    steady = measured.loop.spread <= SURE_SPREAD and len(measured.loop.seconds) >= SURE_STEPS
    return "high" if steady and residual <= LARGEST_RESIDUAL / 2 and first.share >= 1.5 * WASTE else "medium"


def _why(verdict: Verdict, place: Place | None, measured: Measurements, division: Division) -> str:
    """The numbers behind the verdict, and the user's line."""
    told = {
        "data": _why_data,
        "transfer": _why_transfer,
        "sync": _why_sync,
        "host": _why_host,
        "oversubscribed": _why_oversubscribed,
        "launch": _why_launch,
        "dispatch": _why_dispatch,
        "straggler": _why_ranks,
        "communication": _why_ranks,
        "optimizer": _why_optimizer,
    }.get(verdict, _why_work)(measured, division)
    at = f"{place}: " if place is not None else ""
    return f"{at}{told}"


def _why_data(measured: Measurements, division: Division) -> str:
    loader, told = measured.loader, []
    if loader.functions:
        told.append(f"{percent(loader.functions[0].share)} of the loader's time")
    starting = measured.between_epochs.get("loader", 0.0)
    if starting >= WORTH_TELLING:
        told.append(f"{percent(starting)} of the time passes between epochs until it gives batches again")
    if loader.stages:
        stage = max(loader.stages, key=lambda name: loader.stages[name])
        told.append(f"{stage} is {percent(loader.stages[stage])} of making a batch")
    if loader.bytes_read and loader.bytes_used and loader.bytes_read > 1.5 * loader.bytes_used:
        told.append(f"{loader.bytes_read / loader.bytes_used:,.1f} bytes are read for each used")
        told += _read_again(loader.reads)
    alone, cached = seconds_of(measured.loader_alone), seconds_of(measured.cached)
    if alone is not None and cached is not None:
        told.append(
            f"a batch takes {_time(alone)} to make, a step without it {_time(cached)}, both together {_time(division.step)}"
        )
    else:
        told.append(f"a batch takes {_time(division.parts.data)} of a step of {_time(division.step)}")
    return "; ".join(told)


def _read_again(reads: Reads | None) -> list[str]:
    """How often the same files are read, where that is more than once."""
    if reads is None or reads.reads_a_file is None or reads.cache_hits is None or reads.reads_a_file < READ_AGAIN:
        return []
    files = f"each of {reads.files:,} files" if reads.files > 1 else "the same file"
    times = f"{reads.reads_a_file:,.0f} times for {reads.batches:,} batches"
    return [f"a worker reads {files} {times}, and {percent(reads.cache_hits)} of samples need no read"]


def _why_transfer(measured: Measurements, division: Division) -> str:
    work, machine = measured.work, measured.machine
    told = f"copies take {_time(copies_seconds(measured))} alone and {_time(division.parts.transfer)} in the loop"
    if work is not None and work.h2d_bytes:
        told += f", for {readable_bytes(work.h2d_bytes)} in {work.h2d_copies:,.0f} copies a step"
    if not measured.loader.pinned and machine.h2d_pageable_bytes and machine.h2d_pinned_bytes:
        pageable, pinned = readable_bytes(machine.h2d_pageable_bytes), readable_bytes(machine.h2d_pinned_bytes)
        told += f"; memory is not pinned ({pageable}/s against {pinned}/s)"
    return told


def _why_sync(measured: Measurements, division: Division) -> str:
    count = sum(sync.count for sync in measured.syncs)
    times = f"{count:,.0f} times a step" if count else "in each step"
    return f"the host waits for the GPU {times}; a step takes {_time(division.step)}, its kernels {_time(_device(measured))}"


def _why_host(measured: Measurements, division: Division) -> str:
    rest = scaled_phases(measured, division.step).rest
    where = f", {_time(rest)} of it after the step of the optimizer" if rest > 0 else ""
    return f"{_time(division.parts.host)} of a step of {_time(division.step)} is neither data nor operations of torch{where}"


def _why_oversubscribed(measured: Measurements, division: Division) -> str:
    machine, by_threads = measured.machine, measured.fewer_threads
    workers = f" and {measured.loader.workers} workers" if measured.loader.workers else ""
    told = f"{machine.threads} threads{workers} on {machine.cores} cores"
    if by_threads:
        best = min(by_threads, key=lambda number: by_threads[number])
        now = by_threads.get(str(machine.threads)) or seconds_of(measured.cached) or division.step
        told += f"; with {best} a step without its data takes {_time(by_threads[best])}, not {_time(now)}"
    return told


def _why_launch(measured: Measurements, division: Division) -> str:
    issue, work = seconds_of(measured.host_issue), measured.work
    kernels = f"{work.kernels:,.0f} kernels" if work is not None and work.kernels else "the kernels"
    told = f"the host takes {_time(issue if issue is not None else division.step)} to issue {kernels} of a step"
    return f"{told}, and the GPU {_time(_device(measured))} to run them"


def _why_ranks(measured: Measurements, division: Division) -> str:
    own = ", ".join(f"rank {one.rank} {_time(one.apart_seconds)}" for one in sorted(measured.ranks, key=_slowest)[:4])
    return f"a step takes {_time(division.step)} in all processes, and without the exchange between them: {own}"


def _slowest(rank: Rank) -> float:
    return -rank.apart_seconds


def _why_dispatch(measured: Measurements, division: Division) -> str:
    ops = measured.work.ops if measured.work is not None else 0.0
    each = measured.machine.dispatch_seconds
    told = f"{ops:,.0f} operations a step, each of which costs about {_time(each)} however small it is"
    return f"{told} ({_time(division.parts.dispatch)} of {_time(division.step)})"


def _why_optimizer(measured: Measurements, division: Division) -> str:
    name = measured.optimizer or "the optimizer"
    kind = " (not fused)" if measured.optimizer_fused is False else ""
    return f"{name}{kind} takes {_time(division.parts.optimizer)} of a step of {_time(division.step)}"


def _why_work(measured: Measurements, division: Division) -> str:
    work, busy = measured.work, _device(measured) if measured.device == "cuda" else division.step
    if work is None:
        return f"a step takes {_time(division.step)}"
    told = []
    if work.shares:
        kinds = sorted(work.shares, key=lambda kind: -work.shares[kind])[:3]
        told.append(", ".join(f"{kind} {percent(work.shares[kind])}" for kind in kinds) + " of the time of operations")
    if work.flops and busy > 0 and flops_seconds(measured) > 0:
        reached = percent(min(1.0, flops_seconds(measured) / busy))
        told.append(f"{reached} of the {measured.precision} peak that this machine was measured to reach")
    told.append(f"{work.ops:,.0f} operations in {_time(busy)}")
    return "; ".join(told)


def _device(measured: Measurements) -> float:
    return seconds_of(measured.device_alone) or measured.loop.median


def _time(seconds: float) -> str:
    return readable_seconds(seconds) if seconds > 0 else "0 s"
