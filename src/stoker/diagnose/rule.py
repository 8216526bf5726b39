"""The rule: measurements -> causes, the first of which is the verdict, or the reason why there is none. A pure function, no torch.

Waste comes before work: a step that computes for nine tenths of its time and waits for its data in the last one is data-bound,
because that tenth can be had. Among wastes, and among kinds of work, the larger part comes first.
"""

from __future__ import annotations

import math

import msgspec

from stoker.diagnose.finding import Cause, Verdict
from stoker.diagnose.measurements import Measurements, Rare
from stoker.diagnose.parts import Division, crowded, divide
from stoker.diagnose.rare import HOLDS
from stoker.diagnose.words import percent
from stoker.units import readable_seconds

FEWEST_STEPS = 12
LARGEST_SPREAD = 0.10
LARGEST_SPREAD_ON_CUDA = 0.15
"""Thousands of kernels issued one by one jitter by themselves."""
LARGEST_SPREAD_OF_RANKS = 0.20
"""Processes that exchange something wait for each other, and steps of all have the jitter of each. Who is woken up where another
thread runs waits for the scheduler's next tick: 4 ms on some systems, though nothing else runs."""
LARGEST_CACHED_SPREAD = 0.20
LARGEST_RESIDUAL = 0.15
LARGEST_TAIL = HOLDS
"""By which the wall clock may contradict the median of steps, of which all parts are made."""
FAR_LONGER = 3.0
"""Times other steps: a rare step that waits for its batch for so long waits for something that others do not."""
LARGEST_WAIT = 0.10
"""Of the time of T and C, for a core that another program has: at most 0.05 alone, 0.27 and more beside noisy programs."""
LARGEST_UNWATCHED_DRIFT = 0.5
"""Of the speed of the machine, where it cannot be told whether other programs had its cores."""
WATCHED = 2.5
"""Where it can, and they had not, a program may vary by itself so much more."""
OWN_CROWD = 0.25
"""Of a step, lost to more threads than cores: they make steps vary themselves."""
QUIET = "run it again while nothing else uses the machine; if batches differ in size, give it some of one size"
WASTE = 0.10
"""Of a step: less waste than this does not come before work."""
OPTIMIZER = 0.40
"""Of the work: an optimizer that has more of it comes before the rest."""
DISPATCH = 0.50
"""Of the work: with more, operations are too small."""
LEAST = 0.005
OF_RANKS: tuple[Verdict, ...] = ("straggler", "communication")
WASTES: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "oversubscribed", *OF_RANKS)
WORK: tuple[Verdict, ...] = ("precision", "compute", "memory", "kernel")
ON_CPU: tuple[Verdict, ...] = ("data", "host", "oversubscribed", "dispatch", "optimizer", "compute", "memory")
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
    return measured.rare if measured.rare is not None and measured.rare.share > HOLDS else None


def verdict_of(rare: Rare) -> Verdict | None:
    """Whose it is; None where that is not known."""
    if rare.between_epochs:
        return "host"
    if rare.every is None:
        return None
    if rare.phase in ("next", "prepare") and rare.seconds >= FAR_LONGER * rare.others:
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
    tiny = {name for name in names if shares[name] < LEAST and not (name == "launch" and division.host_limits)}
    # The order of the names decides between equal shares: what hides others comes first.
    order = sorted(names, key=lambda name: (name in tiny, name in last, name not in first, -shares[name], names.index(name)))
    return [
        Cause(verdict=name, share=shares[name], sentence=_sentence(name, shares[name], measured))
        for place, name in enumerate(order)
        if place < 2 or shares[name] >= LEAST
    ]


def _to_be_first(shares: dict[Verdict, float], division: Division) -> set[Verdict]:
    """The wastes that are large enough to come before work."""
    first: set[Verdict] = {name for name in WASTES if shares.get(name, 0.0) >= WASTE}
    work = sum(shares.get(name, 0.0) for name in ("dispatch", "optimizer", *WORK)) + division.share("unknown")
    if shares["optimizer"] > 0 and shares["optimizer"] >= OPTIMIZER * work:
        first.add("optimizer")
    if shares.get("dispatch", 0.0) > 0 and shares["dispatch"] >= DISPATCH * work:
        first.add("dispatch")
    if division.host_limits and shares.get("launch", 0.0) >= WASTE:
        first.add("launch")
    return first


def doubt(measured: Measurements, division: Division | None = None) -> str | None:
    """Why there can be no verdict; None where there can."""
    steps = measured.loop.seconds
    if len(steps) < FEWEST_STEPS:
        count = "one step was" if len(steps) == 1 else f"{len(steps)} steps were"
        return f"only {count} measured, and {FEWEST_STEPS} are needed: let the training run longer"
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
    told = _unsteady(measured, division) if division.share("oversubscribed") < OWN_CROWD else None
    if told is not None:
        return told
    if abs(measured.loop.tail) > LARGEST_TAIL:
        mean, median = readable_seconds(measured.loop.median * (1 + measured.loop.tail)), readable_seconds(measured.loop.median)
        return f"a step takes {mean} by the wall clock, but most steps take {median}, and it is not known why: {QUIET}"
    residual, pages = division.residual / division.step, measured.for_pages("loop", "cached")
    # Steps that got more memory from the system in one stretch than in another took longer by as much.
    by_pages = (max(pages) - min(pages)) / division.step if pages else 0.0
    if abs(residual) > LARGEST_RESIDUAL + by_pages:
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
    return unknown and all(division.share(name) >= WASTE for name in OF_RANKS)


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
    if measured.waited_for_cores is None and loop.drift > LARGEST_UNWATCHED_DRIFT:
        return f"the machine changed its speed by {percent(loop.drift)} meanwhile: {QUIET}"
    if cached is not None and len(cached.seconds) >= 4 and cached.spread > LARGEST_CACHED_SPREAD * _slack(measured):
        return f"steps on batches that are kept vary too much ({percent(cached.spread)}): {QUIET}"
    return None


def _others_had_cores(measured: Measurements, division: Division) -> str | None:
    waited = _waited(measured)
    by_host = measured.device == "cpu" or division.host_limits  # a GPU that is behind does not mind
    if waited is not None and waited > LARGEST_WAIT and by_host:
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
        return LARGEST_SPREAD_OF_RANKS * (WATCHED if measured.device == "cpu" and _waited(measured) is not None else 1.0)
    return LARGEST_SPREAD_ON_CUDA if measured.device == "cuda" else LARGEST_SPREAD * _slack(measured)


def _slack(measured: Measurements) -> float:
    return WATCHED if measured.waited_for_cores is not None and measured.device == "cpu" and not measured.ranks else 1.0


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
        "kernel": f"{told} is kernels that are far from what the GPU can do",
    }
    return sentences[name]
