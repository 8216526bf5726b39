"""Edits of the user's source code, for patches.py, made in the syntax tree of LibCST.

The tree keeps every character of a file: comments, formatting, line ends and the encoding stay as they are. A `SourceFile` finds the call
at a position that edit_sites.py has recorded, and the functions below it make changes of nodes. All changes of a file are made in one
pass (`edited`). A change that is not certain raises `TrainError` with the reason.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from stoker.diagnose.edit_sites import CallSite
from stoker.errors import TrainError

IMPORTS = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom(), m.ZeroOrMore()])
TORCH = m.ImportAlias(name=m.Name("torch"))
LITERAL = m.Integer() | m.Float() | m.SimpleString() | m.Name("True") | m.Name("False") | m.Name("None")
NO_SPACE = cst.SimpleWhitespace("")


@dataclass(frozen=True, eq=False)
class SourceFile:
    """A file of the user, its syntax tree, and the position and the parent of each node."""

    path: str
    data: bytes
    module: cst.Module
    positions: Mapping[cst.CSTNode, CodeRange]
    parents: Mapping[cst.CSTNode, cst.CSTNode]

    @classmethod
    def read(cls, path: str) -> SourceFile:
        """Read a file. Raises `TrainError` if it is not Python, or if its bytes could not be written again as they are."""
        try:
            data = Path(path).read_bytes()
            ast.parse(data, filename=path)
            tree = MetadataWrapper(cst.parse_module(data))
        except (OSError, SyntaxError, ValueError, cst.ParserSyntaxError) as error:
            raise TrainError(f"{path} cannot be read as Python: {error}") from None
        if tree.module.bytes != data:
            raise TrainError(f"{path} cannot be written again as it is in its encoding {tree.module.encoding}")
        # Positions are a dictionary of all nodes.
        return cls(path, data, tree.module, tree.resolve(PositionProvider), tree.resolve(ParentNodeProvider))

    def call_at(self, site: CallSite) -> cst.Call:
        """The call whose closing parenthesis ends there: no two calls share one."""
        line = io.StringIO(self.module.code, newline="").readlines()[site.line - 1]
        column = len(line.encode()[: site.column].decode())  # Python counts in bytes of UTF-8
        for node, where in self.positions.items():
            if isinstance(node, cst.Call) and (where.end.line, where.end.column) == (site.line, column):
                return node
        raise TrainError(f"line {site.line} has no call to edit")

    def line_of(self, node: cst.CSTNode) -> int:
        """The first line of a node."""
        return self.positions[node].start.line

    def text_of(self, node: cst.CSTNode) -> str:
        """The text of a node."""
        return self.module.code_for_node(node)

    def is_literal(self, node: cst.BaseExpression) -> bool:
        """Whether an expression has the same value each time."""
        return m.matches(node, LITERAL)

    def statement_of(self, node: cst.CSTNode) -> cst.SimpleStatementLine:
        """The line or lines of a simple statement around a node."""
        inner = node
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.BaseSuite):
            node = self.parents[node]
        if not isinstance(node, cst.SimpleStatementLine):
            raise TrainError(f"line {self.line_of(inner)} is part of a longer statement")
        return node


@dataclass(frozen=True)
class Change:
    """A change of a node: `make` gets the node, the node after other changes, and `words`."""

    file: str
    node: cst.CSTNode
    make: Callable[..., Any]
    words: tuple[Any, ...]


class _Changer(cst.CSTTransformer):
    """Makes changes in one pass. The same change is made once."""

    def __init__(self, changes: Sequence[Change]) -> None:
        super().__init__()
        self._by_node: dict[cst.CSTNode, list[Change]] = {}
        for change in dict.fromkeys(changes):
            self._by_node.setdefault(change.node, []).append(change)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Change a node, after the nodes in it."""
        for change in self._by_node.get(original_node, []):
            updated_node = change.make(original_node, updated_node, *change.words)
        return updated_node


def edited(sources: Mapping[str, SourceFile], changes: Sequence[Change]) -> dict[str, bytes]:
    """The files that are changed, with their new contents. Raises `TrainError` if these are not Python."""
    files = {}
    for path in sorted({change.file for change in changes}):
        files[path] = sources[path].module.visit(_Changer([change for change in changes if change.file == path])).bytes
        try:
            ast.parse(files[path], filename=path)
        except SyntaxError as error:
            raise TrainError(f"line {error.lineno or 1} of {path} would not be Python: {error}") from None
    return files


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """An argument of a call, by its name or its position; None if it is not there."""
    by_name = (part for part in call.args if part.keyword is not None and part.keyword.value == name)
    by_position = call.args[position] if position is not None and len(call.args) > position else None
    return next(by_name, by_position if by_position is not None and by_position.keyword is None else None)


def with_keyword(source: SourceFile, call: cst.Call, name: str, value: str) -> list[Change]:
    """Add a keyword argument to a call, or change it; no change if it has this value already."""
    if any(part.star for part in call.args):
        raise TrainError(f"line {source.line_of(call)} passes * or ** arguments, which may contain {name}")
    present = argument(call, name)
    if present is not None and not source.is_literal(present.value):
        raise TrainError(f"line {source.line_of(present)} computes {name}")
    if present is not None:
        return [] if source.text_of(present.value) == value else [with_value(source, present, value)]
    return [Change(source.path, call, _add_keyword, (name, value))]


def _add_keyword(before: cst.Call, call: cst.Call, name: str, value: str) -> cst.Call:
    if argument(call, name) is not None:
        raise TrainError("two edits give a call the same argument")
    equal = cst.AssignEqual(whitespace_before=NO_SPACE, whitespace_after=NO_SPACE)
    new, comma = (
        cst.Arg(cst.parse_expression(value), keyword=cst.Name(name), equal=equal),
        cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
    )
    if not call.args:
        return call.with_changes(args=[new])
    *others, last = call.args
    end = last.comma
    if not isinstance(end, cst.Comma):  # a comment after the last argument stays at the end of its line
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        return call.with_changes(args=[*others, last.with_changes(comma=comma, whitespace_after_arg=NO_SPACE), new])
    space = others[-1].comma.whitespace_after if others and isinstance(others[-1].comma, cst.Comma) else call.whitespace_before_args
    after = end.whitespace_after
    if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(after, cst.ParenthesizedWhitespace):  # a line per argument
        comma = end.with_changes(whitespace_after=after.with_changes(indent=space.indent, last_line=space.last_line))
        end = end.with_changes(whitespace_after=after.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[]))
    return call.with_changes(args=[*others, last.with_changes(comma=comma), new.with_changes(comma=end)])


def with_value(source: SourceFile, node: cst.CSTNode, value: str) -> Change:
    """Replace the value of an argument, or the text of a name."""
    return Change(source.path, node, _set_value, (value,))


def _set_value(before: Any, after: Any, value: str) -> Any:
    return after.with_changes(value=value if isinstance(before, cst.Name) else cst.parse_expression(value))


def line_after(source: SourceFile, statement: cst.SimpleStatementLine, code: str) -> Change:
    """Add a line of code after a statement."""
    return Change(source.path, statement, _add_line, (code,))


def _add_line(before: Any, after: Any, code: str) -> Any:
    return cst.FlattenSentinel([*(after if isinstance(after, cst.FlattenSentinel) else [after]), cst.parse_statement(code)])


def torch_name(source: SourceFile) -> tuple[str, list[Change], cst.SimpleStatementLine]:
    """The name of torch in a file, the change that imports it if it is not imported, and the last statement of the block of imports."""
    body: Any = source.module.body
    imports = [number for number, line in enumerate(body) if m.matches(line, IMPORTS)]
    if not imports:
        raise TrainError("it has no import at its top")
    names = ((at, alias.evaluated_alias or "torch") for at in imports for alias in m.findall(body[at], TORCH))  # type: ignore[attr-defined]
    last, name = next(names, (imports[0], ""))
    while last + 1 in imports:
        last += 1
    return name or "torch", [] if name else [line_after(source, body[last], "import torch")], body[last]


def unified_diff(sources: Mapping[str, SourceFile], files: Mapping[str, bytes], folder: Path) -> bytes:
    """New contents of files as a patch with names relative to a folder, in which `git apply` is called."""
    # Without the line "diff --git": with it, names would be relative to the top of the repository, and files silently skipped.
    return b"".join(part for path in files for part in _diff_of(Path(path).relative_to(folder), sources[path].data, files[path]))


def _diff_of(name: Path, before: bytes, after: bytes) -> Iterator[bytes]:
    tab = "\t" * (" " in name.as_posix())  # ends a name with spaces
    names = (os.fsencode(f"a/{name.as_posix()}{tab}"), os.fsencode(f"b/{name.as_posix()}{tab}"))
    old, new = (io.BytesIO(data).readlines() for data in (before, after))  # lines as git counts them
    for line in difflib.diff_bytes(difflib.unified_diff, old, new, *names, lineterm=b"\n"):
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
