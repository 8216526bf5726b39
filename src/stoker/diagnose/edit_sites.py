"""Finds the lines that a patch would edit, while the program runs: where its loader, optimizers and model are made and used.

`Scout` is a fix that changes nothing. It sees which call of the user's makes an object, whatever the call is named there, and a frame
knows the exact position of the call that it is in. What a library makes has no place of its own in the user's files.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import weakref
from collections.abc import Callable, Sequence
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
from stoker.diagnose.hooks import BeforeForward, is_own
from stoker.diagnose.rewrite import OwnLoader
from stoker.diagnose.source_edits import SourceFile
from stoker.errors import TrainError
from stoker.train.optimizer import FUSED

STOKER = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
MAX_FRAMES = 8
PROBES = 5
LARGE_TABLE = 4096  # rows of an embedding from which on sparse gradients may gain
LOADER_CLASSES = (RandomSampler, SequentialSampler)


class CallSite(msgspec.Struct, frozen=True, kw_only=True):
    """A call, by the end of its closing parenthesis."""

    file: str
    line: int
    column: int
    own: bool  # whether the file is the user's


class EditSites(msgspec.Struct, frozen=True, kw_only=True):
    """What the program does, and where; lists are empty where it does not."""

    main: str  # the file that is run
    files: list[str] = []  # all files of the user's that were imported
    loader: list[CallSite] = []  # of the training loop
    loader_kind: str = ""  # its class
    workers: int = 0
    persistent: bool = False
    pinned: bool = False
    gathers: str = ""  # why a list of indices does not give a whole batch of its dataset; empty if it does
    shuffles: bool = False
    indexed: bool = True  # whether its samples are found by index
    optimizers: list[CallSite] = []  # that could be fused
    copies: list[CallSite] = []  # copies of batches to the GPU that the host waits for
    zeroing: list[CallSite] = []  # calls of zero_grad that keep gradients
    embeddings: list[CallSite] = []  # large tables with dense gradients
    model: list[CallSite] = []  # calls that make the model, each the value of an assignment
    model_kind: str = ""  # the class of the last one, with its module
    forward: list[CallSite] = []  # calls of the model in training
    device: str = "cpu"


class Scout(Fix):
    """Records the calls that patches edit."""

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self.used = True
        self._folder = Path.cwd()  # the program may leave it, and names of files may be relative to it
        self._loaders: list[tuple[weakref.ref[Any], CallSite | None]] = []
        self._made: dict[int, tuple[weakref.ref[Any], list[FrameSite]]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], CallSite | None]] = {}
        self._found: dict[str, list[CallSite]] = {}
        self._device, self._model_kind = "cpu", ""

    def install(self) -> None:
        """Watch what is made, copied and set to zero."""
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
        """Find the lines that make the models, and watch the calls of these."""
        for module in roots:
            weight = next((one for one in module.parameters() if one.requires_grad), None)
            if weight is not None:
                self._device, self._model_kind = weight.device.type, f"{type(module).__module__}.{type(module).__name__}"
                self._add("model", self._assignment_of(module))
                self._undo.callback(module.register_forward_pre_hook(BeforeForward(self._called)).remove)

    def sites(self, loader: DataLoader[Any] | None) -> EditSites:
        """Everything found; `loader` is that of the training loop."""
        loaders = [getattr(one, "__dict__", {}).get("__loader__") for one in list(sys.modules.values())]
        made = next((site for ref, site in self._loaders if loader is not None and ref() is loader), None)
        return EditSites(
            main=self._path(str(getattr(sys.modules["__main__"], "__file__", ""))),
            files=sorted({self._path(one.path) for one in loaders if isinstance(one, OwnLoader)}),
            loader=[made] if made is not None else [],
            loader_kind=type(loader).__name__ if loader is not None else "",
            workers=loader.num_workers if loader is not None else 0,
            persistent=bool(loader is not None and loader.persistent_workers),
            pinned=bool(loader is not None and loader.pin_memory),
            gathers=why_not_gathered(loader),
            shuffles=loader is not None and isinstance(loader.sampler, RandomSampler),
            indexed=loader is not None and not isinstance(loader.dataset, IterableDataset),
            optimizers=self._found.get("optimizers", []),
            copies=self._found.get("copies", []),
            zeroing=self._found.get("zeroing", []),
            embeddings=self._found.get("embeddings", []),
            model=self._found.get("model", []),
            model_kind=self._model_kind,
            forward=self._found.get("forward", []),
            device=self._device,
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
        caller = constructor_caller(frame, module)
        found: list[FrameSite] = []
        while caller is not None and len(found) < MAX_FRAMES:
            site = self._site(caller)
            if site is not None and site.own:
                found.append((caller.f_code, site))
            caller = caller.f_back
        self._made[id(module)] = (weakref.ref(module), found)

    def _assignment_of(self, module: torch.nn.Module) -> CallSite | None:
        """The call that makes a module and whose value is assigned to a name that still is this module."""
        ref, found = self._made.get(id(module), (None, []))
        live = list(_frames(sys._getframe(1)))
        for code, site in found if ref is not None and ref() is module else []:
            target = assigned_to(site)
            frames = [one for one in live if one.f_code is code]
            if target is not None and any(_value_of(target, one) is module for one in frames):
                return site
        return None

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
        return os.path.realpath(self._folder / file)


FrameSite = tuple[CodeType, CallSite]


def constructor_caller(frame: FrameType, made: object) -> FrameType | None:
    """The frame that calls the class of an object, seen from one of its `__init__` methods."""
    found: FrameType | None = frame
    while found is not None and (_is_constructor(found, made) or found.f_code.co_filename.startswith(STOKER)):
        found = found.f_back
    return found


def _is_constructor(frame: FrameType, made: object) -> bool:
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount or code.co_varnames else None
    return code.co_name == "__init__" and first is made


def outside_torch(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither torch's nor stoker's."""
    while frame is not None and os.path.realpath(frame.f_code.co_filename).startswith((STOKER, TORCH)):
        frame = frame.f_back
    return frame


def _frames(frame: FrameType | None) -> Any:
    while frame is not None:
        yield frame
        frame = frame.f_back


def assigned_to(site: CallSite) -> ast.expr | None:
    """The name or attribute that a statement assigns the value of a call to; None where it does anything else."""
    try:
        source = SourceFile.read(site.file)
        statement = source.statement_of(source.call_ending_at(site.line, site.column))
    except TrainError:
        return None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target if isinstance(target, ast.Name | ast.Attribute) else None
    return None


def _value_of(target: ast.expr, frame: FrameType) -> Any:
    """What a name or an attribute is in a frame; None if it is nothing there."""
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
        return "the DataLoader has a sampler of its own"
    if loader.collate_fn is not default_collate or loader.generator is not None or hasattr(dataset, "__getitems__"):
        return "the DataLoader makes its batches in a way of its own"
    convert: Callable[[Any], Any] = default_convert  # what a loader without batches of its own makes of a sample
    numbers = [(7919 * number) % len(dataset) for number in range(PROBES)]
    try:
        with kept_seeds():
            batch, whole = default_collate([dataset[number] for number in numbers]), convert(dataset[numbers])
    except Exception as error:  # of the user's own code, for a list that it did not expect
        return f"{name} takes one index at a time ({type(error).__name__})"
    (some, _), (others, _) = tree_flatten(batch), tree_flatten(whole)
    tensors = all(isinstance(one, torch.Tensor) for one in (*some, *others)) and len(some) == len(others)
    return "" if tensors and same_bits(some, others) else f"a list of indices does not give a batch of {name}"
