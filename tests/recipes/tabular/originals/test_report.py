"""`quality` by mostlyai-qa itself: its own numbers, and they separate what is spoilt from what is not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from benchmarks.tabular.known_tables import make_rules, make_shop
from tests.cli.calling import environment, stoker_command

from stoker_recipes.tabular import Synthesizer, quality

pytestmark = [pytest.mark.originals, pytest.mark.filterwarnings("ignore"), pytest.mark.promise("P30")]


def test_the_metrics_are_those_of_a_direct_call(tmp_path: Path) -> None:
    qa = pytest.importorskip("mostlyai.qa")
    users, events = zip(*(make_shop(200, seed=seed) for seed in range(3)), strict=True)
    names = ("trn", "syn", "hol")
    options = {f"{name}_tgt_data": table.to_pandas() for name, table in zip(names, events, strict=True)}
    options |= {f"{name}_ctx_data": table.to_pandas() for name, table in zip(names, users, strict=True)}
    qa.set_random_state(5)
    _, metrics = qa.report(**options, tgt_context_key="user_id", ctx_primary_key="user_id", report_path=tmp_path / "theirs.html")
    contexts = dict(zip(("context", "synthetic_context", "holdout_context"), users, strict=True))
    metrics_here = quality(*events[:2], key="user_id", holdout=events[2], **contexts, seed=5, report=tmp_path / "ours.html")
    assert metrics_here == metrics.model_dump(exclude_none=True)
    assert "<html" in (tmp_path / "ours.html").read_text()


@pytest.mark.promise("P30", control=True)
def test_two_real_samples_are_closer_than_a_spoilt_one() -> None:
    pytest.importorskip("mostlyai.qa")
    real, other = (make_shop(200, seed=seed)[1] for seed in range(2))
    same = quality(real, other, key="user_id")["accuracy"]
    shuffled = other.set_column(0, "user_id", other["user_id"].take(list(range(0, len(other), 2)) + list(range(1, len(other), 2))))
    assert quality(real, shuffled, key="user_id")["accuracy"]["coherence"] < same["coherence"] - 0.05


def test_a_model_reports_and_the_command_prints(tmp_path: Path) -> None:
    pytest.importorskip("mostlyai.qa")
    real, other = make_rules(120, seed=0), make_rules(120, seed=1)
    metrics = quality(real, Synthesizer(size="s", epochs=1, seed=1).fit(real, device="cpu").sample(), holdout=other)
    assert 0 < metrics["accuracy"]["univariate"] < 1
    for name, table in (("real", real), ("other", other)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    command = stoker_command("tabular", "quality", tmp_path / "real.parquet", tmp_path / "other.parquet", "--json")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == quality(real, other)
