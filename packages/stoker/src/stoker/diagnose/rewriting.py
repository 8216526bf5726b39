"""The user's files as a diagnosis imports them: an import hook rewrites their loops (`rewrite_imports`). Files on disk never change.

`for x in BATCHES:` becomes `for x in __stoker_watched__(BATCHES, 17):`, and `while` gets a first statement that reports the iteration. All
else stays as it is, line numbers included. Loops that a compiler may have to read (numba, torch) and loops that cannot contain a step are
left alone. What the functions do is in loops.py.

Statements after the last one that may make a step can be skipped by an experiment (experiments/between.py): `metric.update(loss)` becomes
`if not (__stoker_skip__ and __stoker_skip__[0]()): metric.update(loss)` on the same line. A statement stays as it is if the loop cannot do
without it: if it leaves the loop or the function, defines or imports something, sets a name that the rest of the body reads, or calls what
changes the training (`zero_grad`, a schedule, a gradient scaler).
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from stoker._lazy import import_first
from stoker.diagnose.hooks import is_own, shown
from stoker.diagnose.loops import Sources
from stoker.diagnose.measurements import SourceLine
from stoker.errors import TrainError
from stoker.sandbox import mirrored

WATCHED, ITERATION = "__stoker_watched__", "__stoker_iteration__"
PASSING_ON = {"enumerate", "tqdm", "track", "notebook_tqdm"}
"""Functions that pass on the items of their first argument: the argument is watched."""
STEP_WORDS = ("step", "train", "fit", "backward", "update", "optim", "loss", "epoch", "batch", "iteration", "learn", "closure")
TRAINING_FUNCTIONS = ("main", "train", "fit", "run", "epoch", "loop", "benchmark")
COMPILER_DECORATORS = ("jit", "compile", "script", "vectorize", "kernel", "cuda")
NEVER = ("forward", "__getitem__", "__getitems__", "__len__", "collate", "collate_fn")


class Rewriter(ast.NodeTransformer):
    """Rewrites the syntax tree of one file."""

    def __init__(self, file: str) -> None:
        self.places: list[SourceLine] = []
        self._file = shown(file)
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self._names: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:  # noqa: D102
        self._functions.append(node)
        self._names.append(node.name)
        self.generic_visit(node)
        self._functions.pop()
        self._names.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:  # noqa: D102
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        return node

    def visit_For(self, node: ast.For) -> ast.AST:  # noqa: D102
        self.generic_visit(node)
        if not self._may_train(node):
            return node
        make_skippable(node.body, node.target, self._file, node.lineno)
        owner: ast.For | ast.Call = node
        inner = node.iter
        while isinstance(inner, ast.Call) and _name(inner.func) in PASSING_ON and inner.args:
            if isinstance(inner.args[0], ast.Starred):
                break
            owner, inner = inner, inner.args[0]
        call = self._call(WATCHED, node, [inner])
        if isinstance(owner, ast.Call):
            owner.args[0] = call
        else:
            owner.iter = call
        return node

    def visit_While(self, node: ast.While) -> ast.AST:  # noqa: D102
        self.generic_visit(node)
        if self._may_train(node):
            make_skippable(node.body, node.test, self._file, node.lineno)
            node.body.insert(0, ast.copy_location(ast.Expr(self._call(ITERATION, node, [])), node))
        return node

    def _call(self, name: str, node: ast.For | ast.While, arguments: list[ast.expr]) -> ast.Call:
        number = ast.Constant(len(self.places))
        self.places.append(SourceLine(file=self._file, line=node.lineno, function=".".join(self._names) or "<module>"))
        call = ast.Call(ast.Name(name, ast.Load()), [*arguments, number], [])
        return ast.fix_missing_locations(ast.copy_location(call, arguments[0] if arguments else node))

    def _may_train(self, node: ast.For | ast.While) -> bool:
        """Whether a loop may contain an optimizer step, judged by its source."""
        calls = [name.lower() for statement in node.body for name in called_names(statement)]
        if not calls:
            return False
        if not self._functions:
            return True
        for function in self._functions:
            decorators = " ".join(ast.unparse(decorator) for decorator in function.decorator_list).lower()
            if function.name in NEVER or any(word in decorators for word in COMPILER_DECORATORS):
                return False
        return any(word in self._functions[-1].name.lower() for word in TRAINING_FUNCTIONS) or any(
            word in call for call in calls for word in STEP_WORDS
        )


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


class OwnLoader(SourceFileLoader):
    """Imports a file of the user with its loops watched; its bytecode is neither read nor cached."""

    def __init__(self, name: str, path: str, watch: Sources) -> None:
        super().__init__(name, path)
        self._watch = watch
        self._places: list[SourceLine] = []

    def get_code(self, fullname: str) -> CodeType:
        """Compile the rewritten file."""
        data = self.get_data(self.path)
        rewriter = Rewriter(self.path)
        tree = rewriter.visit(ast.parse(data, filename=self.path))
        self._places = rewriter.places
        return self.source_to_code(tree, self.path)

    def exec_module(self, module: ModuleType) -> None:
        """Run the file with the functions that its loops call."""
        watch = self._watch

        def watched(iterable: Iterable[Any], number: int) -> Iterable[Any]:
            return watch.watched(iterable, self._places[number])

        def iteration(number: int) -> None:
            watch.iteration(self._places[number])

        module.__dict__[WATCHED], module.__dict__[ITERATION], module.__dict__[SKIP] = watched, iteration, watch.skips
        super().exec_module(module)


@dataclass(eq=False)
class OwnFinder(MetaPathFinder):
    """Finds the user's own modules, for `OwnLoader`."""

    watch: Sources

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of one of the user's modules; None for all others."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None or not is_own(spec.origin):
            return None
        spec.loader = OwnLoader(fullname, spec.origin, self.watch)
        return spec


def rewrite_imports(watch: Sources) -> Callable[[], None]:
    """Watch the loops of the user's modules that are imported from now on; returns a function that stops it."""
    finder = OwnFinder(watch)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder)


def run_main(program: str, arguments: Sequence[str], watch: Sources, *, module: bool, name: str = "__main__") -> None:
    """Run a script, or a module with `module=True`, as the main module with its loops watched. `name` is its `__name__`."""
    if module:
        import_first(Path.cwd())
        spec = _find_module(program)
    else:
        path = Path(mirrored(program))
        import_first(path.resolve().parent)
        spec = ModuleSpec("__main__", None, origin=str(path))
    file = str(spec.origin)
    loader = OwnLoader("__main__", file, watch)
    main = ModuleType(name)
    main.__file__, main.__loader__ = file, loader
    main.__spec__ = spec if module else None
    main.__package__ = spec.parent if module else None
    main.__dict__.update(__builtins__=builtins, __cached__=None)
    sys.argv = [file, *arguments]
    sys.modules["__main__"] = sys.modules[name] = main  # classes of the program are looked up by its name
    loader.exec_module(main)


def _find_module(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise TrainError(f"there is no module {name!r} that can be run from {Path.cwd()}.")
    return spec


# ---- statements after a step, which an experiment skips ----

SKIP = "__stoker_skip__"
STEPS = ("step", "backward", "train", "fit", "closure", "learn", "minimize", "optimize")
"""A statement may make a step if it calls a function whose name contains one of these words."""
NEEDED = ("zero_grad", "step", "backward", "next", "train", "eval", "detach_", "copy_", "load_state_dict", "synchronize")
"""A statement that calls one of these functions is part of the training."""
STAYING = (
    *(ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete, ast.Global, ast.Nonlocal),
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.NamedExpr, ast.Assert),
)


def make_skippable(body: list[ast.stmt], head: ast.expr, file: str, line: int) -> None:
    """Rewrite the statements of the loop at a place; `head` is its target or its condition."""
    steps = [
        number for number, part in enumerate(body) if any(word in name.lower() for name in called_names(part) for word in STEPS)
    ]
    after = steps[-1] + 1 if steps else len(body)
    needed = {name for part in (head, *body[:after]) for name in _names(part)}
    for number in range(after, len(body)):
        statement = body[number]
        if _can_be_skipped(statement, needed):
            test = ast.parse(f"not ({SKIP} and {SKIP}[0]({file!r}, {line}))", mode="eval").body
            for part in ast.walk(test):
                ast.copy_location(part, statement)
            body[number] = ast.copy_location(ast.If(test, [statement], []), statement)


def called_names(node: ast.AST) -> list[str]:
    """Return the names of the functions that are called within a statement."""
    return [_name(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)]


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _can_be_skipped(statement: ast.stmt, needed: set[str]) -> bool:
    for part in ast.walk(statement):
        if isinstance(part, STAYING):
            return False
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store) and _names(part) & needed:
            return False
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and "scaler" in ast.unparse(part.func).lower():
            return False
    return not any(name in NEEDED for name in called_names(statement)) and not isinstance(statement, ast.Pass)
