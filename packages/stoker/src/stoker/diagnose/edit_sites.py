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
from typing import Any, NamedTuple

import msgspec
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.sampler import RandomSampler

from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.frameworks import CLASSES, framework_of
from stoker.diagnose.hooks import frames, is_own
from stoker.diagnose.rewriting import OwnLoader
from stoker.sandbox import original
from stoker.train.optimizer import FUSED

STOKER = str(Path(__file__).resolve().parents[1]) + os.sep
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
    waits for; and by the classes of frameworks."""
    models: list[list[CallSite]] = []  # for each model the calls that are running when it is made, the innermost first
    model_kind: str = ""  # the class of the last one, with its module
    framework: str | None = None  # that runs the loop
    loader_kind: str = ""  # the class of the loader
    workers: int = 0
    persistent: bool = False
    pinned: bool = False
    shuffles: bool = False
    indexed: bool = True  # whether its samples are found by index


class Made(NamedTuple):
    """An object, and the calls that were running when it was made."""

    ref: weakref.ref[Any]
    dataset: Any  # of a loader, which a library may replace by another one
    outer: list[CallSite]  # the innermost first

    @property
    def site(self) -> list[CallSite]:
        """The call that made it; empty if its position is not known."""
        return self.outer[:1]


class SiteFinder(Fix):
    """Records the calls that patches edit."""

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self.used = True
        self._folder = Path.cwd()  # file names may be relative to it, and the program may change it
        self._made: dict[int, Made] = {}  # by ids, as modules may have a hash of their own
        self._calls: dict[str, list[CallSite]] = {}
        self._stepped: dict[int, Optimizer] = {}
        self._roots: list[torch.nn.Module] = []
        self._framework: str | None = None

    def install(self) -> None:
        """Watch the constructors and copies of torch, and the constructors of frameworks."""
        for owner in (DataLoader, Optimizer, torch.nn.Module):
            self._after(owner, "__init__", self._note)
        if torch.cuda.is_available():
            for name in ("to", "cuda"):
                self._after(torch.Tensor, name, self._copied)
        self._undo.callback(register_optimizer_step_pre_hook(self._step).remove)
        for module in filter(None, map(sys.modules.get, CLASSES)):
            self._framework_imported(module)
        imports = _AfterImport(self._framework_imported)
        sys.meta_path.insert(0, imports)
        self._undo.callback(sys.meta_path.remove, imports)

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Note the models."""
        self._roots += [module for module in roots if any(weight.requires_grad for weight in module.parameters())]

    def sites(self, loader: DataLoader[Any] | None) -> EditSites:
        """Return all calls to edit; `loader` is that of the training loop."""
        calls, facts = dict(self._calls), dict[str, Any]()
        unfused = [step for step in self._stepped.values() if type(step) in FUSED and not step.param_groups[0].get("fused")]
        calls["optimizers"] = [site for optimizer in unfused for site in self._made_of(optimizer).site]
        if loader is not None:
            # Accelerate makes another loader of the same dataset: then it is the user's that is edited.
            same = [made for made in self._made.values() if made.dataset is loader.dataset and made.outer]
            made = max(same, key=lambda made: (made.outer[0].own, made.ref() is loader), default=self._made_of(loader))
            calls["loader"] = made.site
            facts = {
                "loader_kind": type(loader).__name__ if made.ref() is loader else "DataLoader",
                "workers": loader.num_workers,
                "persistent": loader.persistent_workers,
                "pinned": loader.pin_memory,
                "shuffles": isinstance(loader.sampler, RandomSampler),
                "indexed": not isinstance(loader.dataset, IterableDataset),
            }
        models = [[site for site in self._made_of(module).outer if site.own] for module in self._roots]
        imported = [getattr(module, "__dict__", {}).get("__loader__") for module in list(sys.modules.values())]
        return EditSites(
            main=self._path(str(getattr(sys.modules["__main__"], "__file__", ""))),
            files=sorted({self._path(source.path) for source in imported if isinstance(source, OwnLoader)}),
            calls={kind: list(dict.fromkeys(sites)) for kind, sites in calls.items()},
            models=[made for number, made in enumerate(models) if made not in models[:number]],
            model_kind=f"{type(self._roots[-1]).__module__}.{type(self._roots[-1]).__name__}" if self._roots else "",
            framework=self._framework,
            **facts,
        )

    def _after(self, owner: Any, name: str, see: Callable[[FrameType, Any, Any], None]) -> None:
        """Call `see` with the calling frame, the object and the result after each call of a method."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(self_: Any, *args: Any, **kwargs: Any) -> Any:
            out = original(self_, *args, **kwargs)
            see(sys._getframe(1), self_, out)
            return out

        self.replace(owner, name, watched)

    def _note(self, frame: FrameType, made: Any, _: Any) -> None:
        callers = list(frames(constructor_caller(frame, made)))
        own = itertools.islice((caller for caller in callers[1:] if is_own(caller.f_code.co_filename)), MAX_FRAMES)
        sites = [site for site in map(self._site, [*callers[:1], *own]) if site is not None]
        self._made[id(made)] = Made(weakref.ref(made), made.dataset if isinstance(made, DataLoader) else None, sites)

    def _made_of(self, value: Any) -> Made:
        made = self._made.get(id(value))
        return made if made is not None and made.ref() is value else Made(weakref.ref(value), None, [])

    def _framework_imported(self, module: ModuleType) -> None:
        name = CLASSES[module.__name__]
        owner = getattr(module, name)

        def see(frame: FrameType, made: Any, _: Any) -> None:
            site = self._site(constructor_caller(frame, made))
            self._calls.setdefault(name, []).extend([site] if site is not None else [])

        # A dataclass that inherits from a dataclass has a constructor of its own, and calls this method.
        self._after(owner, "__post_init__" if hasattr(owner, "__post_init__") else "__init__", see)

    def _step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._stepped:
            self._framework = framework_of(frames(sys._getframe(1)))
        self._stepped.setdefault(id(optimizer), optimizer)

    def _copied(self, frame: FrameType, tensor: torch.Tensor, out: torch.Tensor) -> None:
        if tensor.device.type == "cpu" and out.device.type == "cuda" and is_own(frame.f_code.co_filename):
            site = self._site(frame)
            self._calls.setdefault("copies", []).extend([site] if site is not None else [])

    def _site(self, frame: FrameType | None) -> CallSite | None:
        """Return the call that a frame is in; None if its position is not known."""
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
