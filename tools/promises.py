"""Writes docs/promises.md from tests/promises.toml and from the markers of the tests: `make reference`.

A test names its promise by `@pytest.mark.promise("P1")`, a file whose tests all check it by `pytestmark`. A negative control removes the
protection and checks that the fault is then seen: it has `control=True`, or `negative_control` in its name where the file has the marker.
`python -m tools.promises P1` lists the tests of a promise by name.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "promises.md"

INTRO = """\
# Promises

This page is generated from `tests/promises.toml` and from the tests by `make reference`. Do not edit it by hand.

A test names the promise that it checks by `@pytest.mark.promise("P1")`. A control (`control=True`) removes the protection and checks
that the fault is then seen. In parentheses is the number of tests in a file, with the number of controls after a plus sign.
`python -m tools.promises P1` lists them by name.

Tests marked slow, gpu, originals or soak are run by `make test-slow`, `make test-gpu` (on a machine with a GPU), `make test-originals`
and `make soak`; all others by `make test`. Of a partly slow test, `make test` runs some cases.

## Known limits

- If another program truncates or overwrites a mapped shard in place, the process ends with SIGBUS. No check can prevent it. The next
  open names the shard. A source that is mapped while it is read (Arrow IPC) has the same limit.
- Hashes detect accidents, not forgery: xxh3 is not cryptographic.
- `flock` depends on the file system. On some network mounts two machines may both hold the lock.
"""

TABLE = ROOT / "tests" / "promises.toml"
PROMISES: dict[str, dict[str, str]] = tomllib.loads(TABLE.read_text())
"""Title and text of each promise."""

SUITES = frozenset({"slow", "gpu", "originals", "soak"})
"""Markers of tests that `make test` does not run."""


@dataclass(frozen=True)
class PromiseTest:
    """A test with the promise that it names."""

    promise: str
    control: bool
    file: str
    name: str
    suite: str
    """What runs it: "" for `make test`, else markers, after "partly" where only some cases have one."""


def collect(tests: Path = ROOT / "tests") -> list[PromiseTest]:
    """Return the tests with a marker, in the order of files and lines."""
    texts = {path: path.read_text() for path in sorted(tests.rglob("test_*.py"))}
    return [test for path, text in texts.items() if "mark.promise" in text for test in parse(text, path)]


def parse(text: str, path: Path) -> list[PromiseTest]:
    """Return the tests of one file. `pytestmark` counts for each of its tests; a marker elsewhere is an error: it would not be counted."""
    tree = ast.parse(text)
    markers: dict[str, set[str]] = {}
    of_file: list[tuple[str, bool]] = []
    tests, num_markers = [], 0
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            markers[node.targets[0].id] = _suites(node.value, markers)
            if node.targets[0].id == "pytestmark":
                of_file = _promises(node.value.elts if isinstance(node.value, ast.List) else [node.value])
                num_markers += len(of_file)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            named = _promises(node.decorator_list)
            num_markers += len(named)
            named += [(name, "negative_control" in node.name) for name, _ in of_file if name not in dict(named)]
            tests += [PromiseTest(*promise, str(path.relative_to(ROOT)), node.name, _suite(node, markers)) for promise in named]
    written = sum(isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.promise" for node in ast.walk(tree))
    if written != num_markers:
        raise ValueError(
            f"{path}: {written - num_markers} of {written} promise markers are not of a file or of a top-level test function"
        )
    return tests


def _promises(marks: Sequence[ast.expr]) -> list[tuple[str, bool]]:
    calls = [mark for mark in marks if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise"]
    return [(ast.literal_eval(call.args[0]), any(word.arg == "control" for word in call.keywords)) for call in calls]


def _suites(node: ast.AST, markers: dict[str, set[str]]) -> set[str]:
    attributes = {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)} & SUITES
    return attributes.union(*(markers.get(child.id, set()) for child in ast.walk(node) if isinstance(child, ast.Name)))


def _suite(function: ast.FunctionDef, markers: dict[str, set[str]]) -> str:
    whole, some = set(markers.get("pytestmark", set())), set[str]()
    for mark in function.decorator_list:
        (some if isinstance(mark, ast.Call) else whole).update(_suites(mark, markers))
    return ", ".join(sorted(whole)) or "".join(f"partly {suite}" for suite in sorted(some))


def page(tests: Sequence[PromiseTest]) -> str:
    """Return docs/promises.md."""
    return "\n".join([INTRO, *(_section(name, [test for test in tests if test.promise == name]) for name in PROMISES)])


def _section(name: str, tests: Sequence[PromiseTest]) -> str:
    controls = sum(test.control for test in tests)
    suites = Counter(test.suite for test in tests if test.suite)
    elsewhere = "".join(f", {number} {suite}" for suite, number in sorted(suites.items()))
    lines = [
        f"## {name} {PROMISES[name]['title']}",
        "",
        PROMISES[name]["text"],
        f"{len(tests) - controls} tests and {controls} controls{elsewhere}:",
        "",
    ]
    folders: dict[str, list[str]] = {}
    for file in dict.fromkeys(test.file for test in tests):
        here = Counter(test.control for test in tests if test.file == file)
        count = f"{here[False]} + {here[True]}" if here[True] else f"{here[False]}"
        folder, _, base = file.rpartition("/")
        folders.setdefault(folder, []).append(f"{base} ({count})")
    return "\n".join([*lines, *(f"- `{folder}`: {', '.join(files)}" for folder, files in folders.items()), ""])


def mistakes(tests: Sequence[PromiseTest]) -> list[str]:
    """Return what is wrong with the markers: unknown promises, and promises without a test or without a control."""
    unknown = [f"{test.file}::{test.name}: no promise {test.promise}" for test in tests if test.promise not in PROMISES]
    kinds = {(test.promise, test.control) for test in tests}
    untested = [f"{name}: no test" for name in PROMISES if (name, False) not in kinds]
    return [*unknown, *untested, *(f"{name}: no control" for name in PROMISES if (name, True) not in kinds)]


def main(names: Sequence[str]) -> None:
    """Write the page, or list the tests of the named promises."""
    tests = collect()
    for test in tests:
        if test.promise in names:
            kind = "control" if test.control else "test   "
            print(f"{test.promise} {kind} {test.file}::{test.name} {test.suite}".rstrip())
    if not names:
        PAGE.write_text(page(tests))


if __name__ == "__main__":
    main(sys.argv[1:])
