"""The documents: links and named files exist, examples run, numbers and figures are up to date."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import page
from tools import adapters_page, pages, promises, structure

import stoker
import stoker.ray
from stoker.sampling.views import Lengths

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def named_tests(text: str) -> list[tuple[str, str]]:
    """The files of tests that a text names, each with one of its tests or none."""
    return re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)


def missing(document: Path, text: str) -> list[str]:
    """What a text links to or names, and is not there."""
    links = [link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) if not (document.parent / link).exists()]
    paths = [path for path in re.findall(r"`((?:benchmarks|src)/[\w/]+\.(?:json|py))`", text) if not (ROOT / path).exists()]
    tests = [
        f"{path}::{name}"
        for path, name in named_tests(text)
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    anchors = [
        f"{link}#{anchor}"
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text)
        if (target := document.parent / link if link else document).is_file() and anchor not in anchors_of(target)
    ]
    return [*links, *anchors, *paths, *tests]


def anchors_of(document: Path) -> set[str]:
    """The anchors of the headings of a document, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def test_every_promise_has_tests_and_controls_and_the_page_is_current() -> None:
    tests = promises.collect()
    assert promises.mistakes(tests) == []
    assert promises.PAGE.read_text() == promises.page(tests), "run: make reference"


MARKED = """
slow = pytest.mark.slow

@pytest.mark.promise("P1")
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=slow)])
def test_a(size): ...

@slow
@pytest.mark.promise("P2", control=True)
@pytest.mark.promise("P0")
def test_b(): ...
"""


def test_negative_control_wrong_and_missing_markers_are_reported() -> None:
    path = ROOT / "tests" / "test_marked.py"
    tests = promises.parse(MARKED, path)
    assert [(test.promise, test.control, test.name, test.suite) for test in tests] == [
        ("P1", False, "test_a", "partly slow"),
        ("P2", True, "test_b", "slow"),
        ("P0", False, "test_b", "slow"),
    ]
    wrong = promises.mistakes(tests)
    assert {"tests/test_marked.py::test_b: no promise P0", "P2: no test", "P1: no control"} < set(wrong)
    assert "P1: no test" not in wrong
    whole = 'pytestmark = pytest.mark.promise("P3")\n' + MARKED + "def test_negative_control_c(): ..."
    assert [(test.control, test.name) for test in promises.parse(whole, path) if test.promise == "P3"] == [
        (False, "test_a"),
        (False, "test_b"),
        (True, "test_negative_control_c"),
    ]
    with pytest.raises(ValueError, match="1 of 4 promise markers"):
        promises.parse(MARKED + 'kept = pytest.mark.promise("P1")', path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_what_is_named_exist(document: Path) -> None:
    assert missing(document, document.read_text()) == []


def unnamed_modules(design: str) -> list[str]:
    """Modules of the core that the section of their package does not name, and files that it names and the package lacks."""
    sections = re.split(r"^### ", design.partition("## Packages")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]
    wrong = []
    for section in sections:
        title, _, rows = section.partition("\n")
        packages = re.findall(r"\w+", title.replace(" and ", " "))
        named = set(re.findall(r"(\w+\.py)`", rows))
        here = {
            f"{name.rpartition('.')[2]}.py"
            for name, path in structure.modules().items()
            if path.name not in ("__init__.py", "__main__.py")
            and (name.split(".")[0] in packages or (packages == ["Base"] and re.match(r"_|errors$", name)))
        }
        wrong += [f"{title}: {name}" for name in sorted(here ^ named)]
    titles = " ".join(section.partition("\n")[0] for section in sections)
    packages = {name.split(".")[0] for name in structure.modules() if "." in name and not name.startswith("recipes.")}
    return wrong + sorted(name for name in packages if not re.search(rf"\b{name}\b", titles))


def test_the_design_names_every_module() -> None:
    design = (ROOT / "DESIGN.md").read_text()
    assert unnamed_modules(design) == []
    assert (
        unnamed_modules(design.replace("`permutation.py`", "").replace("### train", "### trains"))[0]
        == "sampling and split: permutation.py"
    )
    assert "train" in unnamed_modules(design.replace("### train", "### trains"))


def test_files_that_figures_name_exist() -> None:
    for name in ("batch_path", "verdict_path"):
        words = re.findall(r">((?:\w+/)[\w/. ]*)</text>", (ROOT / "docs" / "images" / f"{name}.svg").read_text())
        assert len(words) >= 7
        for line in words:
            folder = structure.SOURCE / line.partition("/")[0]
            paths = [folder / file.removeprefix(f"{folder.name}/") for file in line.split()]
            assert all(path.exists() or (structure.SOURCE / path.name).exists() for path in paths), line


def test_negative_control_what_is_not_there_is_found() -> None:
    text = "[a](nowhere.md) [b](encoding/digits.md#cost) [c](format.md#no-such) `benchmarks/nothing.py` "
    text += "`packages/stoker/src/stoker/_clock.py` `tests/test_docs.py::test_links_and_what_is_named_exist` "
    text += "`tests/test_docs.py::test_of_tomorrow` `tests/none.py`"
    found = missing(ROOT / "docs" / "promises.md", text)
    assert found == [
        "nowhere.md",
        "format.md#no-such",
        "benchmarks/nothing.py",
        "tests/test_docs.py::test_of_tomorrow",
        "tests/none.py::",
    ]


def run_examples(document: str) -> Iterator[dict[str, Any]]:
    """Run the examples of a document one after the other, as a reader would; yields the names after each."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL):
        exec(compile(block, document, "exec"), names)
        yield names


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [names] = run_examples("README.md")
    assert names["result"].stopped == "finished"


def test_the_readme_is_short_and_has_what_a_newcomer_needs() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    for wanted in ("pip install", "docs/images/diagnose.svg", "stoker.Feed(", "stoker.Trainer(", "docs/benchmarks.md"):
        assert wanted in text, wanted


def test_the_numbers_are_those_of_the_result_files() -> None:
    assert page.PAGE.read_text() == page.page(), "run: make reference"
    assert page.README.read_text() == page.readme(page.README.read_text()), "run: make reference"


@pytest.mark.parametrize("document", adapters_page.PAGES, ids=lambda path: path.stem)
def test_the_numbers_about_adapters_are_those_of_the_result_file(document: Path) -> None:
    assert document.read_text() == adapters_page.written(document), "run: make reference"


def test_the_arguments_of_a_docstring_have_a_line_each() -> None:
    """mkdocs-material, the other builder of the site, warns of an entry for several arguments."""
    joined = re.compile(r"^ +[a-z_]+(, [a-z_]+)+: [A-Z]", re.MULTILINE)
    assert joined.search("    Args:\n        time, sort: As for `stoker.pack`.\n")
    for path in sorted((ROOT / "packages").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                section = (ast.get_docstring(node) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
                assert not joined.search(section), f"{path}:{node.lineno}"


def test_every_result_file_is_used_or_listed() -> None:
    used = {row.file for rows in page.TABLES.values() for row in rows}
    detailed = {
        "bench_adapters",
        "bench_compat",
        "bench_cluster_pack_ray",
        "bench_hooks",
        "bench_ordered_sums",
        "bench_packing",
        "bench_public",
        "bench_receipts",
        "bench_receipts_busy",
        "bench_remote",
        "bench_restructure",
        "bench_tabular",
        "bench_tabular_quality",
        "bench_time_moe_curve",
        "bench_timehut",
        "bench_timehut_usual",
        "docs",
        "gpu_timehut_lengths",
    }  # in other documents
    assert used | detailed == {path.stem for path in page.RESULTS.glob("*.json")}


def test_negative_control_another_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert page.short(1234.5) == "1,230"
    assert page.percent(0.0269) == "2.7 %"
    monkeypatch.setattr(page, "percent", lambda share, digits=2: "0 %")
    assert page.PAGE.read_text() != page.page()


def test_the_table_of_short_series_is_true() -> None:
    text = (ROOT / "docs" / "feeding.md").read_text()
    [head, *rows] = re.search(r"^\| steps of the series (\|.*?)\n\n", text, re.DOTALL | re.MULTILINE)[1].splitlines()  # type: ignore[index]
    lengths = [int(word) for word in head.split("|")[1:-1]]
    views = {
        "`Windows(8, stride=8)`": stoker.Windows(8, stride=8),
        'the same with `tail="drop"`': stoker.Windows(8, stride=8, tail="drop"),
        "`Windows(8, stride=8, horizon=3)`": stoker.Windows(8, stride=8, horizon=3),
        "`Segments(8, shift=1)`": stoker.Segments(8, shift=1),
    }
    told = {name.strip(): [word.strip() for word in words] for _, name, *words, _ in (row.split("|") for row in rows[1:])}
    assert told == {name: [samples_of(view, length) for length in lengths] for name, view in views.items()}


def samples_of(view: Any, length: int) -> str:
    samples = view.over(Lengths(num_series=1, num_steps=length, offsets=np.array([0, length])))
    return ", ".join(map(str, samples.locate(np.arange(samples.num_samples)).counts)) or "-"


def test_the_figures_are_up_to_date(tmp_path: Path) -> None:
    folder = ROOT / "docs" / "images"
    runpy.run_path(str(folder / "draw.py"))["main"](tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    recorded = {"diagnose.svg", "receipt.svg"}  # a real run, recorded by tools/record_diagnosis.py
    assert {path.name: path.read_text() for path in folder.glob("*.svg") if path.name not in recorded} == drawn


def test_the_recorded_diagnosis_loads_nothing_from_the_network() -> None:
    image = (ROOT / "docs" / "images" / "diagnose.svg").read_text().replace("http://www.w3.org/2000/svg", "")
    assert "http" not in image
    assert "VERDICT" in image


INDEX = re.compile(r"pip install (?:-\w+ )*['\"]?stoker\b")
"""An installation from a package index, where the name is not ours."""


def test_nothing_is_installed_from_a_package_index() -> None:
    texts = [*DOCUMENTS, *(ROOT / "packages").rglob("*.py"), *(ROOT / "docs").rglob("*.ipynb")]
    named = [str(path.relative_to(ROOT)) for path in texts if path.name != "CHANGELOG.md" and INDEX.search(path.read_text())]
    assert named == []


def test_negative_control_such_an_installation_is_recognised() -> None:
    assert INDEX.search("pip install 'stoker[tune]'")
    assert INDEX.search("run `pip install stoker`")
    assert not INDEX.search("pip install './packages/stoker[tune]'")


def lacks_import(snippet: str) -> bool:
    """Whether a snippet uses Ray Train before it imports it."""
    use = re.search(r"(?<![\w.])ray\.train\.\w", snippet)
    return use is not None and re.search(r"^[ .>]*import ray\.train$", snippet[: use.start()], re.MULTILINE) is None


def test_what_is_shown_of_ray_imports_ray_train() -> None:
    """`import ray` alone does not import it. Without Ray, no test runs these snippets."""
    blocks = [block.text for page in pages.documents() for block in pages.blocks_of(page) if "ray.train" in block.text]
    examples = [(stoker.ray.fit.__doc__ or "").partition("Example:")[2], stoker.ray.__doc__ or ""]
    assert len(blocks) >= 1
    assert all("ray.train." in snippet for snippet in (*blocks, *examples))
    assert not any(map(lacks_import, (*blocks, *examples)))
    assert all(lacks_import(snippet.replace("import ray.train\n", "import ray\n")) for snippet in (*blocks, *examples)), "control"


SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Changed: public names")


def torn(changelog: str) -> list[str]:
    """Return the lines of a change log that break its form: one section of each kind per version, whole entries without gaps."""
    lines, faults = changelog.split("\n"), []
    sections: set[str] = set()
    for number, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True), 1):
        is_entry = line.startswith(("- ", "  "))
        if line.startswith("## "):
            sections = set()
        elif line.startswith("### "):
            faults += [f"{number}: {line}"] if line[4:] in sections or line[4:] not in SECTIONS else []
            sections.add(line[4:])
        elif is_entry and not following.startswith("  ") and not line.endswith("."):
            faults.append(f"{number}: ends without a period")
        elif (is_entry and not line.strip()) or line.startswith(("* ", "\t")):
            faults.append(f"{number}: {line}")
        if not line and following.startswith(("- ", "  ")) and number > 1 and not lines[number - 2].startswith(("#", "|", "The")):
            faults.append(f"{number}: a blank line before an entry")
    return faults


def test_the_change_log_has_whole_entries_in_one_section_of_each_kind() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in text
    assert torn(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("## 1\n\n### Added\n\n- a.\n\n- b.", "6: a blank line before an entry"),
        ("## 1\n\n### Added\n\n- a\n- b.", "5: ends without a period"),
        ("## 1\n\n### Added\n\n- a.\n\n### Added\n\n- b.", "7: ### Added"),
        ("## 1\n\n### News\n\n- a.", "3: ### News"),
        ("## 1\n\n### Added\n\n- a,\n\n  b.", "5: ends without a period"),
    ],
)
def test_negative_control_a_torn_entry_is_found(text: str, fault: str) -> None:
    assert torn(text)[0] == fault


def test_the_common_forecast_of_the_first_page_is_short() -> None:
    """300 series with covariates, scale, early stopping, a forecast, plots, a backtest: 12 lines and 4 commands, or 12 lines of Python."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    config = re.search(r"```yaml\n# sales.yaml\n(.*?)```\n(.*?)```sh\n(.*?)```(.*?)```python\n(.*?)```", page, re.DOTALL)
    assert config is not None
    assert len(config[1].splitlines()) <= 12
    commands = [line.split()[1] for line in config[3].splitlines() if line.startswith("stoker ")]
    assert commands == ["pack", "train", "predict", "predict"]
    assert "experiment.run(" in config[5]
    assert len([line for line in config[5].splitlines() if line]) <= 12
    for part in ("scale", "known", "early_stopping", ".predict(", ".plot(", ".backtest("):
        assert part in config[5]
    for part in ("scale: ", "known: ", "early_stopping: "):
        assert part in config[1]
    assert "--plot" in config[3]
