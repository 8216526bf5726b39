"""The thresholds of the rule: frozen, each with a meaning, and nowhere else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import stoker.diagnose
from stoker.diagnose.thresholds import RULE, Thresholds

SOURCE = Path(stoker.diagnose.__file__).parent


def test_each_has_a_value_and_a_meaning() -> None:
    rows = RULE.table()
    assert len(rows) == len(dataclasses.fields(Thresholds))
    assert all(float(value) > 0 and len(meaning) > 10 for _, value, meaning in rows)


def test_each_is_used_by_the_rule() -> None:
    code = "\n".join(path.read_text() for path in SOURCE.glob("*.py"))
    unused = [name for name, *_ in RULE.table() if not re.search(rf"\bRULE\.{name}\b", code)]
    assert unused == []


def test_the_rule_has_no_other_limit() -> None:
    for name in ("rule", "division", "rare", "advice"):
        code = (SOURCE / f"{name}.py").read_text()
        assert re.findall(r"^[A-Z_]+(?:: \w+)? = [\d.]", code, re.MULTILINE) == []
