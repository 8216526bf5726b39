"""Statements after the update are skipped while the experiment is on, and run before and after it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch

from stoker.diagnose.experiments.between import WithoutBetween
from stoker.diagnose.rewriting import SKIP, WATCHED, Rewriter


def test_an_experiment_skips_them_and_puts_them_back() -> None:
    """The statements run in unchanged steps, and not while the experiment is on."""
    skips: list[Callable[[], bool]] = []
    names: dict[str, Any] = {
        SKIP: skips,
        "opt": torch.optim.SGD([torch.zeros(1)], 0.1),
        "seen": [],
        WATCHED: lambda batches, number: batches,
    }
    tree = ast.parse("for x in loader:\n    opt.step()\n    seen.append(x)")
    code = compile(Rewriter("train.py").visit(tree), "train.py", "exec")

    def run(value: int) -> list[int]:
        exec(code, {**names, "loader": [value]})
        return list(names["seen"])

    experiment = WithoutBetween(lambda: 0, skips)
    assert run(1) == [1]
    experiment.on([], names["opt"], [])
    assert (run(2), experiment.used) == ([1], True)
    experiment.remove()
    assert run(3) == [1, 3]


def test_weights_that_are_updated_by_hand_are_not_skipped() -> None:
    skips: list[Callable[[], bool]] = []
    WithoutBetween(lambda: 0, skips).on([], None, [])
    assert skips == []
