"""The words of a finding: numbers as people read them, whatever they are."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.measured import TWO_CORES, on_cpu, on_gpu

import stoker.diagnose
from stoker.diagnose import wording
from stoker.diagnose.measurements import Advice, Losses, TrialResult
from stoker.diagnose.rule import conclude


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.714, "71 %"), (0.031, "3.1 %"), (0.0, "0 %"), (1.0, "100 %"), (math.inf, "unknown"), (math.nan, "unknown")],
)
def test_percent(share: float, told: str) -> None:
    assert wording.percent(share) == told


@pytest.mark.parametrize(
    ("number", "low", "high", "told"),
    [(2.168, 2.1, 2.3, "2.17x"), (None, 1.2, 2.3, "1.20-2.30x"), (None, None, 7.27, "at most 7.27x"), (None, None, None, "")],
)
def test_what_is_predicted_may_be_a_range(number: float | None, low: float | None, high: float | None, told: str) -> None:
    assert wording.predicted(Advice(name="a", sentence="a", predicted=number, predicted_low=low, predicted_high=high)) == told


@pytest.mark.parametrize(
    ("losses", "difference", "told"),
    [
        ("equal", 0.0, "losses equal"),
        ("within tolerance", 8.3e-7, "losses equal to 8e-07"),
        ("changed", 0.042, "losses changed by 4.2 %"),
        ("changed", None, "losses changed"),
        ("changed", math.inf, "losses changed"),
        ("not compared", None, "losses not compared"),
    ],
)
def test_losses(losses: Losses, difference: float | None, told: str) -> None:
    tried = TrialResult(speedup=2.11, low=2.02, high=2.2, losses=losses, largest_difference=difference)
    assert wording.outcome(tried) == f"tried 2.11x (2.02-2.20)   {told}"


# ---- sentences of a finding: every verdict, reason and advice has one, and each is made in wording.py alone ----

SOURCE = Path(stoker.diagnose.__file__).parent
RULE_FILES = ("rule", "advice", "division", "rare", "trials")


def code_of(*names: str) -> str:
    return "\n".join((SOURCE / f"{name}.py").read_text() for name in names)


def test_every_reason_and_advice_of_the_rule_has_a_sentence_and_the_reverse() -> None:
    code = code_of(*RULE_FILES)
    reasons = re.findall(r'no_verdict\(\s*"(\w+)"', code)
    assert set(reasons) == set(wording.NO_VERDICT)
    for name in wording.ADVICE:
        assert f'"{name}"' in code, name


@pytest.mark.parametrize("name", ["rule", "advice", "division", "rare"])
def test_the_rule_itself_makes_no_sentence(name: str) -> None:
    code = re.sub(r'"""(?:.|\n)*?"""|#.*', "", code_of(name))
    texts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', code)
    assert [text for text in texts if len(re.findall(r"[a-z]+ ", re.sub(r"\{[^}]*\}", "", text))) > 2] == []


@pytest.mark.parametrize(("pages", "told"), [(3_000.0, True), (10.0, False)])
@pytest.mark.parametrize("optimizer", [0.5, 60.0])
def test_memory_from_the_system_is_evidence(pages: float, told: bool, optimizer: float) -> None:
    machine = msgspec.structs.replace(TWO_CORES, page_seconds=1e-6 * (1 + optimizer / 10))
    why = conclude(on_cpu(optimizer=optimizer, machine=machine, pages={"loop": [pages], "cached": [pages]})).why
    assert ("gets memory from the system" in why) == told


@pytest.mark.parametrize(("precision", "told"), [("bf16", True), ("fp64", False)])
def test_a_peak_is_named_only_if_it_was_measured(precision: str, told: bool) -> None:
    shares = {"gemm": 0.9, "elementwise": 0.1}
    why = conclude(on_gpu(step=20.0, device=19.5, reached=0.5, shares=shares, precision=precision)).why
    assert "matmuls 90 %" in why
    assert ("peak that this machine was measured to reach" in why) == told
