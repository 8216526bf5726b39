"""The documents speak of tests, files and commands that exist, their examples run, and their pictures are up to date."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.order.lengths import Lengths

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


def run_examples(document: str) -> Iterator[dict[str, Any]]:
    """Run the examples of a document one after the other, as a reader would; yields the names after each."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL):
        exec(compile(block, document, "exec"), names)
        yield names


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = run_examples("README.md")
    store = next(examples)["store"]
    assert store[1]["charge"].tolist() == [0.5, 0.7, 0.9]
    assert store.lengths.tolist() == [2, 3]
    feed = next(examples)["feed"]
    assert feed.state_dict()["epoch"] == 1
    encoded = next(examples)
    assert encoded["digits"].columns == ("nan", "neg", "E3", "E2", "E1", "E0", "E-1", "E-2")
    assert encoded["padded"]["charge"].shape == (2, 100, 1)
    assert list(examples) == []


def test_the_examples_of_the_feeding_page_run_and_print_what_it_says() -> None:
    examples = run_examples("docs/feeding.md")
    told = (ROOT / "docs" / "feeding.md").read_text()
    assert str(next(examples)["feed"]) in told
    for names in examples:
        state = names.get("state")
    assert str({**state, "feed": "…"}) in told


def test_the_table_of_short_series_is_true() -> None:
    text = (ROOT / "docs" / "feeding.md").read_text()
    [head, *rows] = re.search(r"^\| steps of the series (\|.*?)\n\n", text, re.DOTALL | re.MULTILINE)[1].splitlines()  # type: ignore[index]
    lengths = [int(word) for word in head.split("|")[1:-1]]
    views = {
        "`Windows(8, stride=8)`": stoker.Windows(8, stride=8),
        'the same with `tail="drop"`': stoker.Windows(8, stride=8, tail="drop"),
        "`Windows(8, stride=8, horizon=3)`": stoker.Windows(8, stride=8, horizon=3),
        "`Segments(8, shift=1)`": stoker.Segments(8, shift=1),
        '`Segments(8, compat="time-moe")`': stoker.Segments(8, compat="time-moe"),
    }
    told = {name.strip(): [word.strip() for word in words] for _, name, *words, _ in (row.split("|") for row in rows[1:])}
    assert told == {name: [samples_of(view, length) for length in lengths] for name, view in views.items()}


def samples_of(view: Any, length: int) -> str:
    samples = view.over(Lengths(num_series=1, num_steps=length, offsets=np.array([0, length])))
    return ", ".join(map(str, samples.locate(np.arange(samples.num_samples)).counts)) or "-"


def test_the_pictures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    folder = ROOT / "docs" / "pictures"
    runpy.run_path(str(folder / "draw.py"))["main"](tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {path.name: path.read_text() for path in folder.glob("*.svg")} == drawn
