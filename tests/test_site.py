"""The documentation site: its navigation is complete, its code runs, its generated parts are up to date, and it builds without warnings."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import cli_page, error_page, notebooks, pages, site
from tools.error_page import KNOWN

ROOT = Path(__file__).parent.parent
WITH_CODE = [document for document in pages.documents() if any(block.is_code for block in pages.blocks_of(document))]
START = ROOT / "docs" / "quickstart.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of tools in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.promise("P32")
@pytest.mark.parametrize("document", pages.documents(), ids=name_of)
def test_every_block_has_a_language_that_says_how_it_runs(document: Path) -> None:
    blocks = pages.blocks_of(document)
    assert [(block.line, block.language) for block in blocks if block.language not in pages.LANGUAGES | {"setup"}] == []
    assert document.read_text().count("```") == 2 * sum(block.language != "setup" for block in blocks) + _inline_fences(document)
    for block in blocks:
        assert block.runs  # its smaller numbers replace something that is there


def _inline_fences(document: Path) -> int:
    """Fences inside a line of text or code, which begin no block."""
    return sum(line.count("```") for line in document.read_text().splitlines() if not line.lstrip().startswith("```"))


@pytest.mark.promise("P32")
def test_every_block_of_code_runs() -> None:
    exceptions = [
        (block.page, block.line, block.exception) for one in WITH_CODE for block in pages.blocks_of(one) if block.exception
    ]
    elsewhere = [
        ("docs/recipes/tabular.md", "mostlyai", 1),
        ("docs/recipes/tabular_quality.md", "mostlyai", 2),
        ("docs/scale.md", "ray", 2),
    ]  # in `make test-originals` and `make test-scale`
    missing = [(page, name) for page, name, blocks in elsewhere if importlib.util.find_spec(name) is None for _ in range(blocks)]
    elsewhere_run = {"docs/extending.md": "tests/test_extend.py", "docs/comparing.md": "tests/cli/test_compare.py"}
    elsewhere_run["docs/howto/research_loops.md"] = "tests/compare/test_evaluation.py"
    assert all((ROOT / tests).exists() for tests in elsewhere_run.values())
    shown = [(page, reason) for page, _, reason in exceptions if page not in elsewhere_run]
    assert shown == [(page, f"{name} is not installed") for page, name in missing]
    counted = pages.counts()
    assert counted["run"] == counted["code_blocks"] - len(exceptions) >= 150


@pytest.mark.promise("P32")
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("document", [one for one in WITH_CODE if one not in notebooks.TUTORIALS], ids=name_of)
def test_the_blocks_of_a_page_run(document: Path) -> None:
    done = run("tools.pages", str(document))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("P32")
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("document", notebooks.TUTORIALS, ids=name_of)
def test_a_tutorial_runs_and_prints_what_it_shows(document: Path) -> None:
    done = run("tools.notebooks", "--check", str(document))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("P32")
@pytest.mark.slow
def test_the_start_page_leads_to_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands but those that take long: the installation, and the diagnosis of a script."""
    run_block = pages._run
    left_out = [block for block in pages.blocks_of(START) if "pip install" in block.text or "stoker diagnose" in block.text]
    assert [block.language for block in left_out] == ["sh", "sh"]
    monkeypatch.setattr(pages, "_run", lambda block, names: None if block in left_out else run_block(block, names))
    *_, _ = pages.run_page(START, tmp_path)
    assert (tmp_path / "runs" / "sensors" / "checkpoints" / "LATEST").exists()
    assert len((tmp_path / "forecast.csv").read_text().splitlines()) == 1 + 5 * 8


@pytest.mark.promise("P32", control=True)
def test_negative_control_a_block_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    for text, error in (
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```sh\ntrue\nfalse\ntrue\n```\n", RuntimeError),
        ("```sh\nstoker inspect nothing | cat\n```\n", RuntimeError),
        ("```yaml\na: [\n```\n", Exception),
        ("```json\n{\n```\n", ValueError),
        ("<!-- run with: 2 => 1 -->\n```python\n3\n```\n", ValueError),
        ("```ruby\n1\n```\n", RuntimeError),
    ):
        page.write_text(text)
        with pytest.raises(error):
            list(pages.run_page(page, tmp_path))
    page.write_text("<!-- not run: needs a cluster -->\n```python\n1 / 0\n```\n\n```text\n1 / 0\n```\n")
    assert list(pages.run_page(page, tmp_path)) == []
    assert [block.exception for block in pages.blocks_of(page) if block.is_code] == ["needs a cluster"]


def test_blocks_share_names_files_and_smaller_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    text = "<!-- setup\nx = 5\n-->\n\n```python\n# a.py\nprint(7)\n```\n\n<!-- run with: 100 => 2 -->\n```python\nx += 100\n```\n\n"
    page.write_text(text + "- a list\n\n  ```sh\n  python a.py\n  ```\n")
    *_, (block, names, printed) = pages.run_page(page, tmp_path)
    assert (block.language, names["x"], printed) == ("sh", 7, "7\n")


@pytest.mark.promise("P32")
def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for _, page in site.navigation()]
    assert sorted(listed) == sorted(set(listed))
    there = {str(site.staged_path(path)) for path in pages.documents() if path.name != "README.md"}
    assert set(listed) == there


def test_every_page_has_a_title_and_a_summary() -> None:
    without = [
        name_of(document)
        for document in pages.documents()
        if not all(site.title_and_summary(site.rewrite(document.read_text(), document)))
    ]
    assert without == []


def test_links_are_rewritten_where_files_move() -> None:
    page = ROOT / "docs" / "howto" / "append.md"
    text = "[a](../../DESIGN.md#the-tree) [b](../benchmarks.md) [c](../../benchmarks/results/docs.json) [d](https://example.org) [e](#x)"
    moved = "[a](../project/design.md#the-tree) [b](../benchmarks.md) [c](../results/docs.json) [d](https://example.org) [e](#x)"
    assert site.rewrite(text + "\n<!-- setup\nx\n-->\n\nend", page) == moved + "\nend"
    with pytest.raises(SystemExit, match="which is not part of the site"):
        site.rewrite("[a](../../packages/stoker/src/stoker/errors.py)", page)


@pytest.mark.promise("P32")
def test_the_api_pages_have_every_public_name() -> None:
    shown = [
        name for page in (ROOT / "docs" / "api").glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    assert len(shown) == len(set(shown))
    public = set((ROOT / "tests" / "data" / "public_names.txt").read_text().split())
    elsewhere = {
        "stoker.StokerError",
        "stoker.train.EarlyStopping",
        "stoker.train.Trainer",
    }  # under another name
    assert set(shown) == public - elsewhere


@pytest.mark.promise("P32")
def test_the_reference_is_up_to_date() -> None:
    assert cli_page.PAGE.read_text() == cli_page.page(), "run: make reference"
    assert error_page.PAGE.read_text() == error_page.page(), "run: make reference"


def test_the_index_of_errors_has_examples_of_nearly_all() -> None:
    bases = {"StokerError", "SourceError", "StoreError"}
    outside = {
        "SourceChangedError",
        "SourceTooLargeError",
        "StoreLockedError",
        "StorageError",
        "DiskError",
        "DiskFullError",
    }
    assert set(KNOWN) - set(error_page.EXAMPLES) == bases | outside


@pytest.mark.promise("P32")
@pytest.mark.parametrize("document", notebooks.TUTORIALS, ids=name_of)
def test_the_notebook_of_a_tutorial_is_up_to_date(document: Path) -> None:
    path = document.with_suffix(".ipynb")
    assert path.read_text() == notebooks.notebook(document), "run: python -m tools.notebooks"
    cells = json.loads(path.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == sum(block.is_code for block in pages.blocks_of(document))
    assert f"({path.name})" in document.read_text()


def test_outputs_are_compared_without_digits() -> None:
    assert notebooks.without_digits("took 1.5 s, 20 %  of 3") == notebooks.without_digits("took 900 ms, 1 % of 44")
    assert notebooks.without_digits("equal: True") != notebooks.without_digits("equal: False")


def test_the_result_file_says_that_nothing_is_wrong() -> None:
    found = json.loads(site.RESULT.read_text())
    assert (found["site"]["warnings"], found["site"]["broken_links"], found["site"]["outside_requests"]) == (0, 0, 0)
    assert found["blocks"] == pages.counts(), "run: make docs RECORD=1"


@pytest.mark.promise("P32")
@pytest.mark.slow
def test_the_site_builds_without_warnings_and_broken_links() -> None:
    pytest.importorskip("zensical", reason="make docs installs it")
    done = run("tools.site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 warnings, 0 broken links, 0 outside requests" in done.stdout
    for name in (
        "index.html",
        "llms.txt",
        "quickstart.md",
        "tutorials/forecast.ipynb",
        "search.js",
        "assets/javascripts/file_worker.js",
    ):
        assert (site.SITE / name).exists(), name


@pytest.mark.promise("P32", control=True)
def test_negative_control_broken_links_and_outside_requests_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "SITE", tmp_path)
    (tmp_path / "404.html").write_text("")
    (tmp_path / "a.html").write_text(
        "<h1 id='top'></h1><a href='b.html#x'></a><a href='#top'></a><a href='c.html'></a><a href='https://e.org'></a>"
    )
    (tmp_path / "b.html").write_text("<script src='https://e.org/x.js'></script><a href='a.html#none'></a><img src='a.png'>")
    (tmp_path / "b.css").write_text("@font-face { src: url(https://e.org/f.woff) }")
    found = site.check()
    assert found["broken_links"] == ["a.html: b.html#x", "a.html: c.html", "b.html: a.png", "b.html: a.html#none"]
    assert found["outside_requests"] == ["b.html: https://e.org/x.js", "b.css: https://e.org/f.woff"]
