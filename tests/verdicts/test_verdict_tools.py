"""The comparison of tools: what a tool says counts as the table says, and TraceML gets each script with its loop traced."""

from __future__ import annotations

from verdicts import summary
from verdicts.other_tools import compare, score
from verdicts.table import PROGRAMS
from verdicts.tools.traceml import instrumented

OF_FRAMEWORKS = {"with_lightning.py", "lightning_topk.py", "with_transformers.py", "trainer_ngrams.py"}


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


def test_the_tables_of_the_readme_are_those_of_the_result_files() -> None:
    text = summary.README.read_text()
    assert text == summary.readme(text), "run: python -m verdicts.summary --write"


def test_every_script_with_a_loop_of_its_own_is_traced() -> None:
    without = set()
    for path in {program.path for program in PROGRAMS if program.kind == "everyday" or program.script in OF_FRAMEWORKS}:
        source = instrumented(path.read_text(), 1.0)
        compile(source, path.name, "exec")
        if "_step({" not in source:
            without.add(path)
    assert {path.name for path in without} >= OF_FRAMEWORKS
    assert [path.name for path in without if "Trainer(" not in path.read_text()] == [], "only the loop of a framework is not traced"
