"""What `quality` gives to mostlyai-qa, and its errors; what it measures is in originals/test_report.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.tabular.known_tables import make_rules, make_shop

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import quality

pytestmark = pytest.mark.promise("P30")

METRICS = {"accuracy": {"overall": 0.9}, "similarity": {}, "distances": {"ims_training": 0.0}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls of a module in the place of mostlyai-qa."""
    made: list[dict[str, Any]] = []

    def report(**options: Any) -> Any:
        options["report_path"].write_text("a page")
        made.append(options | {"drawn": (random.random(), np.random.random())})
        return options["report_path"], SimpleNamespace(model_dump=lambda exclude_none: METRICS)

    package, qa = ModuleType("mostlyai"), ModuleType("mostlyai.qa")
    package.qa, qa.report = qa, report  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mostlyai", package)
    monkeypatch.setitem(sys.modules, "mostlyai.qa", qa)
    return made


def test_sequences_with_contexts_and_a_holdout(calls: list[dict[str, Any]], tmp_path: Path) -> None:
    users, events = zip(*(make_shop(120, seed=seed) for seed in range(3)), strict=True)
    contexts = [table.rename_columns(["id", *table.column_names[1:]]) for table in users]
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    for _ in range(2):
        metrics = quality(
            *events[:2], key="user_id", holdout=events[2], context=contexts[0], synthetic_context=contexts[1],
            holdout_context=contexts[2], context_key="id", seed=7, report=tmp_path / "q.html",
        )  # fmt: skip
    assert metrics == METRICS
    assert (tmp_path / "q.html").read_text() == "a page"
    assert calls[0]["drawn"] == calls[1]["drawn"]  # by the seed
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
    assert (calls[0]["tgt_context_key"], calls[0]["ctx_primary_key"]) == ("user_id", "id")
    for number, name in enumerate(("trn", "syn", "hol")):
        pd.testing.assert_frame_equal(calls[0][f"{name}_tgt_data"], events[number].to_pandas())
        pd.testing.assert_frame_equal(calls[0][f"{name}_ctx_data"], contexts[number].to_pandas())


def test_rows_alone(calls: list[dict[str, Any]]) -> None:
    assert quality(make_rules(90, seed=0), make_rules(100, seed=1).to_pandas()) == METRICS
    assert {name for name in calls[0] if name.endswith("_data")} == {"trn_tgt_data", "syn_tgt_data"}
    assert calls[0]["tgt_context_key"] is calls[0]["ctx_primary_key"] is None


@pytest.mark.parametrize(
    ("options", "kind", "line"),
    [
        ({"key": "who"}, OptionError, "real has no column 'who'; it has 'user_id', 'time', 'state', 'amount', 'score'. "),
        ({"key": "user_id", "context": make_shop(120, seed=0)[0]}, OptionError, "none for synthetic; give one for every table"),
        ({"context": make_shop(120, seed=0)[0]}, OptionError, "none for key; give one"),
        ({"seed": -1}, OptionError, r"seed=-1 is not valid; expected an integer from 0 to 2\*\*32 - 1."),
        ({"report": "q.pdf"}, OptionError, "q.pdf ends in '.pdf'; expected a report that ends in '.html'."),
        ({"report": "no/q.html"}, OptionError, "no/q.html cannot be written: there is no folder no. Create it first."),
        ({"holdout": make_shop(9, seed=0)[1], "key": "user_id"}, OptionError, "holdout has . subjects; mostlyai-qa needs 10."),
        ({"holdout": make_rules(90, seed=0)}, OptionError, "holdout has no column 'user_id', which real has; it has "),
        ({"holdout": {"user_id": [1, None]}, "key": "user_id"}, BadValueError, "holdout, row 1: the user_id is missing"),
    ],
)
def test_errors_before_anything_is_measured(
    calls: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], kind: type, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    real, synthetic = (make_shop(120, seed=seed)[1] for seed in range(2))
    with pytest.raises(kind, match=line):
        quality(real, synthetic, **options)
    assert calls == []


def test_without_mostlyai_qa_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mostlyai", None)
    with pytest.raises(OptionError, match=r"pip install './packages/stoker-recipes\[qa\]'"):
        quality(make_rules(90, seed=0), make_rules(100, seed=1))
