"""The rule: measurements -> verdict. Pure functions, no torch.

1. `divide` (division.py) divides the time of a step among causes: what steps saved without a suspect is its part.
2. `rank` orders the causes. Waste comes before work: a step that computes for nine tenths of its time and waits for its data in the
   last one is data-bound, because that tenth can be had. Rare steps are a waste of their own, by their share of all time.
3. `doubt` says why there can be no verdict, where there is a reason.
4. `conclude` makes the finding: verdict, confidence, evidence (wording.py) and advice (advice.py).

Every number that decides is in thresholds.py.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from stoker.diagnose import wording
from stoker.diagnose.advice import advise, advise_on_rare_steps, line_of
from stoker.diagnose.division import Division, crowded, divide, holding_thread, waits_for_interpreter
from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import Cause, Confidence, Measurements, RareSteps, Stretch, Verdict
from stoker.diagnose.rare import verdict_of
from stoker.diagnose.thresholds import RULE

BETWEEN_RANKS: tuple[Verdict, ...] = ("straggler", "communication")
WASTES: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "oversubscribed", *BETWEEN_RANKS)
WORK: tuple[Verdict, ...] = ("precision", "compute", "memory", "kernel")
ON_CPU: tuple[Verdict, ...] = ("data", "host", "oversubscribed", "dispatch", "optimizer", *WORK)
ON_CUDA: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "launch", "optimizer", *WORK)


# ---- the order of causes ----


def rank(measured: Measurements, division: Division | None = None) -> list[Cause]:
    """Return the causes, the first being the verdict; none with less than half a per cent after two of them.

    There are at least two, unless the steps between rare ones say nothing.
    """
    division = divide(measured) if division is None else division
    rare, also = dominant_rare_steps(measured), measured.also_rare
    if rare is None:
        return _rank_parts(measured, division, _small_rare_events(measured))
    usual = _between_rare_steps(measured)
    of_usual = divide(usual)
    trusted = _unsteady(usual, of_usual) is None
    left = 1 - rare.share - (also.share if also is not None else 0.0)
    shares: dict[str, float] = {cause.verdict: left * cause.share for cause in (_rank_parts(usual, of_usual) if trusted else [])}
    if also is not None and (kind := verdict_of(also, measured.loader)) is not None:
        shares[kind] = shares.get(kind, 0.0) + also.share
    verdict = verdict_of(rare, measured.loader) or "none"
    same = shares.pop(verdict, 0.0)
    own = Cause(verdict=verdict, share=same + rare.share, sentence=wording.cause_of_rare_steps(rare), rare=True)
    if same >= rare.share:
        own = _cause(verdict, same + rare.share, measured)
    others = [_cause(name, share, measured) for name, share in sorted(shares.items(), key=lambda item: -item[1])]
    larger = [cause for cause in others if cause.verdict in WASTES and cause.share >= max(RULE.waste_first, own.share)]
    return [*larger, own, *(cause for cause in others if cause not in larger)]


def _cause(name: Any, share: float, measured: Measurements) -> Cause:
    return Cause(verdict=name, share=share, sentence=wording.cause(name, share, measured))


def _between_rare_steps(measured: Measurements) -> Measurements:
    """Return the measurements without the rare steps: where each third step is one, quartiles see them."""
    rare = next((event for event in (measured.rare, measured.also_rare) if event is not None and not event.between_epochs), None)
    if rare is None:
        return measured
    limit = (rare.others + rare.seconds) / 2
    pieces = [usual for piece, _ in measured.loop.by_piece() if (usual := [spent for spent in piece if spent < limit])]
    loop = Stretch(seconds=[spent for piece in pieces for spent in piece], pieces=[len(piece) for piece in pieces])
    return msgspec.structs.replace(measured, loop=loop) if loop.seconds else measured


def _small_rare_events(measured: Measurements) -> dict[str, float]:
    """Return the shares of all time of rare events that are not a cause of their own, by their cause."""
    shares: dict[str, float] = {}
    for event in (measured.rare, measured.also_rare):
        if event is not None and (name := verdict_of(event, measured.loader)) is not None:
            shares[name] = shares.get(name, 0.0) + event.share
    return shares


def _rank_parts(measured: Measurements, division: Division, rare: dict[str, float] | None = None) -> list[Cause]:
    """Order the causes by their part of a usual step; with `rare`, of all time."""
    names = (*(BETWEEN_RANKS if measured.ranks else ()), *(ON_CUDA if measured.device == "cuda" else ON_CPU))
    of_step = {name: division.share(name) for name in names}
    first = {name for name in names if _comes_first(name, division)}  # rare events alone need a larger share for that
    rare = rare or {}
    left = 1 - sum(rare.values())
    shares = {name: left * share + rare.get(name, 0.0) for name, share in of_step.items()}
    last = WORK if "launch" in first else ()  # a GPU that waits for its host is not held back by its kernels
    tiny = {name for name in names if shares[name] < RULE.min_cause_share and not (name == "launch" and division.host_limits)}
    weights, work = dict(shares), max(WORK, key=lambda name: shares.get(name, 0.0))
    if "dispatch" in first:  # an estimate: what is measured comes first unless it is clearly smaller
        weights["dispatch"] /= RULE.close_causes
    elif shares.get("dispatch", 0.0) < sum(shares.get(name, 0.0) for name in WORK):  # the work as a whole is larger than its calls
        weights[work] = max(shares[work], shares.get("dispatch", 0.0) + RULE.min_fraction)
    # The order of the names decides between equal shares: what hides others comes first.
    order = sorted(names, key=lambda name: (name in tiny, name in last, name not in first, -weights[name], names.index(name)))
    return [
        _cause(name, shares[name], measured)
        for place, name in enumerate(order)
        if place < 2 or shares[name] >= RULE.min_cause_share
    ]


def _comes_first(name: Verdict, division: Division) -> bool:
    """Say whether a cause is large enough to come before plain work."""
    share = division.share(name)
    if name in WASTES:
        return share >= RULE.waste_first
    if name == "launch":  # the host issues kernels more slowly than the GPU runs them
        return division.host_limits and share >= RULE.waste_first
    work = division.share("dispatch", "optimizer", *WORK, "unknown")
    limits = {"optimizer": RULE.optimizer_first, "dispatch": RULE.dispatch_first}  # operations are too small
    return name in limits and share > 0 and share >= limits[name] * work


def dominant_rare_steps(measured: Measurements) -> RareSteps | None:
    """Return rare steps with so much of the time that the parts of the other steps say little; None where there are none."""
    rare, also = measured.rare, measured.also_rare
    if rare is None or rare.share + (also.share if also is not None else 0.0) <= RULE.rare_verdict_share:
        return None
    if verdict_of(rare, measured.loader) is not None:
        return rare
    competes = _shares_cores(measured) or waits_for_interpreter(measured)
    # A line of the loop that takes longer and longer: these steps have more of the same.
    longer = rare.phase == "rest" and _rank_parts(measured, divide(measured))[0].verdict == "host"
    return None if competes or longer else rare


# ---- doubts ----


def doubt(measured: Measurements, division: Division | None = None) -> str | None:
    """Say why there can be no verdict; None where there can."""
    steps = measured.loop.seconds
    if len(steps) < RULE.min_steps:
        return wording.no_verdict("few_steps", steps="one step was" if len(steps) == 1 else f"{len(steps)} steps were")
    if not all(math.isfinite(spent) and spent > 0 for spent in steps):
        return wording.no_verdict("clock")
    division = divide(measured) if division is None else division
    busy = disturbed(measured, division)
    if busy is not None:
        return busy
    rare = dominant_rare_steps(measured)
    if rare is None:
        return _unsteady(measured, division) or _unexplained(measured, division) if not waits_for_interpreter(measured) else None
    if rare.every is None:
        return wording.no_verdict_of_rare_steps("rare_once", rare, steps=f"{len(steps):,}")
    also = measured.also_rare if measured.also_rare is not None and measured.also_rare.share > RULE.rare_verdict_share else None
    unknown = [event for event in (rare, also) if event is not None and verdict_of(event, measured.loader) is None]
    return wording.no_verdict_of_rare_steps("rare_unknown", unknown[0]) if unknown else None


def disturbed(measured: Measurements, division: Division) -> str | None:
    """Say that other programs had the cores or the GPU, where that matters: a GPU that is behind its host does not mind the cores."""
    if measured.gpu_taken is not None and measured.gpu_taken > RULE.max_gpu_taken:
        return wording.no_verdict("other_programs_on_gpu", share=wording.percent(measured.gpu_taken))
    waited = _waited_for_cores(measured)
    by_host = measured.device == "cpu" or division.host_limits
    if waited is not None and waited > RULE.max_wait_for_cores and by_host:
        return wording.no_verdict("other_programs", share=wording.percent(waited))
    return None


def _waited_for_cores(measured: Measurements) -> float | None:
    """Return the share of the time ready to run while others had the core.

    Threads and processes of a crowded program wait for each other, too: there it is the share of the cores that other programs had.
    """
    if not crowded(measured):
        waited, thread, cores = measured.waited_for_cores, measured.busy_thread, measured.machine.cores
        if waited is None or thread is None or measured.machine.threads < cores:
            return waited
        return max(0.0, waited - min(thread.share, 1 / (cores + 1)))  # one more thread than cores: what each waits at most
    if crowded(measured, communicating=False):
        return None if measured.ranks else measured.cores_taken
    # Threads that send and receive make the crowd: without the all-reduce they sleep.
    apart = [rank.waited_for_cores for rank in measured.ranks if rank.waited_for_cores is not None]
    return max(apart) if apart and len(apart) == len(measured.ranks) else None


def _unsteady(measured: Measurements, division: Division) -> str | None:
    """Say that steps vary too much, where it is not the program that makes them vary."""
    loop, on_cpu = measured.loop, measured.device == "cpu"
    if division.share("oversubscribed") >= RULE.self_crowding:
        return None
    # A program may vary more by itself where it is known that no other program had the cores.
    waited = _waited_for_cores(measured) if measured.ranks else measured.waited_for_cores
    slack = RULE.spread_slack if on_cpu and waited is not None else 1.0
    alone = RULE.max_spread_cpu * slack if on_cpu else RULE.max_spread_cuda
    # Steps of many lengths, like episodes of a game, have the same first cause if it has nearly all of a usual step.
    quiet = waited is not None and waited <= RULE.quiet_cores
    largest = max(division.share(name) for name in {*ON_CPU, *ON_CUDA, *BETWEEN_RANKS})
    if quiet and largest >= RULE.one_cause:
        alone = math.inf
    if loop.spread > (RULE.max_spread_ranks * slack if measured.ranks else alone):
        ordered = sorted(loop.seconds)
        low, high = (wording.duration(ordered[len(ordered) * quarter // 4]) for quarter in (1, 3))
        return wording.no_verdict("spread", spread=wording.percent(loop.spread), low=low, high=high)
    return None


def _unexplained(measured: Measurements, division: Division) -> str | None:
    """Say that steps take longer than most of them, and it is not known why; or that not enough was counted."""
    loop = measured.loop
    first, second = _rank_parts(measured, division)[:2]
    # A crowd makes steps irregular; then the first cause stays so whichever other cause gets the time of slow steps.
    competes = _shares_cores(measured) or holding_thread(measured, division) is not None  # for cores, or for the interpreter
    explained = competes and first.share - second.share > abs(loop.tail)
    if abs(loop.tail) > RULE.max_mean_off_median and not explained:
        mean, median = wording.duration(loop.median * (1 + loop.tail)), wording.duration(loop.median)
        return wording.no_verdict("mean_off", mean=mean, median=median)
    unknown_all_reduce = any(rank.exchange_seconds is None for rank in measured.ranks) and measured.device == "cpu"
    if unknown_all_reduce and all(division.share(name) >= RULE.waste_first for name in BETWEEN_RANKS):
        return wording.no_verdict("slow_rank_or_all_reduce")
    if division.share("unknown") > max(division.share(name) for name in {*ON_CPU, *ON_CUDA, *BETWEEN_RANKS}):
        return wording.no_verdict("not_counted")
    return None


def _shares_cores(measured: Measurements) -> bool:
    """Say whether processes of the program share too few cores: they hold each other up now and then, and no line explains that."""
    return (measured.loader.workers > 0 or bool(measured.ranks)) and crowded(measured)


# ---- the finding ----


def conclude(measured: Measurements, *, correctness: list[str] | None = None) -> Finding:
    """Return the bottleneck of a training run with its evidence and advice, or why it cannot be named."""
    division = divide(measured)
    reason = doubt(measured, division)
    common: dict[str, Any] = {"spread": measured.loop.spread, "correctness": correctness or [], "measurements": measured}
    if reason is not None:
        likely = likely_cause(measured, division)
        if likely is not None:
            common |= {"place": line_of(likely.verdict, measured) if likely.verdict not in BETWEEN_RANKS else None}
            common |= {"next": advise(measured, division, [likely])}
        return Finding(verdict="none", confidence="low", likely=likely, why=reason, **common)
    causes, rare = rank(measured, division), dominant_rare_steps(measured)
    verdict = causes[0].verdict
    if rare is not None and causes[0].rare:
        sure = rare.place is not None and rare.share >= RULE.high_confidence_rare
        advice = advise_on_rare_steps(rare, *([measured.also_rare] if measured.also_rare is not None else []))
        confidence: Confidence = "high" if sure else "medium"
        why, place = wording.evidence_of_rare_steps(rare), rare.place
    else:
        place = line_of(verdict, measured) if verdict not in BETWEEN_RANKS else None
        why, confidence = wording.evidence(verdict, place, measured, division), _confidence(measured, causes)
        advice = advise(measured, division, causes) + (advise_on_rare_steps(rare) if rare is not None else [])
    return Finding(verdict=verdict, confidence=confidence, why=why, place=place, causes=causes, next=advice, **common)


def likely_cause(measured: Measurements, division: Division) -> Cause | None:
    """Return the first cause by measurements that cannot be trusted, such as those on a busy machine; None where they say nothing."""
    if len(measured.loop.seconds) < RULE.min_steps or division.step <= 0:
        return None
    rare = dominant_rare_steps(measured)  # on a busy machine these may be steps that waited for a core: then no line explains them
    explained = rare is not None and verdict_of(rare, measured.loader) is not None
    first = _rank_parts(measured, division)[0]
    if explained and rare is not None and rare.share >= first.share * (1 - rare.share):  # of all time, as rare steps are
        first = rank(measured, division)[0]
    return first if first.share >= RULE.waste_first else None


def _confidence(measured: Measurements, causes: list[Cause]) -> Confidence:
    """Return high where nothing wavers; low where the second cause could as well be the first, or where little would be won."""
    first, second = causes[0].share, causes[1].share
    close = first < RULE.close_causes * second and second >= RULE.waste_first and first < RULE.clear_majority
    varied = measured.loop.spread > RULE.max_spread_cpu * RULE.spread_slack and not measured.ranks
    if close or varied or first < RULE.waste_first:
        return "low"
    steady = measured.loop.spread <= RULE.high_confidence_spread and len(measured.loop.seconds) >= RULE.high_confidence_steps
    return "high" if steady and first >= RULE.high_confidence_share else "medium"
