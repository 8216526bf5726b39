"""The documents speak of tests, files and commands that exist, and the README's example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_every_test_that_a_promise_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "promises.md").read_text())
    assert len(named) > 30
    for path, name in named:
        text = (ROOT / path).read_text()
        assert not name or f"def {name}(" in text, f"{path}::{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_results_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / target).exists(), target
    for target in re.findall(r"`(benchmarks/[\w/]+\.(?:json|py))`", text):
        assert (ROOT / target).exists(), target


def test_the_readme_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(blocks[0], "README.md", "exec"), names)
    store = names["store"]
    assert store[1]["charge"].tolist() == [0.5, 0.7, 0.9]  # type: ignore[index]
    assert store.lengths.tolist() == [2, 3]  # type: ignore[attr-defined]
