"""The structure of the source: import layers, cycles, public names, tests that mirror modules, and class names.

The rules have exceptions, listed in tests/data/structure_exceptions.json. The lists may only shrink.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools import structure

ALLOWED = json.loads(structure.EXCEPTIONS.read_text())


@pytest.mark.parametrize("rule", structure.LISTS)
def test_exceptions_are_those_of_the_list(rule: str) -> None:
    today, allowed = set(structure.LISTS[rule]()), set(ALLOWED[rule])
    assert sorted(today - allowed) == [], f"new {rule}; fix them, or after a rename run: python -m tools.structure --accept"
    assert sorted(allowed - today) == [], "these are no longer needed; run: python -m tools.structure --write"


def test_every_package_has_a_layer() -> None:
    names = {name.split(".")[0] for name in structure.modules()} - {"__init__"}
    assert {name for name in names if structure.layer_of(name) is None} == set()


def test_public_names_are_those_of_the_list() -> None:
    assert structure.PUBLIC_NAMES.read_text().splitlines() == structure.public_names(), "run: python -m tools.structure --write"


MOST_NAMES, MOST_NAMES_FOR_EXTENSIONS = 110, 69


def test_the_names_of_the_core_are_few() -> None:
    names = [name for name in structure.public_names() if name.startswith("stoker.")]
    users = [name for name in names if not name.startswith(structure.FOR_EXTENSIONS)]
    assert len(users) <= MOST_NAMES
    assert len(names) - len(users) <= MOST_NAMES_FOR_EXTENSIONS


MOST_FILES = 57


def test_a_csv_row_becomes_a_checkpoint_in_few_files() -> None:
    files = structure.files_run()
    assert {"store/formats/csv.py", "store/store.py", "feed/feed.py", "train/fit.py", "train/checkpoint.py"} <= set(files)
    unused = [name for name in files if "remote" in name or "object_storage" in name or name.startswith("diagnose/")]
    assert unused == [], "code of features that the run does not use"
    assert len(files) <= MOST_FILES, "see them with: python -m tools.structure --trace"
    by_package: dict[str, list[str]] = {}
    for name in files:
        if "/" in name:
            by_package.setdefault(name.rpartition("/")[0], []).append(name.rpartition("/")[2])
    rows = re.findall(r"^\| `([\w/]+)/` \| ((?:`\w+\.py` ?)+)\|$", (structure.ROOT / "DESIGN.md").read_text(), re.MULTILINE)
    assert {package: re.findall(r"`(\w+\.py)`", names) for package, names in rows} == by_package, "the list of DESIGN.md"


GATE = """
class Hooks:
    def __init__(self) -> None:
        self.on_step = None

class Session:
    def __init__(self, hooks: Hooks | None) -> None:
        self.hooks = hooks
"""
TRAIN = """
class Run(Session):
    def start(self) -> None:
        self.hooks.on_step = print
        self.speed = 1

def attach(session: "Session") -> None:
    hooks = session.hooks
    setattr(hooks, "later", 2)
    with Hooks() as others:
        others.count += 1
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree of two packages, in which store imports train and two modules import each other."""
    files = {
        "src/store/__init__.py": "",
        "src/store/one.py": "import numpy\nfrom stoker.store import two\nclass Column: pass\n",
        "src/store/two.py": "def f():\n    from stoker.store.one import Column\n",
        "src/store/three.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stoker.train.step import Step\n",
        "src/train/__init__.py": "",
        "src/train/runs.py": 'RUNS = {"waves": "stoker_recipes.waves:open_run"}\n',
        "recipes/waves/__init__.py": "",
        "recipes/waves/README.md": "`model.py`",
        "recipes/waves/model.py": "import stoker_recipes\n",
        "recipes/waves/data.py": "",
        "src/train/step.py": "from stoker.store.one import Column as Other\nclass Column: pass\nclass _Private: pass\n",
        "tests/store/test_one_values.py": "",
        "tests/store/test_nothing.py": "",
        "tests/train/test_step.py": "",
        "tests/laws/test_any.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(structure, "SOURCE", tmp_path / "src")
    monkeypatch.setattr(structure, "RECIPES", tmp_path / "recipes")
    monkeypatch.setattr(structure, "TESTS", tmp_path / "tests")
    return tmp_path


def test_negative_control_broken_rules_are_found(tree: Path) -> None:
    assert structure.upward_imports() == ["store.three -> train.step"]
    assert structure.cycles() == ["store.one -> store.two", "store.two -> store.one"]
    assert structure.duplicate_classes() == ["Column in store.one", "Column in train.step"]
    assert structure.missing_in_readmes() == ["waves/data.py"]
    assert structure.recipes_in_the_core() == ["train.runs"]
    assert structure.tests_without_module() == ["store.test_nothing"]
    assert structure.modules_without_test() == [
        "store.three",
        "store.two",
        "train.runs",
        "recipes.waves.data",
        "recipes.waves.model",
    ]


def test_negative_control_imports_by_strings_and_of_private_names_are_found(tree: Path) -> None:
    text = 'LATER = "stoker.train.step:Column"\nfrom stoker.train.step import _Private\n'
    (tree / "src" / "store" / "three.py").write_text(text.splitlines()[0])
    assert structure.upward_imports() == ["store.three -> train.step"]
    assert structure.private_imports() == []
    (tree / "src" / "store" / "three.py").write_text(text)
    assert structure.private_imports() == ["store.three -> train.step._Private"]


def test_negative_control_attributes_that_are_set_from_outside_are_found(tree: Path) -> None:
    (tree / "src" / "gate").mkdir()
    (tree / "src" / "gate" / "count.py").write_text(GATE)
    (tree / "src" / "train" / "run.py").write_text(TRAIN)
    assert structure.set_from_outside() == ["train.run: Hooks.count", "train.run: Hooks.later", "train.run: Hooks.on_step"]
    (tree / "src" / "gate" / "run.py").write_text(TRAIN.replace("Run", "Same"))  # the package of the class may do so
    assert len(structure.set_from_outside()) == 3


def test_negative_control_errors_without_fields_are_found(tree: Path) -> None:
    text = 'raise OptionError(f"{name} is wrong.")\nraise OptionError("n is 0.", parameter="n")\nraise OptionError.expected("n", 0, "1")\n'
    (tree / "src" / "store" / "two.py").write_text(text)
    assert structure.errors_without_fields() == ["store.two: is wrong."]


def test_negative_control_branches_on_the_text_of_an_error_are_found(tree: Path) -> None:
    lines = ["try:", "    run()", "except OSError as error:", "    if {}:", "        raise", ""]
    for branch in ('"disk" in str(error)', 'error.args[0] == "full"', 'str(error).lower() != "x"', '"a" in error.message'):
        (tree / "src" / "store" / "two.py").write_text("\n".join(lines).format(branch))
        assert structure.branches_on_texts() == [f"store.two: {branch}".replace('"', "'")]
    (tree / "src" / "store" / "two.py").write_text("\n".join(lines).format("error.errno == 28 or error.path == str(path)"))
    assert structure.branches_on_texts() == []


def test_the_report_names_large_modules(tree: Path) -> None:
    (tree / "src" / "train" / "step.py").write_text("x = 1\n" * (structure.LARGE + 1))
    assert "train.step (701)" in structure.report()


def test_no_public_name_is_that_of_a_module() -> None:
    """The first import of the module would replace the function or class of the same name by it."""
    assert {f"stoker.{name}" for name in structure.modules()}.isdisjoint(structure.public_names())
    assert "stoker.tune.search_loop" in {f"stoker.{name}" for name in structure.modules()}  # names are compared in one form


def test_the_files_that_make_runs_are_there() -> None:
    """Some targets run for many minutes and are rarely run: a file that was moved must not be found missing there."""
    text = (structure.ROOT / "Makefile").read_text()
    named = re.findall(r"(?:tests|tools|examples|docs)/[\w/]+\.py", text)
    named += [f"{module.replace('.', '/')}.py" for module in re.findall(r"\b(?:tools|benchmarks)\.[a-z_]+", text)]
    assert len(named) > 10
    assert [name for name in named if not (structure.ROOT / name).exists()] == []
