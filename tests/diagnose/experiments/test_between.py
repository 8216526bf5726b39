"""Statements after the update are skipped while the experiment is on, and run before and after it."""

from __future__ import annotations

import ast
from typing import Any

import torch

from stoker.diagnose.experiments.between import WithoutBetween
from stoker.diagnose.hooks import StepHooks
from stoker.diagnose.loops import Source, Sources
from stoker.diagnose.measurements import SourceLine
from stoker.diagnose.rewriting import SKIP, WATCHED, Rewriter


def program(source: str, training_line: int) -> tuple[Sources, dict[str, Any], Any]:
    """The code of a program with watched loops, what it can name, and its loops, of which that at a line trains."""
    sources = Sources(StepHooks())
    sources.training = Source(None, SourceLine(file="train.py", line=training_line, function="<module>"))
    names: dict[str, Any] = {
        SKIP: sources.skips,
        "opt": torch.optim.SGD([torch.zeros(1)], 0.1),
        "seen": [],
        WATCHED: lambda batches, number: batches,
    }
    return sources, names, compile(Rewriter("train.py").visit(ast.parse(source)), "train.py", "exec")


def test_an_experiment_skips_them_and_puts_them_back() -> None:
    """The statements run in unchanged steps, and not while the experiment is on."""
    sources, names, code = program("for x in loader:\n    opt.step()\n    seen.append(x)", training_line=1)

    def run(value: int) -> list[int]:
        exec(code, {**names, "loader": [value]})
        return list(names["seen"])

    experiment = WithoutBetween(lambda: 0, sources)
    assert run(1) == [1]
    experiment.on([], names["opt"], [])
    assert (run(2), experiment.used) == ([1], True)
    experiment.remove()
    assert run(3) == [1, 3]


def test_statements_of_other_loops_are_parts_of_the_step() -> None:
    """Gradients of single samples are added up after each backward pass: that is work, not what comes between two steps."""
    source = "\n".join(
        [
            "for x in loader:",
            "    for part in (x, x):",
            "        loss.backward()",
            "        seen.append(part)",
            "    opt.step()",
            "    seen.append(0)",
        ]
    )
    sources, names, code = program(source, training_line=1)
    experiment = WithoutBetween(lambda: 0, sources)
    experiment.on([], names["opt"], [])
    exec(code, {**names, "loader": [7], "loss": torch.zeros(1, requires_grad=True).sum()})
    assert names["seen"] == [7, 7]


def test_weights_that_are_updated_by_hand_are_not_skipped() -> None:
    sources = Sources(StepHooks())
    WithoutBetween(lambda: 0, sources).on([], None, [])
    assert sources.skips == []
