"""Runs a script unchanged and watches its steps: `stoker watch train.py`.

A step ends with a step of the optimizer, and waits for its batch in the `__next__` of a DataLoader. Two hooks in torch time both, and
nothing else of the script is changed: it runs in this process, with its own arguments, output and exit code. Where it has a watch of
its own, as each `stoker.Trainer` has, the hooks step aside and that watch reports.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from stoker._clock import now_ns
from stoker._lazy import import_first
from stoker.errors import OptionError
from stoker.watch import loop as watches
from stoker.watch.cause import Slowdown
from stoker.watch.detector import BLOCK
from stoker.watch.loop import Watch

OTHER_STEPS = 64  # of another optimizer, after which that one is watched: the script has begun another phase


class ScriptHooks:
    """Hooks in torch that call the watch after each step."""

    def __init__(self, watch: Watch[Any]) -> None:
        self._watch = watch
        self._wait_ns = 0
        self._optimizer: Any = None
        self._other_steps = 0
        self._watched_elsewhere = 0
        self._undo = ExitStack()

    def install(self) -> None:
        """Install the hooks."""
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import dataloader

        self._watched_elsewhere = watches.steps_of_others(self._watch)
        self._undo.callback(register_optimizer_step_post_hook(self._after_step).remove)
        kind: Any = dataloader._BaseDataLoaderIter
        original = kind.__next__

        @functools.wraps(original)
        def timed(iterator: Any) -> Any:
            begin = now_ns()
            try:
                return original(iterator)
            finally:
                self._wait_ns += now_ns() - begin

        self._undo.callback(setattr, kind, "__next__", original)
        kind.__next__ = timed

    def remove(self) -> None:
        """Remove the hooks: torch is as before."""
        self._undo.close()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer is not self._optimizer:
            # Of several optimizers, as of a GAN, one counts.
            self._other_steps += 1
            if self._optimizer is not None and self._other_steps < OTHER_STEPS:
                return
            # Its first step has begun before it was known.
            self._optimizer, self._wait_ns = optimizer, 0
            self._watch.begin()
            return
        self._other_steps = 0
        waited, self._wait_ns = self._wait_ns, 0
        self._watch.step(waited)
        if self._watch.steps % BLOCK == 0 and watches.steps_of_others(self._watch) > self._watched_elsewhere:
            self.remove()


def run_script(
    program: str, arguments: Sequence[str], *, module: bool = False, report: Callable[[str, Slowdown | None], object]
) -> None:
    """Run a script to its end, and report slowdowns.

    Args:
        program: A path, or the name of a module.
        arguments: Those of the script.
        module: Whether `program` is the name of a module.
        report: Called with a line per slowdown, and the slowdown; with None where steps are as fast as before.

    Raises:
        OptionError: The script does not exist.
        SystemExit: The script has ended with an exit code, or with an error, whose traceback was printed.
    """
    loader, spec = _find(program, module=module)
    main = ModuleType("__main__")
    main.__file__, main.__loader__ = loader.path, loader
    main.__spec__, main.__package__ = spec, spec.parent if spec is not None else None
    main.__dict__.update(__builtins__=builtins, __cached__=None)
    hooks = ScriptHooks(Watch(None, None))
    hooks.install()
    watches.listener = report
    sys.argv, sys.modules["__main__"] = [loader.path, *arguments], main
    if not module:
        import_first(Path(program).resolve().parent)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # as in plain Python
    try:
        loader.exec_module(main)
    except Exception as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename != loader.path:
            own = own.tb_next
        sys.excepthook(type(error), error.with_traceback(own or error.__traceback__), error.__traceback__)
        raise SystemExit(1) from None
    finally:
        hooks.remove()
        watches.listener = None


class _MainLoader(SourceFileLoader):
    """Loads the main module; as in plain Python, its bytecode is not kept."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _find(program: str, *, module: bool) -> tuple[_MainLoader, ModuleSpec | None]:
    if not module:
        if not Path(program).is_file():
            raise OptionError(f"{program} is not a file. Give the path of a script or of the folder of a run.", path=program)
        if not program.endswith(".py"):
            raise OptionError(f"{program} is not a script; expected a file that ends in '.py'.", path=program)
        return _MainLoader("__main__", program), None
    import_first(Path.cwd())
    try:
        spec = importlib.util.find_spec(program)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{program}.__main__")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise OptionError(f"there is no module {program!r} that can be run from {Path.cwd()}.", parameter="program")
    return _MainLoader("__main__", spec.origin), spec
