"""Statements after the update of a training loop can be skipped, and those that the loop needs cannot."""

from __future__ import annotations

import ast

import pytest

from stoker.diagnose.rewriting import SKIP, Rewriter

STEP = "loss = f(x); loss.backward(); opt.step()"


def skippable(*statements: str, head: str = "for x in loader") -> list[bool]:
    """Say of each statement after the update whether it can be skipped."""
    tree = ast.parse(f"{head}:\n    {STEP}\n" + "".join(f"    {line}\n" for text in statements for line in text.splitlines()))
    loop = Rewriter("train.py").visit(tree).body[0]
    return [SKIP in ast.unparse(statement) for statement in loop.body[3 + isinstance(loop, ast.While) :]]


@pytest.mark.parametrize(
    "statement",
    [
        "print(loss.item())",
        "total += loss.item()",
        "losses.append(float(loss))",
        "if i % 10 == 0:\n    torch.save(model.state_dict(), path)",
        "for p in model.parameters():\n    history[p].append(p.norm())",
        "ema.update(model)",
        "for e, p in zip(ema.parameters(), model.parameters()):\n    e.data = e.data * 0.9 + p.data * 0.1",
        "with torch.no_grad():\n    score = auc(y, model(x))",
    ],
)
def test_code_after_the_update_can_be_skipped(statement: str) -> None:
    assert skippable(statement) == [True]


@pytest.mark.parametrize(
    "statement",
    [
        "break",
        "if loss < 0.1:\n    break",
        "yield loss",
        "scheduler.step()",
        "opt.zero_grad()",
        "scaler.update()",
        "x = next(batches)",
        "loss = loss.detach()",
        "f.hidden = f.hidden.detach()",
        "import time",
        "model.train()",
    ],
)
def test_what_the_loop_needs_stays(statement: str) -> None:
    assert skippable(statement) == [False]


def test_code_before_the_last_step_stays() -> None:
    assert skippable("print(1)", "other.step()", "print(2)") == [False, False, True]
    assert skippable("n += 1", head="while n < 9") == [False], "the condition of the loop reads it"


def test_lines_of_errors_are_those_of_the_file() -> None:
    tree = Rewriter("train.py").visit(ast.parse(f"for x in loader:\n    {STEP}\n\n    1 / 0"))
    assert [part.lineno for part in ast.walk(tree) if isinstance(part, ast.BinOp)] == [4]
    compile(tree, "train.py", "exec")
