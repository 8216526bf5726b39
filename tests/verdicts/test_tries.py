"""The benchmark of tries: what counts as a prediction, and that rows are kept whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.diagnose.findings import on_gpu
from tests.diagnose.measured import around, on_cpu
from verdicts.table import PROGRAMS
from verdicts.tries import judged_again, read_finding, row_of, score

from stoker.diagnose.measurements import Advice, TrialResult, WhatIf
from stoker.diagnose.rule import conclude


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
        step("compile", None, 0.9),
        step("host", 2.0, None),  # advice that no fix can try
        msgspec.structs.replace(step("graph", 2.0, None), tried=failed),
    ]
    finding = msgspec.structs.replace(on_gpu(), next=steps)
    row = row_of(PROGRAMS[0], finding)
    assert {one["fix"]: one["error"] for one in row["tries"]} == {"fused": 0.25, "feed": 0.0}
    assert [one["fix"] for one in row["not_predicted"]] == ["threads", "compile"]
    assert row["could_not_be_tried"] == {"graph": "no kernel"}
    scored = score([row])
    assert scored["all"] == {"tried": 4, "predicted": 2, "share": 0.5, "median": 0.125, "p90": pytest.approx(0.225)}
    assert scored["by_fix"]["threads"] == {"tried": 1, "predicted": 0, "share": 0.0}
    assert scored["could_not_be_tried"] == {"graph": 1}
    assert scored["advised_and_slower"] == [f"{PROGRAMS[0].name}: compile 0.9"]
    assert (scored["intervals_overlap"], scored["ranges_overlap"], scored["ranges_tried"]) == (1, 1, 1)


def test_kept_findings_are_judged_by_the_rule_of_now(tmp_path: Path) -> None:
    what_ifs = {"fused": WhatIf(as_it_is=around(0.018), with_fix=around(0.012))}
    measured = on_cpu(optimizer=9.0, what_ifs=what_ifs)
    failed = TrialResult(speedup=float("nan"), low=float("nan"), high=float("nan"), losses="not compared", error="no kernel")
    then = [step("fused", None, 1.5), step("tf32", 3.0, 3.0), msgspec.structs.replace(step("batch", None, None), tried=failed)]
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(conclude(measured), next=then)))
    found = judged_again(read_finding(tmp_path / "one.json"))
    assert {one.name for one in found.next} == {"fused", "batch"}, "what is not advised any more is gone"
    fused = next(one for one in found.next if one.name == "fused")
    assert fused.predicted == pytest.approx(18.3 / (0.1 + 18.2 * 12 / 18), rel=0.01)
    assert fused.tried is not None
    assert fused.tried.speedup == 1.5
