"""Rewrites the `for` and `while` statements of the user's own files, so that their iterations can be watched.

The source becomes a syntax tree, `for x in BATCHES:` becomes `for x in __stoker_watched__(BATCHES, 17):`, `while` gets a first
statement that reports the iteration, and the rest stays as it is, line numbers included. Files are rewritten when they are imported,
never on disk. Loops that a compiler may have to read (numba, torch) are left alone, and so are those that cannot contain a step.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, MappingProxyType, ModuleType
from typing import Any

from stoker.diagnose.hooks import is_own, shown
from stoker.diagnose.loaders import Sources
from stoker.diagnose.measurements import SourceLine
from stoker.diagnose.source_edits import Edit, edited_bytes

WATCHED, ITERATION = "__stoker_watched__", "__stoker_iteration__"
PASSING_ON = {"enumerate", "tqdm", "track", "notebook_tqdm"}
"""Functions that pass on the items of their first argument: the argument is watched."""
WORDS = ("step", "train", "fit", "backward", "update", "optim", "loss", "epoch", "batch", "iteration", "learn", "closure")
RUNNING = ("main", "train", "fit", "run", "epoch", "loop", "benchmark")
COMPILING = ("jit", "compile", "script", "vectorize", "kernel", "cuda")
FileEdits = Mapping[str, Sequence[Edit]]
"""Edits that a patch would make, by the real path of the file."""
NO_EDITS: FileEdits = MappingProxyType({})
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
            node.body.insert(0, ast.copy_location(ast.Expr(self._call(ITERATION, node, [])), node))
        return node

    def _call(self, name: str, node: ast.For | ast.While, arguments: list[ast.expr]) -> ast.Call:
        number = ast.Constant(len(self.places))
        self.places.append(SourceLine(file=self._file, line=node.lineno, function=".".join(self._names) or "<module>"))
        call = ast.Call(ast.Name(name, ast.Load()), [*arguments, number], [])
        return ast.fix_missing_locations(ast.copy_location(call, arguments[0] if arguments else node))

    def _may_train(self, node: ast.For | ast.While) -> bool:
        """Whether a loop may contain an optimizer step, judged by its source."""
        calls = [_name(one.func).lower() for part in node.body for one in ast.walk(part) if isinstance(one, ast.Call)]
        if not calls:
            return False
        if not self._functions:
            return True
        for function in self._functions:
            decorators = " ".join(ast.unparse(one) for one in function.decorator_list).lower()
            if function.name in NEVER or any(word in decorators for word in COMPILING):
                return False
        return any(word in self._functions[-1].name.lower() for word in RUNNING) or any(
            word in call for call in calls for word in WORDS
        )


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


class OwnLoader(SourceFileLoader):
    """Loads a file of the user's with its loops watched; its bytecode is neither read nor cached."""

    def __init__(self, name: str, path: str, watch: Sources, edits: FileEdits = NO_EDITS) -> None:
        super().__init__(name, path)
        self._watch = watch
        self._edits = edits
        self._places: list[SourceLine] = []

    def get_data(self, path: str) -> bytes:
        """The bytes of a file after its edits."""
        data = super().get_data(path)
        edits = self._edits.get(os.path.realpath(path))
        if edits is None:
            return data
        data = edited_bytes(data, edits)
        text = importlib.util.decode_source(data)
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)  # what `inspect` and tracebacks show
        return data

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

        module.__dict__[WATCHED], module.__dict__[ITERATION] = watched, iteration
        super().exec_module(module)


@dataclass(eq=False)
class OwnFinder(MetaPathFinder):
    """Finds the user's own modules, for `OwnLoader`."""

    watch: Sources
    edits: FileEdits

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a module of the user's; None for all others."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None or not is_own(spec.origin):
            return None
        spec.loader = OwnLoader(fullname, spec.origin, self.watch, self.edits)
        return spec


def rewrite_imports(watch: Sources, edits: FileEdits = NO_EDITS) -> Callable[[], None]:
    """Watch the loops of all own modules imported from here on, and edit their files; returns a function that ends it."""
    finder = OwnFinder(watch, edits)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder)
