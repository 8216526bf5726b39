"""The benchmark of tries: what counts as a prediction, and that rows are kept whole."""

from __future__ import annotations

import msgspec
import pytest
from benchmarks.bench_tries import row_of, score
from benchmarks.verdicts.table import PROGRAMS
from tests.diagnose.findings import on_gpu

from stoker.diagnose.measurements import Advice, TrialResult


def step(name: str, predicted: float | None, tried: float | None, low: float | None = None, high: float | None = None) -> Advice:
    outcome = None
    if tried is not None:
        outcome = TrialResult(speedup=tried, low=0.98 * tried, high=1.02 * tried, losses="equal", peak_bytes=7)
    return Advice(name=name, sentence=name, predicted=predicted, predicted_low=low, predicted_high=high, tried=outcome)


def test_what_is_not_predicted_is_not_a_success() -> None:
    failed = TrialResult(speedup=float("nan"), low=1.0, high=1.0, losses="not compared", error="no kernel")
    steps = [
        step("fused", 1.5, 2.0, 1.4, 1.6),
        step("feed", 2.0, 2.0, 1.9, 2.1),
        step("threads", None, 3.0, 1.0, 3.5),
        step("compile", None, 1.2),
        msgspec.structs.replace(step("graph", 2.0, None), tried=failed),
    ]
    finding = msgspec.structs.replace(on_gpu(), next=steps)
    row = row_of(PROGRAMS[0], finding, [step("workers", None, None, None, 2.0)])
    assert {one["fix"]: one["error"] for one in row["tries"]} == {"fused": 0.25, "feed": 0.0}
    assert [one["fix"] for one in row["not_predicted"]] == ["threads", "compile", "workers"]
    assert row["could_not_be_tried"] == {"graph": "no kernel"}
    scored = score([row])
    assert scored["predicted"] == 2
    assert scored["not_predicted"] == {"compile": 1, "threads": 1, "workers": 1}
    assert scored["all"]["median"] == pytest.approx(0.125)
    assert (scored["intervals_overlap"], scored["ranges_overlap"], scored["ranges_tried"]) == (1, 1, 1)
