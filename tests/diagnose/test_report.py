"""The report: one file, no script, and whatever a program is called is text."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest
from tests.diagnose.findings import ALL, on_cpu, on_gpu, texts_of, with_texts
from tests.diagnose.markup import PAYLOADS, POLICY, Markup

from stoker._text import printable
from stoker.diagnose.finding import text
from stoker.diagnose.report import TEMPLATE, check_path, make_environment, render, write_report
from stoker.errors import OptionError

URL = re.compile(r"https?:|javascript:|data:(?!$)|//|url\(|@import", re.IGNORECASE)


def test_the_page_says_all_that_there_is() -> None:
    page = Markup(render(on_gpu(), title="train.py --epochs 1"))
    shown = " ".join(" ".join(page.texts).split())
    for told in (
        "data-bound",
        "without loading, a step takes 6.05 ms instead of 13.5 ms (2.23x)",
        "train.py --epochs 1",
        "confidence high, steps vary by 3.1 %",
        "Then launch-bound: 21 % of each step the GPU is idle: 218 kernels",
        "x and y are of different rows in 3 of 24 batches",
        "13.5 ms -> 6.05 ms",
        "tried 2.11x (2.02-2.20)",
        "losses changed by 4.2 %; at most 900.0 MB of memory; refuted: do not do it",
        "losses equal to 8e-07",
        "could not be tried: data-dependent jump (model.py:31)",
        "the loop with cached batches 6.05 ms",
        "rest log (train.py:57) 95 %",
        "torch.save to runs/best.pt went to /tmp/stoker-x1/best.pt",
    ):
        assert told in shown, told


@pytest.mark.promise("P21")
@pytest.mark.parametrize("name", ALL)
def test_the_page_is_self_contained_and_has_no_script(name: str) -> None:
    html = render(ALL[name](), title="train.py")
    page = Markup(html)
    assert page.foreign == []
    assert not [value for value in page.values if URL.search(value) and value != POLICY]
    style = html.split("<style>")[1].split("</style>")[0]
    assert not URL.search(style)
    assert (
        html.index("<meta charset")
        < html.index(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">')
        < html.index("<title>")
    )


@pytest.mark.promise("P21")
@pytest.mark.parametrize(("name", "every"), [("gpu", 5), ("cpu", 25), ("none", 25), pytest.param("gpu", 1, marks=pytest.mark.slow)])
def test_500_payloads_in_every_field_are_text(name: str, every: int) -> None:
    assert len(set(PAYLOADS)) == 500
    plain = Markup(render(with_texts(ALL[name](), "x"), title="x"))
    for payload in PAYLOADS[::every]:
        page = Markup(render(with_texts(ALL[name](), payload), title=payload))
        assert page.foreign == [], payload
        assert page.count == plain.count, payload
        assert printable(payload) in "".join(page.texts), payload


def test_every_text_of_a_finding_is_replaced_and_shown() -> None:
    """A control of the test above: no field is spared, and what a newcomer reads is in the page."""
    fixed = {"data", "launch", "high", "equal", "within tolerance", "changed", "not compared", "cuda"}
    assert {text for text in texts_of(with_texts(on_gpu(), "§")) if not text.startswith("§")} == fixed
    assert render(with_texts(on_gpu(), "§"), title="§").count("§") > 30


@pytest.mark.promise("P21", control=True)
def test_negative_control_without_escaping_payloads_are_markup() -> None:
    bare = make_environment().overlay(autoescape=False)
    some = PAYLOADS[::11]
    broken = [payload for payload in some if Markup(render(with_texts(on_gpu(), payload), title=payload, environment=bare)).foreign]
    assert len(broken) > 0.7 * len(some)


def test_no_value_is_spared_from_escaping() -> None:
    template = resources.files("stoker.diagnose").joinpath(TEMPLATE).read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe|autoescape|Markup|<script|style=|href|src=", template)


def test_the_report_is_a_file(tmp_path: Path) -> None:
    path = write_report(with_texts(on_gpu(), "ü\ud800"), tmp_path / "why.html", title="train.py")
    assert path.read_text(encoding="utf-8") == render(with_texts(on_gpu(), "ü\ud800"), title="train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["why.html"]


def test_a_path_that_is_invalid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"train\.py ends in '\.py'; expected a report that ends in '\.html'"):
        check_path(tmp_path / "train.py")
    with pytest.raises(OptionError, match=r"gone is not a folder, so the report why\.html cannot be written there"):
        write_report(on_gpu(), tmp_path / "gone" / "why.html", title="t")


@pytest.mark.promise("P17")
def test_the_page_and_the_terminal_have_the_same_numbers() -> None:
    """Of removals, predictions and trials, as the JSON form has them, too."""
    page = " ".join(" ".join(Markup(render(on_gpu(), title="t")).texts).split())
    numbers = re.compile(r"\d[\d.,]*(?: ms|x)")
    for line in text(on_gpu()).splitlines():
        for number in numbers.findall(line):
            assert number in page, (number, line)
    assert not set(numbers.findall(text(on_cpu()))) - set(numbers.findall(page)) <= set(), "negative control"
