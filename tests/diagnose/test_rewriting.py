"""The user's files, rewritten: the same program with watched loops, on the same lines."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.diagnose.measurements import SourceLine
from stoker.diagnose.rewriting import SKIP, OwnLoader, Rewriter, rewrite_imports


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[int, Any]] = []
        self.turns: list[int] = []
        self.skips: list[Any] = []

    def watched(self, iterable: Iterable[Any], place: SourceLine) -> Iterator[Any]:
        for one in iterable:
            self.seen.append((place.line, one))
            yield one

    def iteration(self, place: SourceLine) -> None:
        self.turns.append(place.line)


def rewritten(text: str) -> str:
    return ast.unparse(Rewriter("train.py").visit(ast.parse(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for x in loader:\n    step(x)", "in __stoker_watched__(loader, 0):"),
        ("for i, x in enumerate(loader):\n    step(x)", "in enumerate(__stoker_watched__(loader, 0)):"),
        (
            "for i, x in enumerate(tqdm(loader, leave=False), 1):\n    step(x)",
            "enumerate(tqdm(__stoker_watched__(loader, 0), leave=False), 1)",
        ),
        ("for x in tqdm.auto.tqdm(loader):\n    step(x)", "tqdm.auto.tqdm(__stoker_watched__(loader, 0))"),
        ("while True:\n    step(x)", "while True:\n    __stoker_iteration__(0)\n    step(x)"),
        ("def fit(m):\n    for x in m:\n        print(x)", "__stoker_watched__(m, 0)"),
        ("def anything(m):\n    for x in m:\n        m.training_step(x)", "__stoker_watched__(m, 0)"),
    ],
)
def test_a_loop_that_may_train_is_watched(text: str, expected: str) -> None:
    assert expected in rewritten(text)


@pytest.mark.parametrize(
    "text",
    [
        "for x in loader:\n    total += x",
        "def total(m):\n    for x in m:\n        print(x)",
        "class Net:\n    def forward(self, x):\n        for step in self.steps:\n            x = step(x)",
        "class Data:\n    def __getitem__(self, i):\n        for x in i:\n            update(x)",
        "@numba.njit\ndef train(m):\n    for x in m:\n        step(x)",
        "@torch.compile\ndef train(m):\n    while True:\n        step(m)",
        "[step(x) for x in loader]",
    ],
)
def test_a_loop_that_cannot_train_or_that_a_compiler_reads_is_left_alone(text: str) -> None:
    assert "__stoker" not in rewritten(text)


PROGRAM = """\
def helper(x):
    return x * 2

results = []
for i, x in enumerate([1, 2, 3]):
    results.append(
        helper(x))
n = 0
while n < 2:
    n += abs(1)
line = None
try:
    for x in [5]:
        int("no number")
except ValueError as error:
    line = error.__traceback__.tb_lineno
"""


@pytest.mark.promise("P18")
def test_a_rewritten_file_computes_the_same_on_the_same_lines(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    recorder = Recorder()
    loader = OwnLoader("program", str(file), recorder)
    module = type(ast)("program")
    loader.exec_module(module)
    assert module.results == [2, 4, 6]
    assert module.line == 14
    assert recorder.seen == [(5, 1), (5, 2), (5, 3), (13, 5)]
    assert recorder.turns == [9, 9]
    assert list(tmp_path.iterdir()) == [file], "nothing compiled is kept"


def test_own_modules_are_rewritten_when_imported_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_user.py").write_text("for x in 'ab':\n    str(x)\n")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "of_a_package.py").write_text("for x in 'ab':\n    str(x)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    recorder = Recorder()
    undo = rewrite_imports(recorder)
    try:
        import of_a_package  # type: ignore[import-not-found]
        import of_the_user  # type: ignore[import-not-found]
    finally:
        undo()
    assert recorder.seen == [(1, "a"), (1, "b")]
    assert "__stoker_watched__" not in vars(of_a_package)
    assert "__stoker_watched__" in vars(of_the_user)
    for name in ("of_a_package", "of_the_user"):
        del sys.modules[name]


# ---- statements after the update of a training loop can be skipped, and those that the loop needs cannot ----

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
