"""The rule: measurements -> verdict. Pure functions, no torch.

1. `divide` (division.py) divides the time of a step among causes: what steps saved without a suspect is its part.
2. `rank` orders the causes. Waste comes before work: a step that computes for nine tenths of its time and waits for its data in the
   last one is data-bound, because that tenth can be had. Rare steps are a waste of their own, by their share of all time.
3. `doubt` says why there can be no verdict, where there is a reason.
4. `conclude` makes the finding: verdict, confidence, evidence (wording.py) and advice (advice.py).

Every number that decides is in thresholds.py. A program that is named in a comment is one of the stored measurements
(tests/diagnose/kept) that get another verdict without the line.
"""

from __future__ import annotations

from typing import Any

from stoker.diagnose import wording
from stoker.diagnose.advice import advise, advise_on_rare_steps, line_of
from stoker.diagnose.division import (
    Division,
    comparable,
    crowded,
    divide,
    fix_gain_of,
    has_unused_rows,
    precision_gain,
    saved_by_removal,
)
from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import WORK, Cause, Confidence, Measurements, RareSteps, SourceLine, Verdict
from stoker.diagnose.rare import verdict_of
from stoker.diagnose.thresholds import RULE

ON_CPU: tuple[Verdict, ...] = ("data", "host", "oversubscribed", "dispatch", "optimizer", *WORK)
ON_CUDA: tuple[Verdict, ...] = ("data", "transfer", "sync", "host", "launch", "optimizer", *WORK)
BETWEEN_RANKS: tuple[Verdict, ...] = ("straggler", "communication")


# ---- the order of causes ----


def rank(measured: Measurements, division: Division | None = None) -> list[Cause]:
    """Return the causes, the first being the verdict; none with less than half a per cent after two of them."""
    causes = _rank_parts(measured, divide(measured) if division is None else division)
    rare, also = dominant_rare_steps(measured), measured.also_rare
    if rare is None:
        return causes
    left = 1 - rare.share - (also.share if also is not None else 0.0)
    shares: dict[Verdict, float] = {cause.verdict: left * cause.share for cause in causes}
    if also is not None and (kind := verdict_of(also, measured.loader)) is not None:
        shares[kind] = shares.get(kind, 0.0) + also.share
    verdict = verdict_of(rare, measured.loader) or "none"
    first = Cause(
        verdict=verdict, share=shares.pop(verdict, 0.0) + rare.share, sentence=wording.cause_of_rare_steps(rare), rare=True
    )
    # Shares are of all time, sentences and predictions of a usual step.
    sentences = {cause.verdict: cause.sentence for cause in causes}
    others = [
        Cause(verdict=name, share=share, sentence=sentences.get(name) or wording.cause(name, share, measured))
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
    ]
    # other-npz-convnet: what each step loses comes before what some steps lose.
    larger = [cause for cause in others if cause.verdict in wording.WASTES and cause.share >= max(RULE.waste_first, first.share)]
    return [*larger, first, *(cause for cause in others if cause not in larger)]


def _rank_parts(measured: Measurements, division: Division) -> list[Cause]:
    """Order the causes by their part of a usual step."""
    names = (*(BETWEEN_RANKS if measured.ranks else ()), *(ON_CUDA if measured.device == "cuda" else ON_CPU))
    shares = {name: division.share(name) for name in names}
    first = {name for name in names if name in wording.WASTES and shares[name] >= RULE.waste_first}
    if 0 < RULE.optimizer_first * division.share("dispatch", "optimizer", *WORK, "unknown") <= shares["optimizer"]:
        first.add("optimizer")
    weights, work = dict(shares), max(WORK, key=lambda name: shares[name])
    # What a fix was measured to save can be had, as a waste can; an optimizer can only be replaced by a faster one.
    if precision_gain(measured) is not None and shares["precision"] >= RULE.waste_first:
        first.add("precision")
    launch = shares.get("launch", 0.0)
    if launch and "graph" not in measured.what_ifs:  # else launches were removed, too (gpu-activation-hooks)
        for cause, saved in saved_by_removal(measured).items():
            if saved >= RULE.removal_first and shares[cause] >= RULE.removal_of_launch * launch:
                weights[cause] = max(shares[cause], launch)
    fused = fix_gain_of(measured, "fused")
    if "optimizer" in first and fused is not None and not has_unused_rows(measured):
        weights["optimizer"] = min(shares["optimizer"], max(0.0, fused) * (1 - shares["data"]))
    if shares.get("straggler", 0.0) > RULE.straggler_first * shares.get("communication", 0.0):
        weights["straggler"] = max(shares["straggler"], shares["communication"])
    if shares.get("dispatch", 0.0) < sum(shares[name] for name in WORK):  # apart-song-sequence: the work as a whole is larger
        weights[work] = max(shares[work], shares.get("dispatch", 0.0))
    last = set(WORK) - first if "launch" in first else ()  # faster kernels gain nothing on a GPU that waits for its host
    # The order of the names decides between equal shares, but work comes before calls.
    order = sorted(names, key=lambda name: (name in last, name not in first, -weights[name], name != work, names.index(name)))
    return [
        Cause(verdict=name, share=shares[name], sentence=wording.cause(name, shares[name], measured))
        for place, name in enumerate(order)
        if place < 2 or shares[name] >= RULE.min_cause_share
    ]


def dominant_rare_steps(measured: Measurements) -> RareSteps | None:
    """Return rare steps with so much of the time that the parts of the other steps say little; None where there are none."""
    rare, also = measured.rare, measured.also_rare
    if rare is None or rare.share + (also.share if also is not None else 0.0) <= RULE.rare_verdict_share:
        return None
    if rare.every is None and also is None:  # gpu-forum-posts: however often it comes, the first waste of the other steps is larger
        usual = _rank_parts(measured, divide(measured))[0]
        if usual.verdict in wording.WASTES and (1 - rare.share) * usual.share > rare.share:
            return None
    # Processes that share too few cores hold each other up now and then, which no line explains (other-parquet-rows).
    shares_cores = (measured.loader.workers > 0 or bool(measured.ranks)) and crowded(measured)
    return None if shares_cores and verdict_of(rare, measured.loader) is None else rare


# ---- doubts ----


def doubt(measured: Measurements) -> str | None:
    """Say why there can be no verdict; None where there can."""
    steps = len(measured.loop.seconds)
    if steps < RULE.min_steps:
        return wording.no_verdict("few_steps", steps="one step was" if steps == 1 else f"{steps} steps were")
    division = divide(measured)
    if (busy := disturbed(measured, division)) is not None:
        return busy
    rare = dominant_rare_steps(measured)
    if rare is None:
        unknown = division.share("unknown") > max(division.share(name) for name in {*ON_CPU, *ON_CUDA, *BETWEEN_RANKS})
        return wording.no_verdict("not_counted") if unknown else None
    if rare.every is None:
        return wording.no_verdict("rare_once", seen=wording.seen_once(measured))
    return wording.no_verdict("rare_unknown", rare) if verdict_of(rare, measured.loader) is None else None


def disturbed(measured: Measurements, division: Division) -> str | None:
    """Say that other programs had the cores or the GPU."""
    if measured.gpu_taken is not None and measured.gpu_taken > RULE.max_gpu_taken:
        return wording.no_verdict("other_programs_on_gpu", share=wording.percent(measured.gpu_taken))
    waited = _waited_for_cores(measured)
    if waited is not None and waited > RULE.max_wait_for_cores and (measured.device == "cpu" or division.host_limits):
        return wording.no_verdict("other_programs", share=wording.percent(waited))
    return None


def _waited_for_cores(measured: Measurements) -> float | None:
    """Return the share of the time ready to run while others had the core; None where it is not known.

    Threads and processes of a crowded program wait for each other, too: there it is the share of the cores that other programs had.
    """
    if not crowded(measured):
        return measured.waited_for_cores
    if crowded(measured, communicating=False):
        return None if measured.ranks else measured.cores_taken
    # Threads that send and receive make the crowd: without the all-reduce they sleep (straggler-mlp).
    apart = [rank.waited_for_cores for rank in measured.ranks if rank.waited_for_cores is not None]
    return max(apart) if len(apart) == len(measured.ranks) else None


# ---- the finding ----


def conclude(measured: Measurements, *, correctness: list[str] | None = None) -> Finding:
    """Return the bottleneck of a training run with its evidence and advice, or why it cannot be named."""
    common: dict[str, Any] = {"spread": measured.loop.spread, "correctness": correctness or [], "measurements": measured}
    reason, division = doubt(measured), divide(measured)
    if reason is not None:
        usable = comparable(measured)
        likely = likely_cause(usable)
        if likely is not None:
            common |= {"place": _place(likely, usable), "next": advise(usable, divide(usable), [likely])}
        return Finding(verdict="none", confidence="low", likely=likely, why=reason, **common)
    causes, rare = rank(measured, division), dominant_rare_steps(measured)
    first, place = causes[0], _place(causes[0], measured)
    if first.rare and rare is not None:
        sure = rare.place is not None and rare.share >= RULE.high_confidence_rare
        confidence: Confidence = "high" if sure else "medium"
        why, advice = wording.evidence_of_rare_steps(rare), []
    else:
        why, confidence = wording.evidence(first.verdict, place, measured, division), _confidence(measured, causes)
        if measured.rare is not None and measured.rare.every is None and measured.rare.share > RULE.rare_verdict_share:
            why += f"; {wording.seen_once(measured)}"
        advice = advise(measured, division, causes)
    events = [event for event in (rare, measured.also_rare if first.rare else None) if event is not None]
    return Finding(
        verdict=first.verdict, confidence=confidence, why=why, place=place, causes=causes,
        next=[*advice, *advise_on_rare_steps(*events)], **common,
    )  # fmt: skip


def _place(cause: Cause, measured: Measurements) -> SourceLine | None:
    """Return the user's line of a cause."""
    if cause.rare and measured.rare is not None:
        return measured.rare.place
    return line_of(cause.verdict, measured) if cause.verdict not in BETWEEN_RANKS else None


def likely_cause(measured: Measurements) -> Cause | None:
    """Return the first cause by measurements that cannot be trusted, such as those on a busy machine; None where work was not counted."""
    division = divide(measured)
    # Rare steps that waited for a core: no line explains them.
    first = next(cause for cause in [*rank(measured, division), *_rank_parts(measured, division)] if cause.verdict != "none")
    return first if first.rare or first.share > division.share("unknown") else None


def _confidence(measured: Measurements, causes: list[Cause]) -> Confidence:
    """Return high where nothing wavers; low where the second cause could as well be the first, or where little would be won."""
    first, second, spread = causes[0].share, causes[1].share, measured.loop.spread
    close = RULE.waste_first <= second and first < RULE.close_causes * second
    if close or spread > RULE.max_spread or first < RULE.waste_first:
        return "low"
    steady = spread <= RULE.high_confidence_spread and len(measured.loop.seconds) >= RULE.high_confidence_steps
    return "high" if steady else "medium"
