"""The calls that a patch edits, found while the program runs.

`SiteFinder` is a fix that changes nothing. It records which calls in the user's files make the loader, the optimizers, the model and the
settings of a framework, whatever names these have there: a frame knows the exact position of the call that it is in.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.sampler import RandomSampler

from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.frameworks import CLASSES, framework_of
from stoker.diagnose.hooks import BeforeForward, frames, is_own
from stoker.diagnose.loops import OwnLoader
from stoker.diagnose.sandbox_landlock import original
from stoker.train.optimizer import FUSED

STOKER = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
MAX_FRAMES = 8


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
    calls: dict[str, list[CallSite]] = {}
    """By what a call does: `loader` of the training loop; `optimizers` that could be fused; `copies` of batches to the GPU that the host
    waits for; `forward`, of the model in training; and by the classes of frameworks."""
    models: list[list[CallSite]] = []  # for each model the calls that are running when it is made, the innermost first
    model_kind: str = ""  # the class of the last one, with its module
    device: str = "cpu"
    framework: str | None = None  # that runs the loop
    loader_kind: str = ""  # the class of the loader
    workers: int = 0
    persistent: bool = False
    pinned: bool = False
    shuffles: bool = False
    indexed: bool = True  # whether its samples are found by index


class SiteFinder(Fix):
    """Records the calls that patches edit."""

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self.used = True
        self._folder = Path.cwd()  # file names may be relative to it, and the program may change it
        self._loaders: list[tuple[weakref.ref[Any], Any, CallSite | None]] = []  # with their datasets
        self._made: dict[
            int, tuple[weakref.ref[Any], list[CallSite]]
        ] = {}  # by the ids of modules, which may have a hash of their own
        self._optimizers: weakref.WeakKeyDictionary[Any, CallSite | None] = weakref.WeakKeyDictionary()
        self._calls: dict[str, list[CallSite]] = {}
        self._models: list[list[CallSite]] = []
        self._facts: dict[str, Any] = {}

    def install(self) -> None:
        """Watch the constructors and copies of torch, and the constructors of frameworks."""
        self._after(DataLoader, "__init__", self._loader_made)
        self._after(Optimizer, "__init__", self._optimizer_made)
        self._after(torch.nn.Module, "__init__", self._module_made)
        if torch.cuda.is_available():
            for name in ("to", "cuda"):
                self._after(torch.Tensor, name, self._copied)
        self._undo.callback(register_optimizer_step_pre_hook(self._stepped).remove)
        for module in filter(None, map(sys.modules.get, CLASSES)):
            self._framework_imported(module)
        imports = _AfterImport(self._framework_imported)
        sys.meta_path.insert(0, imports)
        self._undo.callback(sys.meta_path.remove, imports)

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Note the calls that made the models, and watch the calls of the models."""
        for module in roots:
            weight = next((weight for weight in module.parameters() if weight.requires_grad), None)
            if weight is not None:
                self._facts |= {"device": weight.device.type, "model_kind": f"{type(module).__module__}.{type(module).__name__}"}
                ref, made = self._made.get(id(module), (None, []))
                made = made if ref is not None and ref() is module else []
                self._models += [made] if made not in self._models else []
                self._undo.callback(module.register_forward_pre_hook(BeforeForward(self._called)).remove)

    def sites(self, loader: DataLoader[Any] | None) -> EditSites:
        """All calls found; `loader` is that of the training loop."""
        imported = [getattr(module, "__dict__", {}).get("__loader__") for module in list(sys.modules.values())]
        calls, facts = dict(self._calls), dict(self._facts)
        if loader is not None:
            made = [(ref() is loader, site) for ref, data, site in self._loaders if data is loader.dataset and site is not None]
            # Accelerate makes another loader of the same dataset: then it is the user's that is edited.
            exact, site = max(made, key=lambda pair: (pair[1].own, pair[0]), default=(True, None))
            calls["loader"] = [site] if site is not None else []
            facts |= {
                "loader_kind": type(loader).__name__ if exact else "DataLoader",
                "workers": loader.num_workers,
                "persistent": loader.persistent_workers,
                "pinned": loader.pin_memory,
                "shuffles": isinstance(loader.sampler, RandomSampler),
                "indexed": not isinstance(loader.dataset, IterableDataset),
            }
        return EditSites(
            main=self._path(str(getattr(sys.modules["__main__"], "__file__", ""))),
            files=sorted({self._path(found.path) for found in imported if isinstance(found, OwnLoader)}),
            calls=calls,
            models=self._models,
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
        known = self._calls.setdefault(kind, [])
        if site is not None and site not in known:
            known.append(site)

    def _framework_imported(self, module: ModuleType) -> None:
        name = CLASSES[module.__name__]
        owner = getattr(module, name)
        # A dataclass that inherits from a dataclass has a constructor of its own, and calls this method.
        method = "__post_init__" if hasattr(owner, "__post_init__") else "__init__"
        self._after(owner, method, lambda frame, made, *_: self._add(name, self._site(constructor_caller(frame, made))))

    def _loader_made(self, frame: FrameType, loader: Any, *_: Any) -> None:
        self._loaders.append((weakref.ref(loader), loader.dataset, self._site(constructor_caller(frame, loader))))

    def _optimizer_made(self, frame: FrameType, optimizer: Any, *_: Any) -> None:
        self._optimizers[optimizer] = self._site(constructor_caller(frame, optimizer))

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if "framework" not in self._facts:
            self._facts["framework"] = framework_of(frames(sys._getframe(1)))
        site = self._optimizers.pop(optimizer, None)
        if type(optimizer) in FUSED and not optimizer.param_groups[0].get("fused"):
            self._add("optimizers", site)

    def _copied(self, frame: FrameType, tensor: torch.Tensor, out: Any, args: Any, kwargs: Any) -> None:
        if tensor.device.type == "cpu" and out.device.type == "cuda" and is_own(frame.f_code.co_filename):
            self._add("copies", self._site(frame))

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self._add("forward", self._site(outside_torch(sys._getframe(1))))

    def _module_made(self, frame: FrameType, module: Any, *_: Any) -> None:
        own = (caller for caller in frames(constructor_caller(frame, module)) if is_own(caller.f_code.co_filename))
        sites = map(self._site, itertools.islice(own, MAX_FRAMES))
        self._made[id(module)] = weakref.ref(module), [site for site in sites if site is not None]

    def _site(self, frame: FrameType | None) -> CallSite | None:
        """The call that a frame is in; None if its position is not known."""
        positions = inspect.getframeinfo(frame, context=0).positions if frame is not None else None
        if frame is None or positions is None or positions.end_lineno is None or positions.end_col_offset is None:
            return None
        file = frame.f_code.co_filename
        return CallSite(file=self._path(file), line=positions.end_lineno, column=positions.end_col_offset, own=is_own(file))

    def _path(self, file: str) -> str:
        return original(os.path.realpath(self._folder / file))


class _AfterImport(MetaPathFinder):
    """Calls a function with each module of a framework after its import."""

    def __init__(self, call: Callable[[ModuleType], None]) -> None:
        self._call = call

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module as the next finder has it; None for other modules."""
        spec = PathFinder.find_spec(name, path, target) if name in CLASSES else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._call(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def constructor_caller(frame: FrameType, made: object) -> FrameType | None:
    """The frame that calls the class of an object, seen from one of its `__init__` methods."""
    outer = (caller for caller in frames(frame) if not _is_constructor(caller, made))
    return next((caller for caller in outer if not caller.f_code.co_filename.startswith(STOKER)), None)


def _is_constructor(frame: FrameType, made: object) -> bool:
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
    return code.co_name in ("__init__", "__post_init__") and first is made


def outside_torch(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither torch's nor stoker's."""
    return next(
        (caller for caller in frames(frame) if not os.path.realpath(caller.f_code.co_filename).startswith((STOKER, TORCH))), None
    )
