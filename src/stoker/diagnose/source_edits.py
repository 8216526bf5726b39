"""Edits of the user's source code, for patches.py: find the calls to edit while the program runs, and edit them by exact position.

`SiteFinder` is a fix that changes nothing. It records which calls in the user's files make the loader, the optimizers and the model,
whatever names these have there: a frame knows the exact position of the call that it is in. A `SourceFile` finds the call at such a
position in the syntax tree, and the functions below it make edits, each of which replaces a span of characters. So comments, formatting,
line ends and the encoding of the file stay as they are. An edit that is not certain raises `TrainError` with the reason.
"""

from __future__ import annotations

import ast
import difflib
import functools
import io
import itertools
import os
import re
import sys
import tokenize
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate, default_convert
from torch.utils.data.sampler import RandomSampler, SequentialSampler

from stoker.diagnose.feed_fix import same_bits
from stoker.diagnose.fixes import Fix, kept_seeds
from stoker.diagnose.hooks import BeforeForward, frames, is_own
from stoker.diagnose.loops import FileEdits, OwnLoader
from stoker.diagnose.sandbox_landlock import original
from stoker.errors import TrainError
from stoker.train.optimizer import FUSED

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
    """A file of the user, its text and its syntax tree."""

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
        """Offsets of each line: its start, the start of its line end, and the start of the next line."""
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
        """The line end of a line; that of the first line if it has none."""
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
    """Add a keyword argument to a call, or change it; no edit if it has this value already."""
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
    """Whether the last argument is on a line of its own, after at most its name."""
    named = next((one.arg for one in call.keywords if one.value is last), None)
    return last.lineno == last.end_lineno and before.strip().replace(" ", "") in ("", f"{named}=")


def _line_of(source: SourceFile, offset: int) -> tuple[int, int, int]:
    return next(one for one in source.lines if one[0] <= offset <= one[1])


def _after_argument(text: str, at: int, close: int) -> tuple[int, int]:
    """The end of the last argument with its parentheses, and the position of the comma after it; `close` if there is none."""
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
    """The name of torch in a file, and the edit that imports it if it is not imported."""
    name, at = torch_import(source)
    return (name, []) if name is not None else ("torch", [line_after(source, at, "import torch")])


def torch_import(source: SourceFile) -> tuple[str | None, ast.stmt]:
    """The name of torch in a file (None if it is not imported), and the last statement of the block of imports."""
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
    """Indent consecutive statements under a `with` statement."""
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
            if len(names) > len(set(names)):  # ast.parse does not check it
                raise TrainError("two edits give a call the same argument")


def by_file(edits: Sequence[Edit]) -> dict[str, list[Edit]]:
    """The edits of each file."""
    files = sorted({one.file for one in edits})
    return {file: [one for one in edits if one.file == file] for file in files}


def as_file_edits(edits: Sequence[Edit]) -> FileEdits:
    """The edits as the import hook applies them."""
    return {file: functools.partial(edited_bytes, edits=some) for file, some in by_file(edits).items()}


def unified_diff(sources: Mapping[str, SourceFile], edits: Sequence[Edit], folder: Path) -> bytes:
    """The edits as a patch with names relative to a folder, in which `git apply` is called."""
    # Without the line "diff --git": with it, names would be relative to the top of the repository, and files silently skipped.
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
    """A file name as in a patch: quoted as in C if it has special characters, followed by a tab if it has a space."""
    raw = name.encode("utf-8", "surrogateescape")
    if any(one < 32 or one in b'"\\' or one == 127 for one in raw):
        octal = "".join(chr(one) if 32 <= one < 127 and one not in b'"\\' else f"\\{one:03o}" for one in raw)
        return f'"{octal}"'.encode()
    return raw + (b"\t" if b" " in raw else b"")


# ---- finding the calls to edit while the program runs ----

STOKER = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
MAX_FRAMES = 8
PROBES = 5
LARGE_TABLE = 4096  # rows of an embedding from which on sparse gradients may gain
LOADER_CLASSES = (RandomSampler, SequentialSampler)


class CallSite(msgspec.Struct, frozen=True, kw_only=True):
    """A call, by the position after its closing parenthesis."""

    file: str
    line: int
    column: int
    own: bool  # whether the file is the user's


class EditSites(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a program that fixes edit, and facts about its loader."""

    main: str  # the file that is run
    files: list[str] = []  # all imported files of the user
    loader: list[CallSite] = []  # of the training loop
    loader_kind: str = ""  # its class
    workers: int = 0
    persistent: bool = False
    pinned: bool = False
    gathers: str = ""  # why a list of indices does not give a whole batch of its dataset; empty if it does
    shuffles: bool = False
    indexed: bool = True  # whether its samples are found by index
    optimizers: list[CallSite] = []  # calls that make an optimizer that could be fused
    copies: list[CallSite] = []  # copies of batches to the GPU that the host waits for
    zeroing: list[CallSite] = []  # calls of zero_grad that keep gradients
    embeddings: list[CallSite] = []  # calls that make a large embedding with dense gradients
    model: list[CallSite] = []  # calls that make the model, each the value of an assignment
    model_kind: str = ""  # the class of the last one, with its module
    forward: list[CallSite] = []  # calls of the model in training
    device: str = "cpu"


class SiteFinder(Fix):
    """Records the calls that patches edit."""

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self.used = True
        self._folder = Path.cwd()  # file names may be relative to it, and the program may change it
        self._loaders: list[tuple[weakref.ref[Any], CallSite | None]] = []
        self._made: dict[int, tuple[weakref.ref[Any], list[FrameSite], CallSite | None]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], CallSite | None]] = {}
        self._found: dict[str, list[CallSite]] = {}
        self._device, self._model_kind = "cpu", ""

    def install(self) -> None:
        """Watch the constructors, copies and `zero_grad` of torch."""
        self._after(DataLoader, "__init__", self._loader_made)
        self._after(Optimizer, "__init__", self._optimizer_made)
        self._after(torch.nn.Module, "__init__", self._module_made)
        self._after(torch.nn.Embedding, "__init__", self._embedding_made)
        for owner in (Optimizer, torch.nn.Module):
            self._after(owner, "zero_grad", self._zeroed)
        if torch.cuda.is_available():
            for name in ("to", "cuda"):
                self._after(torch.Tensor, name, self._copied)
        self._undo.callback(register_optimizer_step_pre_hook(self._stepped).remove)

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Find the calls that make the models, and watch the calls of the models."""
        for module in roots:
            weight = next((one for one in module.parameters() if one.requires_grad), None)
            if weight is not None:
                self._device, self._model_kind = weight.device.type, f"{type(module).__module__}.{type(module).__name__}"
                self._add("model", self._assignment_of(module))
                self._undo.callback(module.register_forward_pre_hook(BeforeForward(self._called)).remove)

    def sites(self, loader: DataLoader[Any] | None) -> EditSites:
        """All calls found; `loader` is that of the training loop."""
        imported = [getattr(one, "__dict__", {}).get("__loader__") for one in list(sys.modules.values())]
        made = next((site for ref, site in self._loaders if loader is not None and ref() is loader), None)
        facts: dict[str, Any] = {**self._found, "indexed": False}
        if loader is not None:
            facts |= {
                "loader_kind": type(loader).__name__,
                "workers": loader.num_workers,
                "persistent": loader.persistent_workers,
                "pinned": loader.pin_memory,
                "shuffles": isinstance(loader.sampler, RandomSampler),
                "indexed": not isinstance(loader.dataset, IterableDataset),
            }
        return EditSites(
            main=self._path(str(getattr(sys.modules["__main__"], "__file__", ""))),
            files=sorted({self._path(one.path) for one in imported if isinstance(one, OwnLoader)}),
            loader=[made] if made is not None else [],
            gathers=why_not_gathered(loader),
            model_kind=self._model_kind,
            device=self._device,
            **facts,
        )

    def _after(self, owner: Any, name: str, seen: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(self_: Any, *args: Any, **kwargs: Any) -> Any:
            out = original(self_, *args, **kwargs)
            seen(sys._getframe(1), self_, out, args, kwargs)
            return out

        self.replace(owner, name, watched)

    def _add(self, kind: str, site: CallSite | None) -> None:
        known = self._found.setdefault(kind, [])
        if site is not None and site not in known:
            known.append(site)

    def _loader_made(self, frame: FrameType, loader: Any, *_: Any) -> None:
        self._loaders.append((weakref.ref(loader), self._site(constructor_caller(frame, loader))))

    def _optimizer_made(self, frame: FrameType, optimizer: Any, *_: Any) -> None:
        self._optimizers[id(optimizer)] = (weakref.ref(optimizer), self._site(constructor_caller(frame, optimizer)))

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        ref, site = self._optimizers.pop(id(optimizer), (None, None))
        fused = optimizer.param_groups[0].get("fused")
        if ref is not None and ref() is optimizer and type(optimizer) in FUSED and not fused:
            self._add("optimizers", site)

    def _embedding_made(self, frame: FrameType, table: Any, *_: Any) -> None:
        if not table.sparse and type(table) is torch.nn.Embedding and table.num_embeddings >= LARGE_TABLE:
            self._add("embeddings", self._site(constructor_caller(frame, table)))

    def _zeroed(self, frame: FrameType, owner: Any, out: Any, args: Any, kwargs: Any) -> None:
        if (args[0] if args else kwargs.get("set_to_none", True)) is False:
            self._add("zeroing", self._site(outside_torch(frame)))

    def _copied(self, frame: FrameType, tensor: torch.Tensor, out: Any, args: Any, kwargs: Any) -> None:
        if tensor.device.type == "cpu" and out.device.type == "cuda" and is_own(frame.f_code.co_filename):
            self._add("copies", self._site(frame))

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self._add("forward", self._site(outside_torch(sys._getframe(1))))

    def _module_made(self, frame: FrameType, module: Any, *_: Any) -> None:
        direct = constructor_caller(frame, module)
        sites = ((caller.f_code, self._site(caller)) for caller in frames(direct))
        own = ((code, site) for code, site in sites if site is not None and site.own)
        self._made[id(module)] = (weakref.ref(module), list(itertools.islice(own, MAX_FRAMES)), self._site(direct))

    def _assignment_of(self, module: torch.nn.Module) -> CallSite | None:
        """The call that makes a module and whose value is assigned to a name.

        The name must still be this module, or the call must be that of its class if the function with this line has returned.
        """
        ref, found, direct = self._made.get(id(module), (None, [], None))
        live = list(frames(sys._getframe(1)))
        for code, site in found if ref is not None and ref() is module else []:
            target = assigned_to(site)
            if target is not None and any(one.f_code is code and _value_of(target, one) is module for one in live):
                return site
        returned = all(one.f_code is not code for code, site in found[:1] for one in live)
        whole = direct is not None and direct.own and returned and assigned_to(direct, whole=True) is not None
        return direct if whole and ref is not None and ref() is module else None

    def _site(self, frame: FrameType | None) -> CallSite | None:
        """The call that a frame is in; None if its position is not known."""
        if frame is None:
            return None
        positions = list(frame.f_code.co_positions())
        number = frame.f_lasti // 2
        _, line, _, column = positions[number] if 0 <= number < len(positions) else (None,) * 4
        if line is None or column is None:
            return None
        file = frame.f_code.co_filename
        return CallSite(file=self._path(file), line=line, column=column, own=is_own(file))

    def _path(self, file: str) -> str:
        return original(os.path.realpath(self._folder / file))


FrameSite = tuple[CodeType, CallSite]


def constructor_caller(frame: FrameType, made: object) -> FrameType | None:
    """The frame that calls the class of an object, seen from one of its `__init__` methods."""
    outer = (one for one in frames(frame) if not _is_constructor(one, made) and not one.f_code.co_filename.startswith(STOKER))
    return next(outer, None)


def _is_constructor(frame: FrameType, made: object) -> bool:
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount or code.co_varnames else None
    return code.co_name == "__init__" and first is made


def outside_torch(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither torch's nor stoker's."""
    return next((one for one in frames(frame) if not os.path.realpath(one.f_code.co_filename).startswith((STOKER, TORCH))), None)


def assigned_to(site: CallSite, *, whole: bool = False) -> ast.expr | None:
    """The name or attribute that a statement assigns a value with this call to (with `whole`, that of the call); else None."""
    try:
        source = SourceFile.read(site.file)
        call = source.call_ending_at(site.line, site.column)
        statement = source.statement_of(call)
    except TrainError:
        return None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and (statement.value is call or not whole):
        target = statement.targets[0]
        return target if isinstance(target, ast.Name | ast.Attribute) else None
    return None


def _value_of(target: ast.expr, frame: FrameType) -> Any:
    """The value of a name or an attribute in a frame; None if there is no such name."""
    if isinstance(target, ast.Name):
        return frame.f_locals.get(target.id, frame.f_globals.get(target.id))
    return getattr(_value_of(target.value, frame), target.attr, None) if isinstance(target, ast.Attribute) else None


def why_not_gathered(loader: DataLoader[Any] | None) -> str:
    """Why a list of indices does not give a whole batch of a loader's dataset, bit for bit; empty if it does."""
    if loader is None:
        return "the batches do not come from a DataLoader"
    dataset, name = loader.dataset, type(loader.dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not len(dataset):
        return f"the samples of {name} are not found by index"
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler or type(loader.sampler) not in LOADER_CLASSES:
        return "the DataLoader has a custom sampler or no batch size"
    if loader.collate_fn is not default_collate or loader.generator is not None or hasattr(dataset, "__getitems__"):
        return "the DataLoader has a custom collate_fn or generator, or its dataset makes the batches"
    convert: Callable[[Any], Any] = default_convert  # applied to each sample by a loader with batch_size=None
    numbers = [(7919 * number) % len(dataset) for number in range(PROBES)]
    try:
        with kept_seeds():
            batch, whole = default_collate([dataset[number] for number in numbers]), convert(dataset[numbers])
    except Exception as error:  # of the user's code, which may not accept a list
        return f"{name} takes one index at a time ({type(error).__name__})"
    (some, _), (others, _) = tree_flatten(batch), tree_flatten(whole)
    tensors = all(isinstance(one, torch.Tensor) for one in (*some, *others)) and len(some) == len(others)
    return "" if tensors and same_bits(some, others) else f"a list of indices does not give a batch of {name}"
