"""The page: names are text, it holds no script and asks for nothing, and Chromium shows it without scrolling sideways."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.recipes.tabular.tables import shop

from stoker.errors import OptionError
from stoker.recipes.tabular import QualityReport, make_rules, quality

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
EVIL = '"><script>ran=1</script><img src=x onerror=ran=1>'


@pytest.fixture(scope="module")
def report() -> QualityReport:
    renamed = [shop(60, seed).rename(columns={"state": EVIL}).replace({EVIL: {"view": EVIL}}) for seed in range(3)]
    return quality(renamed[0], renamed[1], key="user_id", holdout=renamed[2], max_rows=60)


def test_names_and_values_are_text(report: QualityReport) -> None:
    page = report.to_html(title=EVIL)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(https?:)?//\w", page)
    assert "default-src 'none'" in page
    assert page == report.to_html(title=EVIL)
    assert len(page) < 1_000_000


def test_the_page_shows_every_measure_with_its_verdict(report: QualityReport) -> None:
    page = report.to_html()
    assert page.count('class="tag ') == len(report.measures) + sum(
        len(one.outliers) for one in report.measures if len(one.columns) > 1
    )
    for heading in ("Time and memory", "Transitions", "Distributions", "Pairs of columns", "Distance to the closest record"):
        assert f"<h2>{heading}</h2>" in page


def test_a_flat_table_has_no_figures_of_sequences() -> None:
    page = quality(make_rules(60, seed=0), make_rules(60, seed=1), max_rows=60).to_html()
    assert "<h2>Transitions</h2>" not in page
    assert "from real records to other real ones" in page


def test_a_path_is_checked_and_written(report: QualityReport, tmp_path: Path) -> None:
    path = tmp_path / "quality.html"
    assert report.to_html(path) == path.read_text()
    with pytest.raises(OptionError, match="expected a report that ends in"):
        report.to_html(tmp_path / "quality.pdf")
    with pytest.raises(OptionError, match="there is no folder"):
        report.to_html(tmp_path / "no" / "quality.html")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (the Debian package `chromium`)")
def test_chromium_shows_it(report: QualityReport, tmp_path: Path) -> None:
    report.to_html(tmp_path / "quality.html")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{tmp_path}/quality.html"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert shown.count("<svg") > 20
    assert "<script" not in shown
