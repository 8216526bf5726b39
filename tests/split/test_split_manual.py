"""The page on splitting: its examples run, and print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.test_docs import run_examples

PAGE = Path(__file__).parents[2] / "docs" / "splitting.md"


def test_the_examples_run_and_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    examples = run_examples("docs/splitting.md")
    names = next(examples)
    assert str(names["split"]) in PAGE.read_text()
    names["scaler"].check(names["split"])
    assert len(names["train"]) == -(-len(names["split"].train) // 64)
    assert len(list(examples)) == 5
    out = capsys.readouterr().out
    assert "215 511" in out
    assert "looks into the future" in out
