"""Sentences of a finding: every verdict, reason and advice has one, and each is made in wording.py alone."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.measured import TWO_CORES, on_cpu

import stoker.diagnose
from stoker.diagnose import wording
from stoker.diagnose.rule import conclude

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
