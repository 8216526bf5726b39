"""The comparison of tools: what a tool says counts as the table says, and TraceML gets each script with its loop traced."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from benchmarks import page, record
from benchmarks.bench_verdict_tools import cause_by_cause, compare, score
from benchmarks.verdicts import merge, summary
from benchmarks.verdicts.table import PROGRAMS
from benchmarks.verdicts.tools import CAUSES, causes_of
from benchmarks.verdicts.tools.traceml import instrumented

from stoker.diagnose.rule import BETWEEN_RANKS, ON_CPU, ON_CUDA

OF_FRAMEWORKS = {"with_lightning.py", "lightning_topk.py", "with_transformers.py", "trainer_ngrams.py"}


def test_tools_are_mapped_to_causes_that_there_are() -> None:
    named = {cause for table in CAUSES.values() for group in table.values() for cause in group}
    assert named <= {*ON_CPU, *ON_CUDA, *BETWEEN_RANKS}


def test_a_message_without_a_cause_is_not_a_verdict() -> None:
    assert causes_of("gpuprof", ["cost_projection", "dataloader_stall"]) == [("data",)]
    assert causes_of("traceml", ["NO_CLEAR_PERFORMANCE_BOTTLENECK"]) == []


def test_a_group_is_right_and_only_its_first_cause_is_exact() -> None:
    said = {"compute": ["COMPUTE_BOUND"], "memory": ["COMPUTE_BOUND"], "data": ["RESIDUAL_HEAVY"], "host": []}
    rows = [{"put_in": truth, "traceml": {"said": words}} for truth, words in said.items()]
    table = score("traceml", rows)
    assert table["all"] == {"programs": 4, "right": 2, "exact": 1, "top_2": 2, "none": 1, "wrong": 1}
    assert table["memory"]["right"] == 1
    assert table["memory"]["exact"] == 0


def test_no_verdict_of_stoker_is_counted_as_none_and_not_as_wrong() -> None:
    rows = [{"put_in": "data", "stoker": {"said": [verdict, second]}} for verdict, second in (("none", None), ("host", "data"))]
    assert score("stoker", rows)["all"] == {"programs": 2, "right": 0, "exact": 0, "top_2": 1, "none": 1, "wrong": 1}


def test_tools_are_compared_on_programs_that_all_were_asked_about() -> None:
    both = {"put_in": "data", "stoker": {"said": ["data", None]}, "gpuprof": {"said": ["dataloader_stall"]}}
    scores = compare([both, {"put_in": "host", "gpuprof": {"said": []}}])
    assert list(scores) == ["stoker", "gpuprof"]
    assert [table["all"]["programs"] for table in scores.values()] == [1, 1]


def test_results_of_another_machine_are_merged_by_the_names_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, found, readme = tmp_path / "results", tmp_path / "found", tmp_path / "README.md"
    monkeypatch.setattr(record, "RESULTS", results)
    monkeypatch.setattr(summary, "README", readme)
    monkeypatch.setattr(page, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(page, "README", tmp_path / "front.md")
    (tmp_path / "front.md").write_text(f"{page.BEGIN}{page.END}\n")
    readme.write_text(f"before\n{summary.BEGIN}{summary.END}\nafter\n")
    (found / "deep").mkdir(parents=True)
    of = {"when": "2026-01-02", "commit": "abc", "machine": {"cpu": "x", "cores": 2}}
    row = {"name": "data-mlp", "kind": "single", "put_in": "data", "verdict": "data", "second": "host"}
    (found / "cpu.json").write_text(json.dumps({**of, "programs": [row]}))
    said = {"name": "data-mlp", "traceml": {"said": ["INPUT_BOUND"]}, "profiler": {"said": []}}
    (found / "deep" / "tools_cpu.json").write_text(json.dumps({**of, "programs": [said]}))
    merge.main([str(found), str(tmp_path / "nothing")])
    assert "nothing: no results" in capsys.readouterr().out
    assert "measured 2026-01-02 on x" in json.loads((results / "bench_verdicts.json").read_text())["programs"][0]["of"]
    text = readme.read_text()
    assert "| data | 1 | 1 | 1 | 0 |" in text  # by Stoker, TraceML and the profiler's rule
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_the_tables_of_the_readme_are_those_of_the_result_files() -> None:
    text = summary.README.read_text()
    assert text == summary.readme(text), "run: python -m benchmarks.verdicts.summary --write"


def test_a_table_counts_no_verdict_apart_and_gains_of_fixes() -> None:
    row = {"put_in": "data", "second": "host", "gain_cpu": 0.0}
    rows = [row | {"verdict": "data", "gain": 0.5}, row | {"verdict": "none"}, row | {"verdict": "host", "gain": 0.04}]
    rows[2]["second"] = "data"
    lines = list(summary.by_cause([*rows, {"put_in": "none", "verdict": "data", "second": None}]))
    assert lines[2] == "| data | 3 | 1 | 2 | 1 | 1 | 2 | 1 | 27 % |"
    assert lines[-1] == "| disturbed on purpose | 1 | 0 | 0 | 0 | 1 | | | |"


def test_programs_come_cause_by_cause() -> None:
    ordered = cause_by_cause([one for one in PROGRAMS if one.kind == "single"])
    causes = [one.verdict for one in ordered]
    assert len(set(causes[: len(set(causes))])) == len(set(causes))
    assert len(ordered) == sum(one.kind == "single" for one in PROGRAMS)


def test_every_script_with_a_loop_of_its_own_is_traced() -> None:
    without = set()
    for path in {program.path for program in PROGRAMS if program.kind == "everyday" or program.script in OF_FRAMEWORKS}:
        source = instrumented(path.read_text(), 1.0)
        compile(source, path.name, "exec")
        if "_step({" not in source:
            without.add(path)
    assert {path.name for path in without} >= OF_FRAMEWORKS
    assert [path.name for path in without if "Trainer(" not in path.read_text()] == [], "only the loop of a framework is not traced"


@pytest.mark.parametrize(
    ("loop", "batches"),
    [
        ("for x in loader():\n    loss.backward()", "_fetched(loader())"),
        ("for i, x in enumerate(b):\n    opt.step()", "_fetched(b)"),
    ],
)
def test_the_innermost_loop_is_traced_and_its_batches_are_timed(loop: str, batches: str) -> None:
    source = "for epoch in range(3):\n" + "\n".join(f"    {line}" for line in loop.splitlines())
    outer = ast.parse(instrumented(source, 1.0)).body[-1]
    assert isinstance(outer, ast.For)
    inner = outer.body[0]
    assert isinstance(inner, ast.For)
    assert isinstance(inner.body[0], ast.With)
    assert batches in ast.unparse(inner.iter)


def test_a_while_loop_gets_a_time_of_batches_and_keeps_its_condition() -> None:
    traced = ast.parse(instrumented("n = 0\nwhile n < 3:\n    n += 1\n    opt.step()\nprint(n)", 1.0))
    loop = traced.body[-2]
    assert isinstance(loop, ast.For)
    assert ast.unparse(loop.iter) == "_fetched(iter(int, 1))"
    assert ast.unparse(loop.body[0]).split() == ["if", "not", "n", "<", "3:", "break"]


def test_a_script_of_a_framework_is_left_to_traceml() -> None:
    assert "_traceml" not in instrumented("trainer.fit(model)", 1.0)
