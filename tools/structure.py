"""What the source tree looks like, read with `ast`: imports, cycles, public names, class names, and the tests of each module.

    python -m tools.structure             prints a report (part of `make lint`; nothing fails)
    python -m tools.structure --write     writes tests/data/public_names.txt, and drops exceptions that are no longer needed
    python -m tools.structure --accept    the same, and accepts all exceptions of today (after modules were renamed or moved)
    python -m tools.structure --trace     lists the files whose functions run when a CSV file becomes a checkpoint, in order

tests/test_structure.py compares the source with the two files in tests/data.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
import threading
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType

from tools import attributes

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "packages" / "stoker" / "src" / "stoker"
RECIPES = ROOT / "packages" / "stoker-recipes" / "src" / "stoker_recipes"
TESTS = ROOT / "tests"
PUBLIC_NAMES = TESTS / "data" / "public_names.txt"
EXCEPTIONS = TESTS / "data" / "structure_exceptions.json"
LARGE = 700

LAYERS = (
    {"errors", "_lazy"},
    {"_types"},
    {"_text", "_device", "_clock", "_batch", "_signals"},
    {"_disk", "_progress"},
    {"_cache_files"},
    {"_kernels", "watch"},
    {"extend"},
    {"store", "sampling"},
    {"feed"},
    {"split", "audit", "train", "testing", "integrations"},
    {"experiment", "live"},
    {"sandbox"},
    {"compare"},
    {"diagnose", "ray"},
    {"gate", "tune", "notebook"},
    {"cli"},
    {"recipes"},
    {"__main__"},
)
"""Packages and top-level modules, lowest first. A module may import from its own package and from lower layers."""

PUBLIC_PACKAGES = tuple(
    "|diagnose|experiment|extend|feed|gate|ray|split|store|testing|train|tune"
    "|recipes.tabular|recipes.tfa|recipes.time_moe|recipes.timehut".split("|")
)
FOR_EXTENSIONS = ("stoker.extend.", "stoker.store.")
"""Names for formats and recipes of other packages (docs/extending.md); a training script needs none of them."""
UNTESTED = {"__init__", "__main__"}
OF_THE_PROJECT = {
    "test_docs",
    "test_security",
    "test_examples",
    "test_import",
    "test_public_imports",
    "test_language",
    "test_site",
    "test_structure",
    "test_distribution",
}


def modules() -> dict[str, Path]:
    """Every module by its dotted name below `stoker`; those of the recipes by their name below `recipes`."""
    core = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}
    of_recipes = {
        ".".join(["recipes", *path.relative_to(RECIPES).with_suffix("").parts]): path for path in sorted(RECIPES.rglob("*.py"))
    }
    return core | of_recipes


_LOADED = re.compile(r"stoker(?:_recipes)?(?:\.\w+)+(?::\w+)?")


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source text."""
    return ast.parse(source)


@cache
def imported_names(source: str) -> tuple[str, ...]:
    """What a module imports: at its top, within functions, for type checkers only, and by a string that names a module."""
    names: list[str] = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _LOADED.fullmatch(node.value):
            names.append(f"{node.value.replace(':', '.')}{'' if ':' in node.value else '.'}")
    return tuple(names)


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of stoker and of the recipes that a file imports."""
    names = [re.sub(r"^stoker_recipes\b", "stoker.recipes", name) for name in imported_names(path.read_text())]
    parts = [name.split(".")[1:] for name in names if name.startswith("stoker.")]
    return {name for words in parts for end in range(len(words)) if (name := ".".join(words[: end + 1])) in known}


def import_graph() -> dict[str, set[str]]:
    """For each module the modules it imports; packages' own `__init__` only list names, and are left out."""
    known = {name: path for name, path in modules().items() if path.name != "__init__.py"}
    return {name: imports(path, known) - {name} for name, path in known.items()}


def files_run() -> list[str]:
    """The files of stoker that run from a CSV file to a checkpoint (pack, feed, two epochs on the CPU), by their first call."""
    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.setdefault(frame.f_code.co_filename)

    _train_once()  # what runs on import does not count
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        _train_once()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [str(Path(name).relative_to(SOURCE)) for name in seen if name.startswith(str(SOURCE))]


def _train_once() -> None:
    import torch

    import stoker

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [f"{key},{step},{step % 7}.5" for key in "ab" for step in range(100)]
        (folder / "rows.csv").write_text("\n".join(["key,time,value", *rows]) + "\n")
        store = stoker.pack(folder / "rows.csv", folder / "rows.stoker", series="key", time="time")
        view = stoker.Windows(8, horizon=1)
        feed = stoker.Feed(store, view, columns=["value"], dtype="float32", batch_size=8, order=stoker.Shuffle(seed=0))
        model = torch.nn.Linear(8, 1)
        loss = stoker.train.supervised(torch.nn.MSELoss(), x="value", y="value_target")
        trainer = stoker.Trainer(model, loss, torch.optim.AdamW(model.parameters()), folder=folder / "run", progress=False)
        trainer.fit(feed, epochs=2)


def layer_of(module: str) -> int | None:
    """The layer of a module, or None where its package is in none."""
    return next((number for number, names in enumerate(LAYERS) if module.split(".")[0] in names), None)


def upward_imports() -> list[str]:
    """Imports of a package in the same or a higher layer."""
    return sorted(
        f"{module} -> {target}"
        for module, targets in import_graph().items()
        for target in targets
        if module.split(".")[0] != target.split(".")[0] and (layer_of(module) or 0) <= (layer_of(target) or 0)
    )


def cycles() -> list[str]:
    """The imports that are part of a cycle, directly or through other modules."""
    graph = import_graph()
    group_of = {module: group for group in cycle_groups(graph) for module in group}
    return sorted(
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets
        if module in group_of and target in group_of[module]
    )


def cycle_groups(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, directly or not (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                groups.append(set(group))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return groups


def public_names() -> list[str]:
    """The names that users may import, as "stoker.train.Trainer"."""
    found = []
    for package in PUBLIC_PACKAGES:
        name = re.sub(r"^stoker\.recipes\b", "stoker_recipes", f"stoker.{package}".rstrip("."))
        module = import_module(name)
        listed = getattr(module, "__all__", None)
        if listed is None:
            listed = [one for one, value in vars(module).items() if getattr(value, "__module__", None) == name and one[0] != "_"]
        found += [f"{name}.{one}" for one in listed]
    return sorted(found)


def duplicate_classes() -> list[str]:
    """Classes without an underscore whose name several modules define."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in modules().items():
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            places[name].append(module)
    return sorted(f"{name} in {module}" for name, found in places.items() if len(found) > 1 for module in found)


def test_files() -> list[str]:
    """The tests of packages, as "store.pack.test_plan"; tests of the root modules have no package."""
    packages = {"", *(name.rpartition(".")[0] for name in modules() if name.endswith(".__init__"))}
    names = (".".join(path.relative_to(TESTS).with_suffix("").parts) for path in sorted(TESTS.rglob("test_*.py")))
    return [name for name in names if name.rpartition(".")[0] in packages]


def tested_module(test: str, known: dict[str, Path]) -> str | None:
    """The module that a test file is named after: the longest module name that its own name begins with."""
    package, _, name = test.rpartition(".")
    words = name.removeprefix("test_").split("_")
    for end in range(len(words), 0, -1):
        for module in ("_".join(words[:end]), "_" + "_".join(words[:end])):
            if (found := f"{package}.{module}".lstrip(".")) in known:
                return found
    return None


def tests_without_module() -> list[str]:
    """Test files that are not named after a module of the package they mirror."""
    known = modules()
    return [test for test in test_files() if test not in OF_THE_PROJECT and tested_module(test, known) is None]


def modules_without_test() -> list[str]:
    """Modules that no test file is named after."""
    known = modules()
    tested = {tested_module(test, known) for test in test_files()}
    return [name for name in known if name not in tested and name.split(".")[-1] not in UNTESTED]


def recipes_in_the_core() -> list[str]:
    """Modules of stoker that import a recipe or name its module: recipes register by entry points (`stoker.extend`)."""
    core = {name: path for name, path in modules().items() if not name.startswith("recipes.")}
    return [name for name, path in core.items() if re.search(r"(import|from|[\"']) ?stoker_recipes\b", path.read_text())]


def private_imports() -> list[str]:
    """Private names that a module imports from another one, and private modules that another package imports."""
    found = []
    for module, path in modules().items():
        for name in imported_names(path.read_text()):
            words = name.replace("stoker_recipes", "stoker.recipes").split(".")[1:]
            private = next((number for number, word in enumerate(words) if re.match(r"_[a-z]|_[A-Z]", word)), None)
            if name.startswith("stoker") and private and module.split(".")[:private] != words[:private]:
                found.append(f"{module} -> {'.'.join(words)}")
    return sorted(found)


def set_from_outside() -> list[str]:
    """Attributes of an object that another package than that of its class sets."""
    return attributes.set_from_outside({name: parsed(path.read_text()) for name, path in modules().items()})


def errors_without_fields() -> list[str]:
    """Option errors that name neither an argument (`parameter`) nor the file or column they are about."""
    found = []
    for module, path in modules().items():
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OptionError":
                names = {keyword.arg for keyword in node.keywords}
                if not names & {"parameter", "path", "column", None}:
                    text = "".join(str(leaf.value) for leaf in ast.walk(node) if isinstance(leaf, ast.Constant))
                    found.append(f"{module}: {text[:50].strip()}")
    return sorted(found)


def branches_on_texts() -> list[str]:
    """Comparisons with the text of an error that was caught: what decides is its class and its fields."""
    found = []
    for module, path in modules().items():
        for handler in (node for node in ast.walk(parsed(path.read_text())) if isinstance(node, ast.ExceptHandler) and node.name):
            for node in ast.walk(handler):
                if isinstance(node, ast.Compare) and any(_is_text(leaf, handler.name) for leaf in (node.left, *node.comparators)):
                    found.append(f"{module}: {ast.unparse(node)[:60]}")
    return sorted(found)


def _is_text(node: ast.expr, error: str | None) -> bool:
    """Whether this is `str(error)`, `error.message`, an entry of `error.args`, or a method of one."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    if isinstance(node, ast.Subscript):
        node = node.value
    of = (
        node.args[0] if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr") else None
    )
    of = node.value if isinstance(node, ast.Attribute) and node.attr in ("args", "message") else of
    return isinstance(of, ast.Name) and of.id == error


def missing_in_readmes() -> list[str]:
    """Modules of recipes that the README.md of their recipe does not name: it lists the files in the order of reading."""
    found = []
    for folder in sorted(path.parent for path in RECIPES.glob("*/__init__.py")):
        readme = folder / "README.md"
        text = readme.read_text() if readme.is_file() else ""
        top = [path for path in sorted(folder.iterdir()) if path.suffix == ".py" or (path / "__init__.py").is_file()]
        names = [path.name + "/" * path.is_dir() for path in top if path.name != "__init__.py"]
        found += [f"{folder.name}/{name}" for name in names if f"`{name}`" not in text]
    return found


LISTS = {
    "upward imports": upward_imports,
    "recipes in the core": recipes_in_the_core,
    "modules that READMEs lack": missing_in_readmes,
    "import cycles": cycles,
    "private names imported from outside": private_imports,
    "attributes set from outside": set_from_outside,
    "option errors without a field": errors_without_fields,
    "branches on the text of an error": branches_on_texts,
    "classes with the same name": duplicate_classes,
    "tests without a module": tests_without_module,
    "modules without a test": modules_without_test,
}


def report() -> str:
    """Sizes of the tree, and how many exceptions each rule has."""
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    large = sorted((f"{name} ({count:,})" for name, count in lines.items() if count > LARGE), reverse=True)
    return "\n".join(
        [
            f"Structure: {len(lines)} modules, {sum(lines.values()):,} lines.",
            f"  modules over {LARGE} lines: {', '.join(large) or 'none'}",
            *(f"  {title}: {len(function())}" for title, function in LISTS.items()),
        ]
    )


def write(*, accept: bool) -> None:
    """Write the lists that the tests compare with."""
    PUBLIC_NAMES.write_text("\n".join(public_names()) + "\n")
    allowed = json.loads(EXCEPTIONS.read_text())
    kept = {title: [one for one in function() if accept or one in allowed[title]] for title, function in LISTS.items()}
    EXCEPTIONS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    if "--trace" in sys.argv[1:]:
        files = files_run()
        if not files:
            sys.exit(f"another stoker was imported than that of {SOURCE}. Run it with the PYTHONPATH of this tree.")
        print("\n".join([*files, f"{len(files)} files of {len(modules())}"]))
        sys.exit()
    if {"--write", "--accept"} & set(sys.argv[1:]):
        write(accept="--accept" in sys.argv[1:])
    print(report())
