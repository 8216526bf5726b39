"""The receipt: its text, JSON, Markdown and HTML."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from tests.compare.observations import STEPS, observed, samples

from stoker.compare.engine import judge
from stoker.compare.receipt import BRIEF_BYTES, Receipt, plot, read_receipt
from stoker.compare.rounds import Pairs
from stoker.errors import OptionError

NAMES = ("old.py", "<new>|.py")


def receipt(*, changed: bool = True) -> Receipt:
    after = observed(
        step=0.005,
        **(
            {
                "losses": [math.nan] * STEPS, "training": samples([number % 8 for number in range(4 * STEPS)], mode=False),
                "parameters": 3, "epoch_samples": 8, "evaluation": samples([0, 1]), "random": {"torch": [7] * STEPS},
            }
            if changed
            else {}
        ),
    )  # fmt: skip
    timed = Pairs([observed() for _ in range(7)], [observed(step=0.005) for _ in range(7)])
    return judge(observed(), after, [[1.0 / (number + 1) for number in range(STEPS)]], timed, names=NAMES, require="memory<=2")


@pytest.mark.parametrize(("pairs", "words"), [(1, "in 1 pair of runs"), (2, "in 2 pairs of runs")])
def test_too_few_runs_are_counted_in_words(pairs: int, words: str) -> None:
    timed = Pairs([observed()] * pairs, [observed(step=0.005)] * pairs)
    assert words in str(judge(observed(), observed(step=0.005), [], timed, names=NAMES))


def test_a_receipt_has_at_most_15_lines() -> None:
    lines = str(receipt()).splitlines()
    assert len(lines) <= 15
    assert "CHANGED" in lines[0]
    for text in (
        "2x",
        "8 samples per epoch instead of 80",
        "3 parameters instead of 12",
        "other random numbers",
        "memory<=2 holds",
    ):
        assert text in str(receipt()), text
    assert "FASTER with equal results" in str(receipt(changed=False)).splitlines()[0]


def test_the_brief_form_is_at_most_2_kb_and_has_the_decision() -> None:
    long = msgspec.structs.replace(
        receipt(),
        facts=[*receipt().facts, *(type(receipt().facts[0])(name=f"f{n}", same=False, text="x" * 500) for n in range(50))],
    )
    for one in (receipt(), long):
        text = json.dumps(one.brief(), allow_nan=False)
        assert len(text) <= BRIEF_BYTES
        assert json.loads(text)["status"] == one.status
    assert receipt().brief()["speed"]["verdict"] == "faster"


@pytest.mark.parametrize("changed", [False, True])
def test_a_receipt_that_is_written_as_json_is_read_again(tmp_path: Path, changed: bool) -> None:
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(receipt(changed=changed).as_dict(), allow_nan=False))
    again = read_receipt(path)
    assert again.verdict == receipt(changed=changed).verdict
    assert str(again.speed) == str(receipt(changed=changed).speed)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"status": 0, "speed": null}'])
def test_other_files_than_receipts_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with pytest.raises(OptionError, match="receipt"):
        read_receipt(path)
    with pytest.raises(OptionError, match="does not exist"):
        read_receipt(tmp_path / "none.json")


def test_names_of_programs_are_only_text_in_markdown_and_html(tmp_path: Path) -> None:
    assert "<new>" not in receipt().markdown()
    rows = [line for line in receipt().markdown().splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {3}
    page = receipt(changed=False).write_html(tmp_path / "receipt.html").read_text()
    assert "<new>" not in page
    assert "&lt;new&gt;" in page
    assert "<script" not in page
    assert page.count("<polyline") == 4


def test_a_plot_leaves_out_what_is_not_finite() -> None:
    assert plot([[1.0, math.nan, 3.0], [2.0, 2.0, 2.0]])[0] == "0.0,200.0 640.0,0.0"
    assert plot([[math.nan], []]) == []
