"""Laws that the source keeps as a whole: importing is cheap, data never becomes code, and one file writes to the disk."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import stoker
import stoker_recipes

SOURCE, RECIPES = Path(stoker.__file__).parent, Path(stoker_recipes.__file__).parent
HEAVY = {"torch", "pyarrow", "polars", "pandas", "numba"}
PRINT_MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"
RUN_HELP = """
import runpy, sys
sys.argv = ["stoker", "--help"]
try:
    runpy.run_module("stoker", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.fixture
def heavy_after(run_python: Callable[..., str]) -> Callable[[str], set[str]]:
    """The heavy modules that a fresh interpreter has loaded once it has run some code."""

    def run(code: str) -> set[str]:
        return HEAVY & set(json.loads(run_python(f"{code}\n{PRINT_MODULES}").splitlines()[-1]))

    return run


@pytest.mark.parametrize("code", ["import stoker", RUN_HELP], ids=["import", "help"])
def test_nothing_heavy_is_imported_before_use(heavy_after: Callable[[str], set[str]], code: str) -> None:
    assert heavy_after(code) == set()


def test_a_heavy_import_would_be_seen(heavy_after: Callable[[str], set[str]]) -> None:
    assert "pyarrow" in heavy_after("import stoker; stoker.pack")


@pytest.mark.parametrize("name", stoker.__all__)
def test_public_name_resolves(name: str) -> None:
    assert callable(getattr(stoker, name))


Finding = tuple[int, str]

CODE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CODE_BUILTINS = {"eval", "exec", "compile", "__import__"}
CODE_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
CODE_METHODS = {"read_pickle", "register_extension_type"}
CODE_NAMES = {"numba.core.serialize"}
"""Numba's own names for pickle."""


def code_from_data(nodes: Iterable[ast.AST]) -> Iterator[Finding]:
    """Everything that could turn bytes of a file into running code."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in imported(node):
                if module.split(".")[0] in CODE_MODULES or module in CODE_NAMES:
                    yield node.lineno, f"import {module}"
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            if name == "torch.load" and any(
                keyword.arg == "weights_only" and ast.unparse(keyword.value) == "True" for keyword in node.keywords
            ):
                continue  # reads tensors alone
            if name in CODE_BUILTINS | CODE_CALLS or name.split(".")[-1] in CODE_METHODS:
                yield node.lineno, name
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield node.value.lineno, "allow_pickle"


WRITING_OS = re.compile(
    r"os\.(p?writev?|f?truncate|posix_fallocate|f?chmod|f?sync|fdatasync|rename|renames|replace|unlink|remove|removedirs|mkdir|makedirs"
    r"|rmdir|link|symlink|mkfifo|mknod|sendfile|copy_file_range)|shutil\.(rmtree|move|copy\w*)|tempfile\.\w+|np\.save"
)
WRITING_METHODS = re.compile(
    r"write_(text|bytes|table|csv|parquet|ipc|feather|ndjson|dataset)|sink_\w+|savez(_compressed)?|savetxt|tofile|touch|unlink|mkdir|rmdir"
    r"|symlink_to|hardlink_to|chmod|open_memmap"
)
OPENING = {"open", "fdopen", "OSFile", "memory_map", "memmap", "GzipFile", "BZ2File", "LZMAFile", "ZipFile"}
MODE = re.compile(r"[rwaxbt+]{1,3}")
WRITING_FLAGS = re.compile(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)")


def writes(nodes: Iterable[ast.AST]) -> Iterator[Finding]:
    """Every call that changes the disk, except through `disk`, which is the writer's own."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name) for name in imported(node) if WRITING_OS.fullmatch(name))
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            owner, _, method = name.rpartition(".")
            if owner.split(".")[-1] == "disk" or ast.unparse(node).startswith("os.write(2, "):  # 2 is the terminal
                continue
            writing = WRITING_OS.fullmatch(name) or (owner and WRITING_METHODS.fullmatch(method))
            if writing or renames_a_path(node, method) or opens_for_writing(node, method):
                yield node.lineno, name


def renames_a_path(call: ast.Call, method: str) -> bool:
    """Texts, records and tables have methods of these names too, but not with one plain argument."""
    return method in ("replace", "rename") and len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Dict)


def opens_for_writing(call: ast.Call, method: str) -> bool:
    if method not in OPENING:
        return False
    if WRITING_FLAGS.search(ast.unparse(call)):
        return True
    given = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    modes = [text for text in texts if MODE.fullmatch(text)]
    if method == "memmap":
        return modes not in (["r"], ["c"])  # NumPy maps for writing when nothing is said
    return any(set(mode) & set("wax+") for mode in modes)


def dotted(node: ast.expr) -> str:
    """What `ast.unparse` says, in a tenth of its time where it is a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The dotted names that an import statement brings in."""
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [prefix + alias.name for alias in node.names]


def findings(law: Callable[[Iterable[ast.AST]], Iterator[Finding]], *, spare: set[str]) -> list[str]:
    files = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
    files |= {f"recipes/{path.relative_to(RECIPES)}": path for path in sorted(RECIPES.rglob("*.py"))}
    assert len(files) > 10, "the source was not found"
    read = {name: path for name, path in files.items() if name not in spare}
    return [f"{name}:{line}: {what}" for name, path in read.items() for line, what in law(nodes_of(path))]


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Imports, calls and keywords of a file: what laws ask for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call | ast.keyword)]


@pytest.mark.promise("P6")
def test_data_never_becomes_code() -> None:
    """The one pickle is the cache of compiled kernels, which is code and not data: tests/test_kernels_kernel.py."""
    (cache,) = findings(code_from_data, spare=set())
    assert re.fullmatch(r"_kernels\.py:\d+: import numba\.core\.serialize", cache)


@pytest.mark.promise("P6")
def test_disk_is_written_in_one_file() -> None:
    """The files of a sandbox are not kept: `sandbox/files.py` does with them what a program of the user asks for."""
    assert findings(writes, spare={"_disk.py", "sandbox/files.py"}) == []


def test_the_writer_itself_would_be_found() -> None:
    assert any("os.replace" in line for line in findings(writes, spare=set()))


@pytest.mark.promise("P6", control=True)
@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from numba.core import serialize",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=flag)",
        "yaml.load(text)",
        "np.load(path, allow_pickle=True)",
        "pd.read_pickle(path)",
    ],
)
def test_code_from_data_is_found(code: str) -> None:
    assert list(code_from_data(ast.walk(ast.parse(code))))


@pytest.mark.promise("P6", control=True)
@pytest.mark.parametrize(
    "code",
    [
        "open(path, 'w')",
        "open(path, mode='ab')",
        "path.open('r+b')",
        "os.open(path, os.O_RDWR)",
        "os.replace(a, b)",
        "from os import rename",
        "path.replace(target)",
        "path.write_text(text)",
        "os.makedirs(folder)",
        "shutil.rmtree(folder)",
        "tempfile.mkdtemp()",
        "np.save(path, values)",
        "np.memmap(path, dtype, mode='w+')",
        "pq.write_table(table, path)",
    ],
)
def test_a_write_is_found(code: str) -> None:
    assert list(writes(ast.walk(ast.parse(code))))


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "path.open('rb', buffering=0)",
        "os.open(path, os.O_RDONLY | os.O_NOFOLLOW)",
        "np.memmap(path, mode='r')",
        "text.replace('a', 'b')",
        "dataclasses.replace(column, name=name)",
        "files.disk.mkdir(path)",
    ],
)
def test_a_read_is_not_taken_for_a_write(code: str) -> None:
    assert not list(writes(ast.walk(ast.parse(code))))
