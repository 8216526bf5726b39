"""The page on statistics says what is true: its examples run, and its comments are their results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[4] / "docs" / "encoding" / "statistics.md"


def test_the_examples_run_and_give_what_their_comments_say() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    told = 0
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        for code, comment in re.findall(r"^(stats\S.*?)\s+# (.+)$", block, re.MULTILINE):
            assert repr(eval(code, names)) == comment
            told += 1
    assert told == 6
