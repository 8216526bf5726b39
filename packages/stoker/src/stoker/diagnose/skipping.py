"""Statements of a training loop that come after its step, rewritten so that an experiment can skip them (experiments/between.py).

`metric.update(loss)` becomes `if not (__stoker_skip__ and __stoker_skip__[0]()): metric.update(loss)` on the same line. Skipped are
statements of the loop's body behind the last one that may make a step. A statement stays as it is if the loop cannot do without it:
if it leaves the loop or the function, defines or imports something, sets a name that the rest of the body reads, or calls what
changes the training (`zero_grad`, a schedule, a gradient scaler).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

SKIP = "__stoker_skip__"
STEPS = ("step", "backward", "train", "fit", "closure", "learn", "minimize", "optimize")
"""A statement may make a step if it calls a function whose name contains one of these words."""
NEEDED = ("zero_grad", "step", "backward", "next", "train", "eval", "detach_", "copy_", "load_state_dict", "synchronize")
"""A statement that calls one of these functions is part of the training."""
STAYING = (
    *(ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete, ast.Global, ast.Nonlocal),
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.NamedExpr, ast.Assert),
)


def make_skippable(tree: ast.AST, marks: Sequence[str]) -> None:
    """Rewrite the loops that are watched, which have one of the names `marks` in them, in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            head = node.iter if isinstance(node, ast.For) else node.body[0]
            if any(isinstance(part, ast.Name) and part.id in marks for part in ast.walk(head)):
                _rewrite(node.body, node.test if isinstance(node, ast.While) else node.target)


def _rewrite(body: list[ast.stmt], head: ast.expr) -> None:
    steps = [number for number, statement in enumerate(body) if any(_makes_step(name) for name in called_names(statement))]
    after = steps[-1] + 1 if steps else len(body)
    needed = {name for part in (head, *body[:after]) for name in _names(part)}
    for number in range(after, len(body)):
        statement = body[number]
        if _can_be_skipped(statement, needed):
            test = ast.parse(f"not ({SKIP} and {SKIP}[0]())", mode="eval").body
            for part in ast.walk(test):
                ast.copy_location(part, statement)
            body[number] = ast.copy_location(ast.If(test, [statement], []), statement)


def called_names(node: ast.AST) -> list[str]:
    """Return the names of the functions that are called within a statement."""
    calls = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
    return [call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else "" for call in calls]


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _makes_step(name: str) -> bool:
    return any(word in name.lower() for word in STEPS)


def _can_be_skipped(statement: ast.stmt, needed: set[str]) -> bool:
    for part in ast.walk(statement):
        if isinstance(part, STAYING):
            return False
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store) and _names(part) & needed:
            return False
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and "scaler" in ast.unparse(part.func).lower():
            return False
    return not any(name in NEEDED for name in called_names(statement)) and not isinstance(statement, ast.Pass)
