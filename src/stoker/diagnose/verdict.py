"""The rule: measurements -> causes, the first of which is the verdict, or the reason why there is none. A pure function, no torch.

Waste comes before work: a step that computes for nine tenths of its time and waits for its data in the last one is data-bound,
because that tenth can be had. Among wastes, and among kinds of work, the larger part comes first.
"""

from __future__ import annotations

import math

import msgspec

from stoker._text import readable_bytes, readable_seconds
from stoker.diagnose.advice import advise, advise_on, place_of
from stoker.diagnose.attribution import Division, copies_seconds, crowded, divide, flops_seconds, scaled_phases, seconds_of
from stoker.diagnose.measurements import Cause, Confidence, Finding, Measurements, Place, Rank, Rare, Reads, Verdict
from stoker.diagnose.render import percent
from stoker.diagnose.thresholds import RULE

QUIET = "run it again while nothing else uses the machine; if batches differ in size, give it some of one size"
OF_RANKS: tuple[Verdict, ...] = ("straggler", "communication")
WASTES: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "oversubscribed", *OF_RANKS)
WORK: tuple[Verdict, ...] = ("precision", "compute", "memory", "kernel")
ON_CPU: tuple[Verdict, ...] = ("data", "host", "oversubscribed", "dispatch", "optimizer", "compute", "memory", "kernel")
ON_CUDA: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "launch", "optimizer", *WORK)


def rank(measured: Measurements, division: Division | None = None) -> list[Cause]:
    """Causes, the first being the verdict; at least two, and none with less than half a per cent after those."""
    division = divide(measured) if division is None else division
    rare = holding(measured)
    if rare is not None:
        others = _rank(measured, division) if _doubt_of_parts(measured, division) is None else []
        verdict = verdict_of(rare) or "none"
        scaled = [msgspec.structs.replace(one, share=one.share * (1 - rare.share)) for one in others if one.verdict != verdict]
        return [Cause(verdict=verdict, share=rare.share, sentence=_of_rare(rare)), *scaled]
    return _rank(measured, division)


def holding(measured: Measurements) -> Rare | None:
    """What is rare and holds so much of the time that parts of the other steps say little."""
    return measured.rare if measured.rare is not None and measured.rare.share > RULE.rare_verdict_share else None


def verdict_of(rare: Rare) -> Verdict | None:
    """Whose it is; None where that is not known."""
    if rare.between_epochs:
        return "host"
    if rare.every is None:
        return None
    if rare.phase in ("next", "prepare") and rare.seconds >= RULE.rare_data_ratio * rare.others:
        return "data"
    return "host" if rare.alone else None


def _of_rare(rare: Rare) -> str:
    told, every = f"{percent(rare.share)} of all time", f"{rare.every:,.0f}" if rare.every is not None else "many"
    at = f", {rare.place.file}:{rare.place.line} `{rare.place.function}`" if rare.place is not None else ""
    if rare.between_epochs:
        return f"{told} passes between epochs, each of {every} steps{at}"
    return f"{told} is in 1 of {every} steps{at}"


def _rank(measured: Measurements, division: Division) -> list[Cause]:
    names = (*(OF_RANKS if measured.ranks else ()), *(ON_CUDA if measured.device == "cuda" else ON_CPU))
    shares = {name: division.share(name) for name in names}
    first = _to_be_first(shares, division)
    last = WORK if division.host_limits else ()
    tiny = {name for name in names if shares[name] < RULE.min_cause_share and not (name == "launch" and division.host_limits)}
    # The order of the names decides between equal shares: what hides others comes first.
    order = sorted(names, key=lambda name: (name in tiny, name in last, name not in first, -shares[name], names.index(name)))
    return [
        Cause(verdict=name, share=shares[name], sentence=_sentence(name, shares[name], measured))
        for place, name in enumerate(order)
        if place < 2 or shares[name] >= RULE.min_cause_share
    ]


def _to_be_first(shares: dict[Verdict, float], division: Division) -> set[Verdict]:
    """The wastes that are large enough to come before work."""
    first: set[Verdict] = {name for name in WASTES if shares.get(name, 0.0) >= RULE.waste_first}
    work = sum(shares.get(name, 0.0) for name in ("dispatch", "optimizer", *WORK)) + division.share("unknown")
    if shares["optimizer"] > 0 and shares["optimizer"] >= RULE.optimizer_first * work:
        first.add("optimizer")
    if shares.get("dispatch", 0.0) > 0 and shares["dispatch"] >= RULE.dispatch_first * work:
        first.add("dispatch")
    if division.host_limits and shares.get("launch", 0.0) >= RULE.waste_first:
        first.add("launch")
    return first


def doubt(measured: Measurements, division: Division | None = None) -> str | None:
    """Why there can be no verdict; None where there can."""
    steps = measured.loop.seconds
    if len(steps) < RULE.min_steps:
        count = "one step was" if len(steps) == 1 else f"{len(steps)} steps were"
        return f"only {count} measured, and {RULE.min_steps} are needed: let the training run longer"
    if not all(math.isfinite(one) and one > 0 for one in steps):
        return "the clock of this machine gave times that cannot be"
    division = divide(measured) if division is None else division
    rare = holding(measured)
    if rare is not None:
        return _others_had_cores(measured, division) or _unknown(rare, len(steps))
    return _doubt_of_parts(measured, division)


def _unknown(rare: Rare, number: int) -> str | None:
    """Why it cannot be said whose the time of rare steps is."""
    seconds, others = readable_seconds(rare.seconds), readable_seconds(rare.others)
    at = f" at {rare.place}" if rare.place is not None else ""
    if rare.every is None:
        return (
            f"one of {number:,} steps took {seconds}{at} where others take {others}, and was not seen again, "
            "so that nobody knows how often it comes: measure for longer with --seconds"
        )
    if verdict_of(rare) is not None:
        return None
    phase = f" in the phase `{rare.phase}`" if rare.phase is not None else ""
    return (
        f"{percent(rare.share)} of all time is in 1 of {rare.every:,.0f} steps, which take {seconds} where others take "
        f"{others}, but for no reason of their own{phase}{at}: {QUIET}"
    )


def _doubt_of_parts(measured: Measurements, division: Division) -> str | None:
    """Why the parts of a step are not to be trusted; None where they are."""
    told = _unsteady(measured, division) if division.share("oversubscribed") < RULE.self_crowding else None
    if told is not None:
        return told
    if abs(measured.loop.tail) > RULE.max_mean_off_median:
        mean, median = readable_seconds(measured.loop.median * (1 + measured.loop.tail)), readable_seconds(measured.loop.median)
        return f"a step takes {mean} by the wall clock, but most steps take {median}, and it is not known why: {QUIET}"
    residual, pages = division.residual / division.step, measured.for_pages("loop", "cached")
    # Steps that got more memory from the system in one stretch than in another took longer by as much.
    by_pages = (max(pages) - min(pages)) / division.step if pages else 0.0
    if abs(residual) > RULE.max_residual + by_pages:
        side = "longer" if residual > 0 else "shorter"
        return f"a step takes {percent(abs(residual))} {side} than its parts, measured one by one: {QUIET}"
    if _slow_or_exchanging(measured, division):
        return "a slow process cannot be told from a slow exchange, which they did not begin together: measure one alone, too"
    if measured.work is None and division.share("unknown") > max(_all_shares(division).values()):
        return "the training ended before its work could be counted: let it run longer"
    return None


def _slow_or_exchanging(measured: Measurements, division: Division) -> bool:
    """Whether both have a part, and nobody knows what the exchange takes by itself."""
    unknown = any(rank.exchange_seconds is None for rank in measured.ranks) and measured.device == "cpu"
    return unknown and all(division.share(name) >= RULE.waste_first for name in OF_RANKS)


def _unsteady(measured: Measurements, division: Division) -> str | None:
    """What the machine did besides, or how it changed."""
    loop, told = measured.loop, _others_had_cores(measured, division)
    if told is not None:
        return told
    cached = measured.cached if not measured.ranks else None  # nothing follows from it where processes wait for each other
    if loop.spread > _largest_spread(measured):
        ordered = sorted(loop.seconds)
        low, high = (readable_seconds(ordered[len(ordered) * quarter // 4]) for quarter in (1, 3))
        return f"steps vary too much ({percent(loop.spread)}, from {low} to {high}): {QUIET}"
    if measured.waited_for_cores is None and loop.drift > RULE.max_drift:
        return f"the machine changed its speed by {percent(loop.drift)} meanwhile: {QUIET}"
    if cached is not None and len(cached.seconds) >= 4 and cached.spread > RULE.max_spread_cached * _slack(measured):
        return f"steps on batches that are kept vary too much ({percent(cached.spread)}): {QUIET}"
    return None


def _others_had_cores(measured: Measurements, division: Division) -> str | None:
    waited = _waited(measured)
    by_host = measured.device == "cpu" or division.host_limits  # a GPU that is behind does not mind
    if waited is not None and waited > RULE.max_wait_for_cores and by_host:
        return f"for {percent(waited)} of the time other programs had the cores: run it again while nothing else uses them"
    return None


def _waited(measured: Measurements) -> float | None:
    """Of the time, ready to run while others had the core; None where these may have been threads of the training itself."""
    if not crowded(measured):
        return measured.waited_for_cores
    if crowded(measured, exchanging=False):
        return None
    # It is threads that send and receive that make the crowd: without the exchange they sleep.
    apart = [rank.waited_for_cores for rank in measured.ranks if rank.waited_for_cores is not None]
    return max(apart) if apart and len(apart) == len(measured.ranks) else None


def _largest_spread(measured: Measurements) -> float:
    if measured.ranks:
        return RULE.max_spread_ranks * (RULE.spread_slack if measured.device == "cpu" and _waited(measured) is not None else 1.0)
    return RULE.max_spread_cuda if measured.device == "cuda" else RULE.max_spread_cpu * _slack(measured)


def _slack(measured: Measurements) -> float:
    return RULE.spread_slack if measured.waited_for_cores is not None and measured.device == "cpu" and not measured.ranks else 1.0


def _all_shares(division: Division) -> dict[Verdict, float]:
    return {name: division.share(name) for name in {*ON_CPU, *ON_CUDA, *OF_RANKS}}


def _sentence(name: Verdict, share: float, measured: Measurements) -> str:
    """The cause with its numbers, for people."""
    told, machine, work = f"{percent(share)} of each step", measured.machine, measured.work
    ops = f"{work.ops:,.0f}" if work is not None else "its"
    kernels = f"{work.kernels:,.0f}" if work is not None and work.kernels else "its"
    workers = f" and {measured.loader.workers} workers" if measured.loader.workers else ""
    waits = sum(sync.count for sync in measured.syncs)
    slowest = max(measured.ranks, key=lambda one: one.apart_seconds).rank if measured.ranks else 0
    sentences: dict[Verdict, str] = {
        "straggler": f"{told} the other processes wait for rank {slowest}",
        "communication": f"{told} exchanges gradients between {len(measured.ranks)} processes",
        "data": f"{told} {'makes its batch' if measured.loader.kind == 'loop' else 'waits for the loader'}",
        "transfer": f"{told} copies batches to the GPU",
        "sync": f"{told} is lost to waits of the host for the GPU" + (f", {waits:,.0f} a step" if waits else ""),
        "host": f"{told} is Python of the loop itself",
        "oversubscribed": f"{told} is lost because {machine.threads} threads{workers} share {machine.cores} cores",
        "launch": f"{told} the GPU is idle: {kernels} kernels are issued more slowly than they run",
        "dispatch": f"{told} dispatches {ops} operations that are too small",
        "optimizer": f"{told} is the step of the optimizer",
        "precision": f"{told} would be gone if products were not in float32",
        "compute": f"{told} computes products",
        "memory": f"{told} moves memory in elementwise operations, reductions and copies",
        "kernel": f"{told} is kernels that are far from what the GPU can do"
        if measured.device == "cuda"
        else f"{told} is operations that are neither matmuls nor memory traffic",
    }
    return sentences[name]


# The ladder: steps a second now, and with one cause after the other gone: data free, sync free, launch free, roofline.
#
# Each rung is the one before without some parts of the step, so it is at least as high. The last is what the floating-point work
# takes at the peak that this machine was measured to reach, and nothing climbs past it.

RUNGS: dict[str, tuple[str, ...]] = {
    "data_free": ("data", "transfer"),
    "sync_free": ("sync", "host", "oversubscribed", "straggler", "communication"),
    "launch_free": ("launch", "dispatch"),
}


def climb(measured: Measurements, division: Division) -> dict[str, float]:
    """Steps a second by rung; empty where no step was measured."""
    if division.step <= 0:
        return {}
    roof = flops_seconds(measured)
    least = min(division.step, max(roof, RULE.min_fraction * division.step))
    left = max(least, measured.wall_seconds or division.step)
    ladder = {"now": 1 / left}
    # What a step takes longer by the wall clock than its parts is due to rare steps, which wait for batches or are the loop's own.
    rare, longer = measured.rare, max(0.0, left - division.step)
    gone = "data_free" if rare is not None and rare.phase in ("next", "prepare") else "sync_free"
    for rung, names in RUNGS.items():
        parts = sum(getattr(division.parts, name) for name in names)
        left = max(least, left - parts - (longer if rung == gone else 0.0))
        ladder[rung] = 1 / left
    ladder["roofline"] = 1 / least if roof > 0 else 1 / left
    return ladder


# Conclude: measurements -> finding. The last station of a diagnosis, a pure function without torch: numbers in, words out.


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
    return "high" if rare.place is not None and rare.share >= RULE.high_confidence_rare else "medium"


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
    close = (
        first.share < RULE.close_causes * second.share and second.share >= RULE.waste_first and first.share < RULE.clear_majority
    )
    if close or residual > RULE.low_confidence_residual or first.share < RULE.waste_first:
        return "low"
    steady = measured.loop.spread <= RULE.high_confidence_spread and len(measured.loop.seconds) >= RULE.high_confidence_steps
    return (
        "high" if steady and residual <= RULE.high_confidence_residual and first.share >= RULE.high_confidence_share else "medium"
    )


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
    if starting >= RULE.mention_between_epochs:
        told.append(f"{percent(starting)} of the time passes between epochs until it gives batches again")
    if loader.stages:
        stage = max(loader.stages, key=lambda name: loader.stages[name])
        told.append(f"{stage} is {percent(loader.stages[stage])} of making a batch")
    if loader.bytes_read and loader.bytes_used and loader.bytes_read > RULE.mention_read_amplification * loader.bytes_used:
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
    if reads is None or reads.reads_a_file is None or reads.cache_hits is None or reads.reads_a_file < RULE.mention_rereads:
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
