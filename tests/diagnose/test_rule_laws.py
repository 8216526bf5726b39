"""Laws of the rule, for any measurements: those drawn at random, with fields that may be missing, and those of real programs."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.diagnose.measured import NO_PHASES, changed, on_cpu, on_gpu
from tests.diagnose.strategies import NAMES, cpu_runs, gpu_runs, kept, runs

from stoker.diagnose.division import Division, divide, precision_gain, removal_ratio
from stoker.diagnose.finding import Finding, text
from stoker.diagnose.measurements import WORK, Measurements, Phases, RareSteps, Stretch
from stoker.diagnose.rule import conclude, dominant_rare_steps, rank
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.wording import percent, removal_rows, why_first

NOT_A_NUMBER = re.compile(r"\b(nan|inf)", re.IGNORECASE)
RESTS_ON = {"sync": "reads", "resident": "copies", "cached": "data"}
"""The advice that removes what an experiment removed."""


def excess(division: Division) -> float:
    """Return by how much the parts of a step exceed it, or fall below zero; the larger of both."""
    parts = division.parts.values()
    return max(abs(math.fsum(parts) - division.step), *(-part for part in parts), *(part - division.step for part in parts))


@pytest.mark.promise("P17")
@given(runs())
def test_no_part_exceeds_the_whole_and_the_parts_are_the_step(measured: Measurements) -> None:
    division = divide(measured)
    assert excess(division) <= 1e-9 * division.step


@pytest.mark.promise("P17", control=True)
def test_negative_control_what_single_removals_saved_is_more_than_a_step() -> None:
    """Each of two suspects hides the other's time, so both removals save nearly all of a step."""
    measured = on_gpu(10.0, cached=2.0, copies=2.0, everything=1.0, device=0.5)
    saved = [1 - (removal_ratio(measured, name) or 1.0) for name in ("data", "copies")]
    assert sum(saved) > 1.5
    assert divide(measured).share("data", "transfer") == pytest.approx(0.9)


@given(runs())
def test_causes_have_shares_and_different_names(measured: Measurements) -> None:
    causes = rank(measured)
    assert len(causes) >= (2 if dominant_rare_steps(measured) is None else 1)
    assert len({cause.verdict for cause in causes}) == len(causes)
    assert all(0 <= cause.share <= 1 for cause in causes)


@pytest.mark.promise("P17")
@pytest.mark.promise("P21")
@given(runs())
def test_there_is_a_verdict_or_a_reason_and_all_of_it_can_be_read(measured: Measurements) -> None:
    finding = conclude(measured)
    assert finding.why
    assert (finding.verdict == "none") == (not finding.causes)
    assert all(cause.sentence for cause in finding.causes)
    assert not NOT_A_NUMBER.search(text(finding).replace("inference", ""))
    if math.isfinite(finding.spread):  # else null
        assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
    plain = json.loads(json.dumps(finding.as_dict()))
    assert plain["second"] == (finding.causes[1].verdict if len(finding.causes) > 1 else None)


@given(runs())
def test_predictions_are_possible(measured: Measurements) -> None:
    for step in conclude(measured).next:
        assert step.predicted is None or 1 <= step.predicted <= RULE.max_speedup
        if step.predicted_low is not None:
            assert step.predicted_high is not None
            assert 0 < step.predicted_low <= (step.predicted or step.predicted_low) <= step.predicted_high <= RULE.max_speedup


@pytest.mark.promise("P17")
@given(runs())
def test_no_advice_gains_more_than_the_removal_that_it_rests_on(measured: Measurements) -> None:
    finding, division = conclude(measured), divide(measured)
    assume(division.step > 0)
    for step in finding.next:
        if (experiment := RESTS_ON.get(step.name)) is None:
            continue
        cause = {"reads": "sync", "copies": "transfer", "data": "data"}[experiment]
        # Cached batches of several processes are removed from all of them, so C is the bound of that advice, but no part of a step.
        cached = measured.cached.median / measured.loop.median if measured.cached is not None else None
        ratio = cached if experiment == "data" else removal_ratio(measured, experiment)
        by_part = 1 / max(1 - division.share(cause), 1 / RULE.max_speedup)
        bound = max(by_part, 1 / max(ratio, 1 / RULE.max_speedup)) if ratio is not None and cause == "data" else by_part
        assert (step.predicted_high or 1.0) <= bound * (1 + 1e-9), step


@given(gpu_runs())
def test_no_part_is_more_than_its_removal_saved(measured: Measurements) -> None:
    measured = msgspec.structs.replace(measured, sized=False)  # else suspects were removed from steps on cached batches
    division, ratios = divide(measured), [removal_ratio(measured, name) for name in ("data", "copies", "reads", "everything")]
    saved = [max(0.0, 1 - ratio) for ratio in ratios if ratio is not None]
    assert division.share("transfer", "sync") <= max(saved, default=0.0) + 1e-9
    if "everything" not in measured.removed:
        for cause, ratio in zip(("transfer", "sync"), ratios[1:3], strict=True):
            assert division.share(cause) <= (max(0.0, 1 - ratio) if ratio is not None else 0.0) + 1e-9


# ---- what is printed of removals ----

ROW = re.compile(r"^(?P<times>[\d,.]+)x (?:\((?P<low>[\d.e+-]+?)-(?P<high>[\d.e+]+)\)|at best)$")
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0}


def seconds(printed: str) -> float:
    number, unit = printed.split()
    return float(number.replace(",", "")) * UNITS[unit]


def contradictions(measured: Measurements) -> list[str]:
    """Return the printed rows of removals whose times, speed-up and range do not agree."""
    wrong = []
    for row in removal_rows(measured):
        before, after = map(seconds, row.change.split(" -> "))
        numbers = ROW.match(row.gain)
        assert numbers is not None, row.gain
        gain, low, high = (float((numbers[name] or numbers["times"]).replace(",", "")) for name in ("times", "low", "high"))
        if not (before / after == pytest.approx(gain, rel=0.03) and low * 0.98 <= gain <= high * 1.02):
            wrong.append(f"{row.change} {row.gain}")
    return wrong


@pytest.mark.promise("P17")
@given(runs())
def test_times_speed_up_and_range_of_a_removal_agree(measured: Measurements) -> None:
    assume(all(spent >= 1e-5 for spent in measured.loop.seconds))
    ratios = [removal_ratio(measured, name) for name in ("data", "copies", "reads", "callbacks", "everything")]
    assume(all(ratio is None or ratio >= 0.01 for ratio in ratios))
    assert contradictions(measured) == []


def test_removals_from_cached_batches_are_printed_with_their_times() -> None:
    """Batches differ in size: a step takes 10 ms, 6 on cached batches, and of these 3 without all suspects."""
    measured = on_gpu(10.0, cached=6.0, copies=9.0, everything=5.0, device=2.0, sized=True)
    rows = {row.name: row.change for row in removal_rows(measured)}
    assert rows == {
        "loading": "10 ms -> 6 ms", "uploads": "6 ms -> 5.4 ms", "waits for values": "6 ms -> 6 ms", "all of these": "10 ms -> 3 ms",
        "all but GPU kernels": "10 ms -> 2 ms",
    }  # fmt: skip
    assert contradictions(measured) == []
    assert divide(measured).share("data", "transfer") == pytest.approx(0.46)


# ---- noise ----


def noisy(measured: Measurements, size: float, seed: int) -> Measurements:
    """Return the measurements with another time for each step."""
    rng = np.random.default_rng(seed)

    def shaken(stretch: Stretch | None) -> Stretch | None:
        if stretch is None:
            return None
        factors = 1 + size * rng.uniform(-1, 1, len(stretch.seconds))
        return Stretch(
            seconds=[spent * factor for spent, factor in zip(stretch.seconds, factors, strict=True)], pieces=stretch.pieces
        )

    windows = {name: shaken(getattr(measured, name)) for name in ("loop", "cached", "loader_alone", "device_alone")}
    return msgspec.structs.replace(measured, **windows)


def first(measured: Measurements) -> str:
    return rank(measured)[0].verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cause_of_a_program_does_not_depend_on_a_millionth(name: str) -> None:
    assert {first(noisy(kept(name), 1e-6, seed)) for seed in range(4)} == {first(kept(name))}


@given(runs(), st.integers(0, 3))
def test_the_largest_share_does_not_depend_on_a_millionth(measured: Measurements, seed: int) -> None:
    before, after = divide(measured), divide(noisy(measured, 1e-6, seed))
    assume(before.step > 0 and before.host_limits == after.host_limits)
    ordered = sorted(before.parts, key=lambda cause: -before.share(cause))
    assume(before.share(ordered[0]) - before.share(ordered[1]) > 1e-3)
    assert max(after.parts, key=after.share) == ordered[0]


def test_negative_control_much_noise_changes_the_first_cause_of_some_programs() -> None:
    assert any(first(noisy(kept(name), 0.9, 0)) != first(kept(name)) for name in NAMES)


# ---- more or less of a cause ----


@given(cpu_runs() | gpu_runs(), st.floats(0.0, 0.1))
def test_more_time_for_data_never_makes_data_less_likely(measured: Measurements, more: float) -> None:
    measured = msgspec.structs.replace(measured, rare=None, ranks=[], removed={}, blames={}, busy_thread=None)
    assume(measured.cached is None or measured.cached.median <= measured.loop.median)  # else nothing is known of the data
    assume(measured.device == "cuda" or measured.loader.workers == 0)  # else it may be the crowd of workers, not their work
    phases, total = measured.phases, sum(msgspec.structs.asdict(measured.phases).values())
    assume(total > 0)
    factor = measured.loop.median / total  # phases that are the step, as a session measures them
    phases = Phases(**{name: spent * factor for name, spent in msgspec.structs.asdict(phases).items()})
    measured = msgspec.structs.replace(measured, phases=phases)
    longer = msgspec.structs.replace(
        measured,
        loop=Stretch(seconds=[spent + more for spent in measured.loop.seconds]),
        loader_alone=Stretch(seconds=[spent + more for spent in measured.loader_alone.seconds]) if measured.loader_alone else None,
        phases=msgspec.structs.replace(phases, next=phases.next + more),
    )
    assert divide(longer).share("data") >= divide(measured).share("data") - 1e-9
    if first(measured) == "data":
        assert first(longer) == "data"


@pytest.mark.promise("P17")
@given(gpu_runs())
def test_a_gpu_that_waits_for_its_host_is_never_called_compute(measured: Measurements) -> None:
    measured = msgspec.structs.replace(measured, rare=None)
    division = divide(measured)
    if division.host_limits and division.share("launch") >= RULE.waste_first:
        verdict = rank(measured, division)[0].verdict
        assert verdict not in WORK or (verdict == "precision" and precision_gain(measured) is not None)


@pytest.mark.promise("P17", control=True)
def test_negative_control_by_shares_alone_launch_would_be_called_compute() -> None:
    measured = on_gpu(10.0, device=7.0, reached=0.9)
    division = divide(measured)
    assert rank(measured, division)[0].verdict == "launch"
    hidden = {**division.parts, "launch": 0.0, "compute": division.seconds("launch", "compute")}
    assert rank(measured, Division(step=division.step, parts=hidden))[0].verdict in WORK


@given(st.floats(0.05, 1.0), st.floats(0.001, 1000.0))
def test_what_a_removal_saved_is_the_share_whatever_the_unit_of_time(left: float, scale: float) -> None:
    measured = on_gpu(10.0 * scale, reads=10.0 * left * scale, device=10.0 * left * scale, phases=NO_PHASES)
    assert divide(measured).share("sync") == pytest.approx(1 - left, abs=1e-6)


@given(st.lists(st.floats(0.1, 9.9), min_size=2, max_size=6, unique=True))
def test_the_more_a_removal_saved_the_larger_is_its_cause(left: list[float]) -> None:
    shares = [divide(on_gpu(10.0, copies=step, device=step / 2)).share("transfer") for step in sorted(left)]
    assert all(larger >= smaller - 1e-9 for larger, smaller in pairwise(shares))


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("suspect", "verdict"), [("cached", "data"), ("copies", "transfer"), ("reads", "sync"), ("callbacks", "host")]
)
def test_what_a_removal_saved_nine_tenths_of_comes_first(suspect: str, verdict: str) -> None:
    plain = on_gpu(10.0, everything=1.0, device=0.9)
    measured = on_gpu(10.0, everything=1.0, device=0.9, **({suspect: 1.0} if suspect != "callbacks" else {}))
    if suspect == "callbacks":
        measured = msgspec.structs.replace(measured, removed={**measured.removed, "callbacks": changed(10.0, 1.0)})
    assert conclude(measured).verdict == verdict
    assert divide(measured).share(*{"data", "transfer", "sync", "host"}) == pytest.approx(0.9)
    assert conclude(plain).verdict != verdict, "negative control"


@pytest.mark.promise("P17")
@given(runs())
def test_the_order_of_two_causes_is_explained_where_their_shares_do_not(measured: Measurements) -> None:
    causes = rank(measured)
    assume(len(causes) > 1)
    larger = causes[1].share > causes[0].share and percent(causes[1].share) != percent(causes[0].share)
    if why_first(causes):
        assert larger
    elif larger:
        assert causes[0].verdict == "none"


@pytest.mark.promise("P17")
@given(runs())
def test_what_a_sentence_says_of_each_step_is_its_part_of_a_usual_step(measured: Measurements) -> None:
    """Where rare steps have some of the time, shares are of all time, and predictions of a usual step."""
    division = divide(measured)
    for cause in rank(measured):
        printed = re.search(r"(\S+ %) of each step", cause.sentence)
        if printed and not cause.rare and division.share(cause.verdict) > 0:
            assert printed[1] == percent(division.share(cause.verdict)), cause


def test_negative_control_beside_rare_steps_the_share_of_a_cause_is_less_than_its_sentence_says() -> None:
    rare = RareSteps(share=0.2, every=8.0, seconds=0.05, others=0.03, between_epochs=True)
    data = next(cause for cause in rank(on_cpu(next=25.0, cached=None, rare=rare)) if cause.verdict == "data")
    assert f"{percent(data.share)} of each step" not in data.sentence
    assert f"{percent(data.share / 0.8)} of each step" in data.sentence
