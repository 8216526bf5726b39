"""The user's files, rewritten: the same program with watched loops, on the same lines."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.diagnose.measurements import SourceLine
from stoker.diagnose.rewriting import OwnLoader, Rewriter, rewrite_imports


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
