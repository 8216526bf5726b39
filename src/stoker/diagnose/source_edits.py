"""Edits of a Python file by exact positions: comments, formatting, line ends and the encoding of the file stay as they are.

A place in a file is found by its syntax tree, and an edit replaces a span of characters. `SourceFile` holds a file, the functions
below it make edits, `edited` applies them, and `unified_diff` is the patch that `git apply` takes. An edit that cannot be made for
sure raises `TrainError` with the reason.
"""

from __future__ import annotations

import ast
import difflib
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stoker.errors import TrainError

LINE_END = re.compile(r"\r\n|\r|\n")
BODIES = ("body", "orelse", "finalbody")
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """Replace the characters from `start` to `end` of a file by a text."""

    file: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SourceFile:
    """A file of the user's, its text and its syntax tree."""

    path: str
    data: bytes
    encoding: str
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, path: str) -> SourceFile:
        """Read a file. Raises `TrainError` if it is not Python, or if its bytes could not be written again as they are."""
        try:
            data = Path(path).read_bytes()
            encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
            text = data.decode(encoding)
            tree = ast.parse(data, filename=path)
        except (OSError, SyntaxError, ValueError) as error:
            raise TrainError(f"{path} cannot be read as Python: {error}") from None
        if text.encode(encoding) != data:
            raise TrainError(f"{path} cannot be written again as it is in its encoding {encoding}")
        return cls(path, data, encoding, text, tree)

    @functools.cached_property
    def lines(self) -> list[tuple[int, int, int]]:
        """Of each line: where it starts, where its line end starts, and where the next line starts. Lines end as Python ends them."""
        found, start = [], 0
        for end in LINE_END.finditer(self.text):
            found.append((start, *end.span()))
            start = end.end()
        return [*found, (start, len(self.text), len(self.text))]

    @functools.cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def offset(self, line: int, column: int) -> int:
        """The character at a line and a column as Python counts them: from 1, and in bytes of UTF-8."""
        start, end, _ = self.lines[line - 1]
        return start + len(self.text[start:end].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """The characters of a node."""
        line, column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self.offset(node.lineno, node.col_offset), self.offset(line, column)

    def source_of(self, node: ast.expr) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def call_ending_at(self, line: int, column: int) -> ast.Call:
        """The call whose closing parenthesis ends there: no two calls share one."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == (line, column):
                return node
        raise TrainError(f"line {line} has no call to edit")

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement around a node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def replacing(self, node: ast.expr | ast.keyword, text: str) -> Edit:
        """Replace a node."""
        start, end = self.span(node)
        return Edit(file=self.path, start=start, end=end, text=text)

    def inserting(self, offset: int, text: str) -> Edit:
        """Insert a text."""
        return Edit(file=self.path, start=offset, end=offset, text=text)

    def newline_at(self, line: int) -> str:
        """The line end of a line; of the first one where it has none."""
        _, end, after = self.lines[line - 1]
        first = self.lines[0]
        return self.text[end:after] or self.text[first[1] : first[2]] or "\n"

    def alone_on_its_lines(self, first: ast.stmt, last: ast.stmt) -> str:
        """The indentation of statements that share no line with others. Raises `TrainError` if they do."""
        start, end = self.span(first)[0], self.span(last)[1]
        before = self.text[self.lines[first.lineno - 1][0] : start]
        after = self.text[end : self.lines[(last.end_lineno or last.lineno) - 1][1]].strip()
        if before.strip() or (after and not after.startswith("#")):
            raise TrainError(f"line {first.lineno} has more than one statement")
        return before


def with_keyword(source: SourceFile, call: ast.Call, name: str, value: str) -> list[Edit]:
    """Give a call a keyword argument; no edit where it has this value already."""
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        raise TrainError(f"line {call.lineno} passes * or ** arguments, which may contain {name}")
    for one in call.keywords:
        if one.arg == name:
            if isinstance(one.value, ast.Constant):
                return [] if source.source_of(one.value) == value else [source.replacing(one.value, value)]
            raise TrainError(f"line {one.value.lineno} computes {name}")
    given = [*call.args, *(one.value for one in call.keywords)]
    close = source.span(call)[1] - 1
    if not given:
        return [source.inserting(close, f"{name}={value}")]
    last = max(given, key=lambda one: source.span(one)[1])
    after, comma = _after_argument(source.text, source.span(last)[1], close)
    start, end, _ = _line_of(source, after)
    own_line = source.text[start : source.span(last)[0]]
    if comma <= end < close and _is_alone(call, last, own_line):
        indent = own_line[: len(own_line) - len(own_line.lstrip())]
        return [source.inserting(end, f"{source.newline_at(last.end_lineno or last.lineno)}{indent}{name}={value},")]
    return [source.inserting(after, f", {name}={value}")]


def _is_alone(call: ast.Call, last: ast.expr, before: str) -> bool:
    """Whether the last argument is in one line, with nothing before it but its name."""
    named = next((one.arg for one in call.keywords if one.value is last), None)
    return last.lineno == last.end_lineno and before.strip().replace(" ", "") in ("", f"{named}=")


def _line_of(source: SourceFile, offset: int) -> tuple[int, int, int]:
    return next(one for one in source.lines if one[0] <= offset <= one[1])


def _after_argument(text: str, at: int, close: int) -> tuple[int, int]:
    """The end of the last argument with its own parentheses, and where a comma follows; at the end of the call where none does."""
    end, comma, comment = at, close, False
    for place in range(at, close):
        letter = text[place]
        if letter == "#":
            comment = True
        elif letter in "\r\n":
            comment = False
        elif not comment and letter == ")":
            end = place + 1
        elif not comment and letter == ",":
            comma = place
    return end, comma


def line_after(source: SourceFile, statement: ast.stmt, code: str) -> Edit:
    """Add a line of code after a statement."""
    indent = source.alone_on_its_lines(statement, statement)
    line = statement.end_lineno or statement.lineno
    return source.inserting(source.lines[line - 1][1], f"{source.newline_at(line)}{indent}{code}")


def torch_name(source: SourceFile) -> tuple[str, list[Edit]]:
    """The name that a file gives to torch, and the edit that imports it where it has none."""
    name, at = torch_import(source)
    return (name, []) if name is not None else ("torch", [line_after(source, at, "import torch")])


def torch_import(source: SourceFile) -> tuple[str | None, ast.stmt]:
    """The name that a file gives to torch, None if it has none, and the last of the imports around that."""
    body = source.tree.body
    imports = [isinstance(one, ast.Import | ast.ImportFrom) for one in body]
    if not any(imports):
        raise TrainError("it has no import at its top")
    name, at = None, imports.index(True)
    for number, one in enumerate(body):
        for alias in one.names if isinstance(one, ast.Import) else []:
            if name is None and (alias.name == "torch" or (alias.asname is None and alias.name.startswith("torch."))):
                name, at = alias.asname or "torch", number
    while at + 1 < len(body) and imports[at + 1]:
        at += 1
    return name, body[at]


def within(source: SourceFile, first: ast.stmt, last: ast.stmt, header: str) -> list[Edit]:
    """Put statements that follow each other under a `with`, each of their lines further to the right."""
    indent = source.alone_on_its_lines(first, last)
    end = last.end_lineno or last.lineno
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.JoinedStr) and not (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            continue
        if first.lineno <= node.lineno <= end and node.lineno != node.end_lineno:
            raise TrainError(f"line {node.lineno} has a string of several lines, which indentation would change")
    more = "\t" if "\t" in indent else "    "
    edits = [source.inserting(source.lines[first.lineno - 1][0], f"{indent}{header}{source.newline_at(first.lineno)}")]
    for start, stop, _ in source.lines[first.lineno - 1 : end]:
        if source.text[start:stop].strip():
            edits.append(source.inserting(start, more))
    return edits


def following(source: SourceFile, statement: ast.stmt) -> list[ast.stmt]:
    """The statements after one, in the same block."""
    for name in BODIES:
        block = getattr(source.parents[statement], name, [])
        if statement in block:
            return list(block[block.index(statement) + 1 :])
    return []


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text of a file after its edits. Raises `TrainError` if two of them change the same characters."""
    parts, done = [], 0
    for one in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        if one.start < done:
            raise TrainError("two edits change the same characters")
        parts += [text[done : one.start], one.text]
        done = one.end
    return "".join([*parts, text[done:]])


def edited_bytes(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The bytes of a file after its edits."""
    encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    return edited(data.decode(encoding), edits).encode(encoding)


def check_edits(sources: Mapping[str, SourceFile], edits: Sequence[Edit]) -> None:
    """Raise `TrainError` unless the files are Python after their edits."""
    for path, some in by_file(edits).items():
        try:
            tree = ast.parse(edited_bytes(sources[path].data, some), filename=path)
        except (SyntaxError, ValueError) as error:
            raise TrainError(f"line {getattr(error, 'lineno', None) or 1} of {path} would not be Python: {error}") from None
        for node in ast.walk(tree):
            names = [one.arg for one in node.keywords if one.arg is not None] if isinstance(node, ast.Call) else []
            if len(names) > len(set(names)):  # which only compiling finds
                raise TrainError("two edits give a call the same argument")


def by_file(edits: Sequence[Edit]) -> dict[str, list[Edit]]:
    """The edits of each file."""
    files = sorted({one.file for one in edits})
    return {file: [one for one in edits if one.file == file] for file in files}


def unified_diff(sources: Mapping[str, SourceFile], edits: Sequence[Edit], folder: Path) -> bytes:
    """The edits as a patch; the names in it are relative to a folder, in which `git apply` is called."""
    # Without the line "diff --git": names would then be relative to the top of the repository, and other files skipped in silence.
    return b"".join(
        part
        for path, some in by_file(edits).items()
        for part in _diff_of(Path(path).relative_to(folder), sources[path].data, edited_bytes(sources[path].data, some))
    )


def _diff_of(name: Path, before: bytes, after: bytes) -> Iterator[bytes]:
    names = (_quoted(f"a/{name.as_posix()}"), _quoted(f"b/{name.as_posix()}"))
    for line in difflib.diff_bytes(difflib.unified_diff, _lines(before), _lines(after), *names, lineterm=b"\n"):
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[bytes]:
    """Lines as git counts them."""
    return [one + b"\n" for one in data.split(b"\n")[:-1]] + [data.split(b"\n")[-1]] * (not data.endswith(b"\n") and bool(data))


def _quoted(name: str) -> bytes:
    """A name as it is in a patch: quoted as in C where it has letters that end it, with a tab behind it where it has a space."""
    raw = name.encode("utf-8", "surrogateescape")
    if any(one < 32 or one in b'"\\' or one == 127 for one in raw):
        octal = "".join(chr(one) if 32 <= one < 127 and one not in b'"\\' else f"\\{one:03o}" for one in raw)
        return f'"{octal}"'.encode()
    return raw + (b"\t" if b" " in raw else b"")
