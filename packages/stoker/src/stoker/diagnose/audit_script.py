"""An audit of what the loaders of a script yield: the script runs as in a diagnosis until its training loop is known.

`audit_script` starts the script in a child process. Its training loader is read from its first batch on, without training, and compared
with the loaders that hold validation data (correctness.py). A script that trains nothing is run to its end; then the loader at its top
level is audited. Where the request names something of the script, only its top level runs, and the names are looked up there.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import msgspec

from stoker._progress import progress
from stoker.audit import audit
from stoker.audit.auditor import AuditReport
from stoker.diagnose.child import Answer, Child, Request, describe, run_child, sandbox_for
from stoker.diagnose.correctness import joined, with_validation
from stoker.diagnose.session import REAL, Plan, Session
from stoker.errors import BatchError, OptionError, StokerError

TOP_LEVEL = "__stoker_check__"
"""The value of `__name__` in a script of which only the top level runs."""
MAX_NAMES = 12


class AuditRequest(Request, frozen=True, kw_only=True):
    """Which batches to read."""

    name: str | None = None  # of an iterable of batches in the script, or a function that returns one
    reference: str | None = None
    apart_from: str | None = None

    epochs: int = 1
    max_batches: int | None = None
    shuffled: bool | None = None
    ids: str | None = None
    shows_progress: bool = False


class AuditAnswer(Answer, frozen=True, kw_only=True):
    """The report, or why there is none."""

    report: AuditReport | None = None
    num_others: int = 0  # loaders of validation data that it was compared with


def audit_script(
    program: str | Path, arguments: Sequence[str] = (), *, module: bool = False, quiet: bool = False, **options: Any
) -> AuditAnswer:
    """Run a script until its training loop is known, and audit its batches; `options` are fields of `AuditRequest`.

    Raises:
        OptionError: There is no such script.
        BatchError: The script failed, or has no loader that can be read again.
    """
    with sandbox_for(program, module=module) as sandbox:
        request = AuditRequest(program=str(program), module=module, arguments=list(map(str, arguments)), **options)
        answer = run_child(sandbox, request, AuditAnswer, quiet=quiet, main=__name__)
    if answer.report is None:
        raise BatchError(answer.error or f"{program} gave no answer.")
    return answer


def _is_loader(value: Any) -> bool:
    """Return whether this gives batches: an iterable with a dataset, or a generator."""
    if isinstance(value, type):
        return False
    return (hasattr(value, "dataset") and hasattr(value, "__iter__")) or inspect.isgenerator(value)


@dataclass(frozen=True)
class Names:
    """The names at the top level of a script that has run."""

    program: str
    values: Mapping[str, Any]

    @property
    def _public(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.values.items() if not name.startswith("_") and not isinstance(value, ModuleType)
        }

    def only_loader(self) -> Any:
        """Return the only loader. Raises `OptionError` if there is none, or more than one."""
        loaders = list({id(value): name for name, value in self._public.items() if _is_loader(value)}.values())
        if len(loaders) == 1:
            return self.values[loaders[0]]
        if loaders:
            raise OptionError(f"it has {len(loaders)} loaders: {', '.join(loaders)}. Choose one: {self.program}:{loaders[0]}")
        functions = [name for name, value in self._public.items() if isinstance(value, FunctionType) and _needs_nothing(value)]
        hint = f" Functions that could: {', '.join(functions[:MAX_NAMES])}." if functions else ""
        raise OptionError(
            "it trained nothing and has no loader at its top level. Name an iterable of batches, or a function that returns one: "
            f"{self.program}:NAME.{hint}"
        )

    def get(self, name: str) -> Any:
        """Return the value of a name. Raises `OptionError` if there is none, or if it is a function that needs arguments."""
        if name not in self.values:
            raise OptionError(
                f"it has no {name!r} at its top level; it has {', '.join(list(self._public)[:MAX_NAMES]) or 'no names'}."
            )
        value = self.values[name]
        if isinstance(value, FunctionType) and not _needs_nothing(value):
            raise OptionError(f"{name} needs arguments; expected a function without required arguments.")
        return value

    def data(self, name: str | None) -> Any:
        """Return the value of a name, or what it returns if it is a function; None for None."""
        value = None if name is None else self.get(name)
        return value() if isinstance(value, FunctionType) else value


def _needs_nothing(function: FunctionType) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _until_the_loop_is_known(session: Session) -> Plan:
    """The plan of a session that measures nothing."""
    yield REAL


class _Unwatched(Session):
    """A session that does not watch the program."""

    def install(self) -> None:
        """Install nothing."""


class AuditChild(Child):
    """The child process that runs the script."""

    answer_type = AuditAnswer

    def __init__(self, request: AuditRequest, connection: Connection) -> None:
        super().__init__(request, connection)
        self._audit_request = request
        self._uses_names = any((request.name, request.reference, request.apart_from))
        self.main_name = TOP_LEVEL if self._uses_names else "__main__"
        self.session = (_Unwatched if self._uses_names else Session)(_until_the_loop_is_known, on_done=self._done)

    def _answer(self, failure: str | None) -> AuditAnswer:
        request = self._audit_request
        if failure is not None:
            return AuditAnswer(error=f"{failure}.")
        names, num_others = Names(request.program, vars(sys.modules["__main__"])), 0
        with progress(unit="samples", enabled=request.shows_progress) as show, _told(request.program):
            if self._uses_names:
                batches = names.get(request.name) if request.name is not None else names.only_loader()
                apart = names.data(request.apart_from)
            else:
                batches, others = self._loaders(names)
                num_others = len(others)
                apart = joined(others)
            report = audit(
                batches,
                reference=names.data(request.reference),
                apart_from=apart,
                epochs=request.epochs,
                max_batches=request.max_batches,
                shuffled=request.shuffled,
                ids=request.ids,
                progress=show,
            )
        return AuditAnswer(report=report, num_others=num_others)

    def _loaders(self, names: Names) -> tuple[Any, list[Any]]:
        """Return the loader of the training, and those of validation data."""
        program, sources = self._audit_request.program, self.session.sources
        source = sources.training
        if source is None:
            return names.only_loader(), []
        loader = source.loader if source.loader is not None else source.iterable
        if not source.gives_batches or loader is None or isinstance(loader, Iterator):
            raise OptionError(
                f"the training loop ({source.place}) makes its batches itself, or takes them from an iterator, which cannot be read again. "
                f"Name an iterable of batches, or a function that returns one: {program}:NAME."
            )
        return with_validation(loader, sources)


@contextlib.contextmanager
def _told(program: str) -> Iterator[None]:
    """Give an error of the user's loader the line that raised it."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        raise BatchError(f"{program}{describe(error)}") from error


def main(arguments: list[str]) -> NoReturn:
    """Run the request on the command line."""
    connection = Connection(int(arguments[0]), readable=False)
    AuditChild(msgspec.json.decode(arguments[1], type=AuditRequest), connection).run()
