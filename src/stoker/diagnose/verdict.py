"""The rule: measurements -> verdict. Whether a run is data-bound, launch-bound, … is decided here. Pure functions, no torch.

`conclude` does it in four steps:

1. `attribute` (attribution.py) divides the time of a step among causes.
2. `doubt` says why there can be no verdict, where there is a reason.
3. `rank` orders the causes; the first is the verdict. Waste comes before work: a step that computes for nine tenths of its time and
   waits for its data in the last one is data-bound, because that tenth can be had. Among wastes, and among kinds of work, the larger
   share comes first. `_comes_first` has the conditions. Rare steps (every 25th) are a waste of their own, by their share of all time.
4. Confidence, evidence (wording.py), the ladder of possible speeds and advice (advice.py) are added.

Every number that decides is in thresholds.py, every sentence in wording.py.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from stoker.diagnose import wording
from stoker.diagnose.advice import advise, advise_on_rare_steps, line_of
from stoker.diagnose.attribution import (
    Attribution,
    attribute,
    crowded,
    flops_seconds,
    holding_thread,
    removal_ratio,
    waits_for_interpreter,
)
from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import Cause, Confidence, Device, Loader, Measurements, RareSteps, Stretch, Verdict
from stoker.diagnose.thresholds import RULE

NO_LOADER = Loader(kind="loop")
BETWEEN_RANKS: tuple[Verdict, ...] = ("straggler", "communication")
WASTES: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "oversubscribed", *BETWEEN_RANKS)
WORK: tuple[Verdict, ...] = ("precision", "compute", "memory", "kernel")
ON_CPU: tuple[Verdict, ...] = ("data", "host", "oversubscribed", "dispatch", "optimizer", *WORK)
ON_CUDA: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "launch", "optimizer", *WORK)


def conclude(measured: Measurements, *, correctness: list[str] | None = None) -> Finding:
    """The bottleneck of a training run with its evidence and advice, or why it cannot be named."""
    attribution = attribute(measured)
    reason = doubt(measured, attribution)
    given: dict[str, Any] = {"spread": measured.loop.spread, "correctness": correctness or [], "measurements": measured}
    if reason is not None:
        likely = likely_cause(measured, attribution)
        if likely is not None:
            given |= {"place": line_of(likely.verdict, measured) if likely.verdict not in BETWEEN_RANKS else None}
            given |= {"next": advise(measured, attribution, [likely])}
        return Finding(verdict="none", confidence="low", likely=likely, why=reason, **given)
    causes, rare = rank(measured, attribution), dominant_rare_steps(measured)
    verdict = causes[0].verdict
    if rare is not None and _leads(rare, causes):
        place, why = rare.place, wording.evidence_of_rare_steps(rare)
        sure = rare.place is not None and rare.share >= RULE.high_confidence_rare
        confidence: Confidence = "high" if sure else "medium"
        advice = advise_on_rare_steps(rare, *([measured.also_rare] if measured.also_rare is not None else []))
    else:
        place = line_of(verdict, measured) if verdict not in BETWEEN_RANKS else None
        why = wording.evidence(verdict, place, measured, attribution)
        confidence, advice = _confidence(measured, attribution, causes), advise(measured, attribution, causes)
        advice += advise_on_rare_steps(rare) if rare is not None else []
    given |= {
        "causes": causes,
        "why_first": why_first(causes, attribution),
        "ladder": ladder(measured, attribution),
        "next": advice,
    }
    return Finding(verdict=verdict, confidence=confidence, why=why, place=place, **given)


def likely_cause(measured: Measurements, attribution: Attribution) -> Cause | None:
    """The first cause by measurements that cannot be trusted, such as those on a busy machine; None where they say nothing."""
    if len(measured.loop.seconds) < RULE.min_steps or attribution.step <= 0 or measured.work is None:
        return None
    rare = dominant_rare_steps(measured)  # on a busy machine these may be steps that waited for a core: then no line explains them
    explained = rare is not None and verdict_of_rare_steps(rare, measured.loader) is not None
    first = (rank if explained else _rank_parts)(measured, attribution)[0]
    return first if first.share >= RULE.waste_first else None


def rank(measured: Measurements, attribution: Attribution | None = None) -> list[Cause]:
    """Causes, the first being the verdict; at least two, and none with less than half a per cent after those."""
    attribution = attribute(measured) if attribution is None else attribution
    rare, also = dominant_rare_steps(measured), measured.also_rare
    if rare is None:
        return _rank_parts(measured, attribution, _small_rare_events(measured))
    usual = _between_rare_steps(measured)
    of_usual = attribute(usual)
    trusted = _doubt_of_parts(usual, of_usual, tail=False) is None
    left = 1 - rare.share - (also.share if also is not None else 0.0)
    shares = {one.verdict: left * one.share for one in (_rank_parts(usual, of_usual) if trusted else [])}
    if also is not None and (kind := verdict_of_rare_steps(also, measured.loader)) is not None:
        shares[kind] = shares.get(kind, 0.0) + also.share
    verdict = verdict_of_rare_steps(rare, measured.loader) or "none"
    same = shares.pop(verdict, 0.0)
    sentence = wording.cause_of_rare_steps(rare) if same < rare.share else wording.cause(verdict, same + rare.share, measured)
    own = Cause(verdict=verdict, share=same + rare.share, sentence=sentence)
    others = [
        Cause(verdict=name, share=share, sentence=wording.cause(name, share, measured))
        for name, share in sorted(shares.items(), key=lambda one: -one[1])
    ]
    larger = [one for one in others if one.verdict in WASTES and one.share >= max(RULE.waste_first, own.share)]
    return [*larger, own, *(one for one in others if one not in larger)]


def _between_rare_steps(measured: Measurements) -> Measurements:
    """The measurements without the rare steps: where each third step is one, quartiles see them."""
    rare = next((one for one in (measured.rare, measured.also_rare) if one is not None and not one.between_epochs), None)
    if rare is None:
        return measured
    limit, pieces = (rare.others + rare.seconds) / 2, [piece for piece, _ in measured.loop.by_piece()]
    kept = [usual for piece in pieces if (usual := [one for one in piece if one < limit])]
    loop = Stretch(seconds=[one for piece in kept for one in piece], pieces=[len(piece) for piece in kept])
    return msgspec.structs.replace(measured, loop=loop) if loop.seconds else measured


def _leads(rare: RareSteps, causes: list[Cause]) -> bool:
    """Whether rare steps, not a part of the usual ones, make most of the first cause."""
    return causes[0].sentence == wording.cause_of_rare_steps(rare)


def _small_rare_events(measured: Measurements) -> dict[Verdict, float]:
    """Shares of all time of rare events that are not a cause of their own, by their cause."""
    shares: dict[Verdict, float] = {}
    for one in (measured.rare, measured.also_rare):
        if one is not None and (name := verdict_of_rare_steps(one, measured.loader)) is not None:
            shares[name] = shares.get(name, 0.0) + one.share
    return shares


def _rank_parts(measured: Measurements, attribution: Attribution, rare: dict[Verdict, float] | None = None) -> list[Cause]:
    """The causes by their part of a usual step; with `rare`, of all time."""
    names = (*(BETWEEN_RANKS if measured.ranks else ()), *(ON_CUDA if measured.device == "cuda" else ON_CPU))
    of_step = {name: attribution.share(name) for name in names}
    first = {name for name in names if _comes_first(name, of_step, attribution)}  # rare events alone need a larger share for that
    rare = rare or {}
    left = 1 - sum(rare.values())
    shares = {name: left * share + rare.get(name, 0.0) for name, share in of_step.items()}
    last = WORK if "launch" in first else ()  # a GPU that waits for its host is not held back by its kernels
    tiny = {name for name in names if shares[name] < RULE.min_cause_share and not (name == "launch" and attribution.host_limits)}
    weights, work = dict(shares), max(WORK, key=lambda name: shares.get(name, 0.0))
    if "dispatch" in first:  # an estimate: what is measured comes first unless it is clearly smaller
        weights["dispatch"] /= RULE.close_causes
    elif shares.get("dispatch", 0.0) < sum(shares.get(name, 0.0) for name in WORK):  # the work as a whole is larger than its calls
        weights[work] = max(shares[work], shares.get("dispatch", 0.0) + RULE.min_fraction)
    # The order of the names decides between equal shares: what hides others comes first.
    order = sorted(names, key=lambda name: (name in tiny, name in last, name not in first, -weights[name], names.index(name)))
    return [
        Cause(verdict=name, share=shares[name], sentence=wording.cause(name, shares[name], measured))
        for place, name in enumerate(order)
        if place < 2 or shares[name] >= RULE.min_cause_share
    ]


def _comes_first(name: Verdict, shares: dict[Verdict, float], attribution: Attribution) -> bool:
    """Whether a cause is large enough to come before plain work."""
    share = shares[name]
    if name in WASTES:
        return share >= RULE.waste_first
    if name == "launch":  # the host issues kernels more slowly than the GPU runs them
        return attribution.host_limits and share >= RULE.waste_first
    work = sum(shares.get(one, 0.0) for one in ("dispatch", "optimizer", *WORK)) + attribution.share("unknown")
    if name == "optimizer":
        return share > 0 and share >= RULE.optimizer_first * work
    if name == "dispatch":  # operations are too small
        return share > 0 and share >= RULE.dispatch_first * work
    return False


def why_first(causes: list[Cause], attribution: Attribution) -> str:
    """Why the first cause comes before the second though a report shows a larger share of the second; empty if it does not."""
    first, second = causes[:2] if len(causes) > 1 else (causes[0], causes[0])
    if second.share <= first.share or wording.percent(second.share) == wording.percent(first.share):
        return ""
    of_step = {name: attribution.share(name) for name in ("dispatch", "optimizer", *WORK)}
    if second.verdict == "dispatch" and first.verdict in WORK:
        reason = "work"
    elif (
        second.verdict == "dispatch"
        and _comes_first("dispatch", of_step, attribution)
        and second.share < RULE.close_causes * first.share
    ):
        reason = "estimate"
    elif first.verdict == "launch":
        reason = "launch"
    elif first.verdict in WASTES:
        reason = "each_step" if second.verdict in WASTES else "waste"
    else:
        reason = "optimizer"
    work = sum(one.share for one in causes if one.verdict in WORK)
    return wording.WHY_FIRST[reason].format(work=wording.percent(work))


def dominant_rare_steps(measured: Measurements) -> RareSteps | None:
    """Rare steps with so much of the time that the parts of the other steps say little; None where there are none."""
    rare, also = measured.rare, measured.also_rare
    if rare is None or rare.share + (also.share if also is not None else 0.0) <= RULE.rare_verdict_share:
        return None
    if verdict_of_rare_steps(rare, measured.loader) is not None:
        return rare
    competes = _shares_cores(measured) or waits_for_interpreter(measured)
    # A line of the loop that takes longer and longer: these steps have more of the same.
    longer = rare.phase == "rest" and _rank_parts(measured, attribute(measured))[0].verdict == "host"
    return None if competes or longer else rare


def _shares_cores(measured: Measurements) -> bool:
    """Whether processes of the program share too few cores: they hold each other up now and then, and no line explains that."""
    return (measured.loader.workers > 0 or bool(measured.ranks)) and crowded(measured)


def _crowd_explains(measured: Measurements, attribution: Attribution, tail: float) -> bool:
    """Whether steps are irregular by a crowd, and the first cause stays so whichever other cause gets the time of slow steps."""
    first, second = _rank_parts(measured, attribution)[:2]
    competes = _shares_cores(measured) or holding_thread(measured, attribution) is not None  # for cores, or for the interpreter
    return competes and first.share - second.share > abs(tail)


def verdict_of_rare_steps(rare: RareSteps, loader: Loader = NO_LOADER) -> Verdict | None:
    """The cause of rare steps; None where it is not known."""
    if rare.between_epochs:  # at the line of the loop itself, a loader ends its workers and starts others
        return "data" if rare.in_outer_loop or (loader.place is not None and rare.place == loader.place) else "host"
    if rare.every is None:
        return None
    # Between batch and model, a loop makes its batches if no iterable does; else a line that only rare steps run is its own.
    waits = rare.phase == "next" or (rare.phase == "prepare" and (loader.kind == "loop" or not rare.alone))
    if waits:
        return "data" if rare.alone or rare.seconds >= RULE.rare_data_ratio * rare.others else None
    return "host" if rare.alone else None


def doubt(measured: Measurements, attribution: Attribution | None = None) -> str | None:
    """Why there can be no verdict; None where there can."""
    steps = measured.loop.seconds
    if len(steps) < RULE.min_steps:
        return wording.no_verdict("few_steps", steps="one step was" if len(steps) == 1 else f"{len(steps)} steps were")
    if not all(math.isfinite(one) and one > 0 for one in steps):
        return wording.no_verdict("clock")
    attribution = attribute(measured) if attribution is None else attribution
    rare = dominant_rare_steps(measured)
    if rare is None:
        return _doubt_of_parts(measured, attribution) if not waits_for_interpreter(measured) else disturbed(measured, attribution)
    busy = disturbed(measured, attribution)
    if busy is not None:
        return busy
    if rare.every is None:
        return wording.no_verdict_of_rare_steps("rare_once", rare, steps=f"{len(steps):,}")
    also = measured.also_rare if measured.also_rare is not None and measured.also_rare.share > RULE.rare_verdict_share else None
    unknown = [one for one in (rare, also) if one is not None and verdict_of_rare_steps(one, measured.loader) is None]
    return wording.no_verdict_of_rare_steps("rare_unknown", unknown[0]) if unknown else None


def _doubt_of_parts(measured: Measurements, attribution: Attribution, *, tail: bool = True) -> str | None:
    """Why the parts of a step cannot be trusted; None where they can. Without `tail`, it is known which steps are slow."""
    unsteady = _unsteady(measured, attribution) if attribution.share("oversubscribed") < RULE.self_crowding else None
    if unsteady is not None:
        return unsteady
    loop = measured.loop
    if tail and abs(loop.tail) > RULE.max_mean_off_median and not _crowd_explains(measured, attribution, loop.tail):
        return wording.no_verdict(
            "mean_off", mean=wording.duration(loop.median * (1 + loop.tail)), median=wording.duration(loop.median)
        )
    residual, pages = attribution.residual / attribution.step, measured.for_pages("loop", "cached")
    # Steps that got more memory from the system in one window than in another took longer by as much.
    by_pages = (max(pages) - min(pages)) / attribution.step if pages else 0.0
    if abs(residual) > RULE.max_residual + by_pages:
        return wording.no_verdict("residual", share=wording.percent(abs(residual)), side="longer" if residual > 0 else "shorter")
    unknown_all_reduce = any(rank.exchange_seconds is None for rank in measured.ranks) and measured.device == "cpu"
    if unknown_all_reduce and all(attribution.share(name) >= RULE.waste_first for name in BETWEEN_RANKS):
        return wording.no_verdict("slow_rank_or_all_reduce")
    if measured.work is None and attribution.share("unknown") > _largest_share(attribution):
        return wording.no_verdict("not_counted")
    return None


def _largest_share(attribution: Attribution) -> float:
    return max(attribution.share(name) for name in {*ON_CPU, *ON_CUDA, *BETWEEN_RANKS})


def _unsteady(measured: Measurements, attribution: Attribution) -> str | None:
    """What else the machine did, or how much its speed changed."""
    loop, on_cpu = measured.loop, measured.device == "cpu"
    busy = disturbed(measured, attribution)
    if busy is not None:
        return busy
    # A program may vary more by itself where it is known that no other program had the cores.
    waited = _waited_for_cores(measured) if measured.ranks else measured.waited_for_cores
    slack = RULE.spread_slack if on_cpu and waited is not None else 1.0
    alone = RULE.max_spread_cpu * slack if on_cpu else RULE.max_spread_cuda
    # Steps of many lengths, like episodes of a game, have the same first cause if one has nearly all of a usual step.
    if on_cpu and waited is not None and waited <= RULE.quiet_cores and _largest_share(attribution) >= RULE.one_cause:
        alone = math.inf
    if loop.spread > (RULE.max_spread_ranks * slack if measured.ranks else alone):
        ordered = sorted(loop.seconds)
        low, high = (wording.duration(ordered[len(ordered) * quarter // 4]) for quarter in (1, 3))
        return wording.no_verdict("spread", spread=wording.percent(loop.spread), low=low, high=high)
    if measured.waited_for_cores is None and loop.drift > RULE.max_drift:
        return wording.no_verdict("drift", drift=wording.percent(loop.drift))
    cached = measured.cached if not measured.ranks else None  # nothing follows from it where processes wait for each other
    if cached is not None and len(cached.seconds) >= 4 and cached.spread > RULE.max_spread_cached * slack:
        return wording.no_verdict("cached_spread", spread=wording.percent(cached.spread))
    return None


def disturbed(measured: Measurements, attribution: Attribution) -> str | None:
    """That other programs had the cores, where that matters: a GPU that is behind its host does not mind."""
    waited = _waited_for_cores(measured)
    by_host = measured.device == "cpu" or attribution.host_limits
    if waited is not None and waited > RULE.max_wait_for_cores and by_host:
        return wording.no_verdict("other_programs", share=wording.percent(waited))
    return None


def _waited_for_cores(measured: Measurements) -> float | None:
    """Share of the time ready to run while others had the core; None where these may have been threads of the program itself."""
    if not crowded(measured):
        waited, thread, cores = measured.waited_for_cores, measured.busy_thread, measured.machine.cores
        if waited is None or thread is None or measured.machine.threads < cores:
            return waited
        return max(0.0, waited - min(thread.share, 1 / (cores + 1)))  # one more thread than cores: what each waits at most
    if crowded(measured, communicating=False):
        return None
    # Threads that send and receive make the crowd: without the all-reduce they sleep.
    apart = [rank.waited_for_cores for rank in measured.ranks if rank.waited_for_cores is not None]
    return max(apart) if apart and len(apart) == len(measured.ranks) else None


def _confidence(measured: Measurements, attribution: Attribution, causes: list[Cause]) -> Confidence:
    """High where nothing wavers; low where the second cause could as well be the first, or where next to nothing would be won."""
    residual = abs(attribution.residual) / attribution.step
    first, second = causes[0].share, causes[1].share
    close = first < RULE.close_causes * second and second >= RULE.waste_first and first < RULE.clear_majority
    varied = measured.loop.spread > RULE.max_spread_cpu * RULE.spread_slack and not measured.ranks
    if close or varied or residual > RULE.low_confidence_residual or first < RULE.waste_first:
        return "low"
    steady = measured.loop.spread <= RULE.high_confidence_spread and len(measured.loop.seconds) >= RULE.high_confidence_steps
    sure = steady and residual <= RULE.high_confidence_residual and first >= RULE.high_confidence_share
    return "high" if sure else "medium"


_NOT_THE_STEP = ("sync", "host", "oversubscribed", *BETWEEN_RANKS)
REMOVED_CAUSES: dict[Device, dict[str, tuple[str, ...]]] = {
    "cpu": {"data_free": ("data", "transfer"), "host_free": _NOT_THE_STEP, "dispatch_free": ("dispatch",)},
    "cuda": {"data_free": ("data", "transfer"), "sync_free": _NOT_THE_STEP, "launch_free": ("launch",)},
}
"""What each level of the ladder removes, in addition to the level before it."""


def ladder(measured: Measurements, attribution: Attribution) -> dict[str, float]:
    """Steps per second now, and with one group of causes after the other removed; empty where no step was measured."""
    # Each level is at least as high as the one before. The last, `roofline`, is what the floating-point work takes at the peak that
    # this machine was measured to reach; it is left out where that work is next to nothing, because then something else is the limit.
    if attribution.step <= 0:
        return {}
    roof = flops_seconds(measured)
    least = min(attribution.step, max(roof, RULE.min_fraction * attribution.step))
    left = max(least, measured.wall_seconds or attribution.step)
    levels = {"now": 1 / left}
    # What a step takes longer by the wall clock than its parts is due to rare steps, which wait for batches or are the loop's own.
    rare, longer = measured.rare, max(0.0, left - attribution.step)
    removed_causes = REMOVED_CAUSES[measured.device]
    without_rare = list(removed_causes)[0 if rare is not None and rare.phase in ("next", "prepare") else 1]
    for level, causes in removed_causes.items():
        removed = sum(getattr(attribution.parts, name) for name in causes) + (longer if level == without_rare else 0.0)
        left = max(least, left - removed)
        if level == "data_free" and (without := removal_ratio(measured, "data")) is not None:
            left = max(left, min(1.0, without) * attribution.step)  # steps without loading were measured: none is faster than they
        levels[level] = 1 / left
    if roof >= RULE.min_roof * left:
        levels["roofline"] = 1 / least
    return levels
