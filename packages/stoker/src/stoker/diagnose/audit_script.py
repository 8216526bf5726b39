"""An audit of what the loaders of a script yield: the script runs as in a diagnosis until its training loop is known.

`audit_script` starts the script in a child process. Its training loader is read from its first batch on, without training, and compared
with the loaders that hold validation data (correctness.py). A script that trains nothing is run to its end; then the loader at its top
level is audited.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from stoker._progress import progress
from stoker.audit import audit
from stoker.audit.auditor import AuditReport
from stoker.diagnose.child import Child, Request, describe, run_child, sandbox_for
from stoker.diagnose.correctness import Repeatable, comparable, in_process, validation_loaders
from stoker.diagnose.session import REAL, Plan, Session
from stoker.errors import BatchError, OptionError, StokerError


class AuditRequest(Request, frozen=True, kw_only=True):
    """Which batches to read."""

    epochs: int = 1
    max_batches: int | None = None
    shuffled: bool | None = None
    ids: str | None = None
    shows_progress: bool = False


class AuditAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The report, or why there is none."""

    report: AuditReport | None = None
    num_others: int = 0  # loaders of validation data that it was compared with
    error: str | None = None


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


def is_loader(value: Any) -> bool:
    """Return whether this gives batches: an iterable with a dataset, or a generator."""
    if isinstance(value, type):
        return False
    return (hasattr(value, "dataset") and hasattr(value, "__iter__")) or inspect.isgenerator(value)


def only_loader(program: str, names: dict[str, Any]) -> Any:
    """Return the only loader among the names of a script. Raises `OptionError` if there is none, or more than one."""
    public = {id(value): name for name, value in names.items() if not name.startswith("_") and is_loader(value)}
    loaders = list(public.values())
    if not loaders:
        raise OptionError(
            f"{program} trained nothing and has no loader at its top level. Name an iterable of batches, or a function that returns one: "
            f"{program}:NAME."
        )
    if len(loaders) > 1:
        raise OptionError(f"{program} has {len(loaders)} loaders: {', '.join(loaders)}. Choose one: {program}:{loaders[0]}")
    return names[loaders[0]]


def _until_the_loop_is_known(session: Session) -> Plan:
    """The plan of a session that measures nothing."""
    yield REAL


class AuditChild(Child):
    """The child process that runs the script."""

    answer_type = AuditAnswer

    def __init__(self, request: AuditRequest, connection: Connection) -> None:
        super().__init__(request, connection)
        self._audit_request = request
        self.session = Session(_until_the_loop_is_known, on_done=self._done)

    def _answer(self, failure: str | None) -> AuditAnswer:
        request = self._audit_request
        if failure is not None:
            return AuditAnswer(error=f"{failure}.")
        loader, others = self._loaders()
        apart = Repeatable(lambda: itertools.chain.from_iterable(others)) if others else None
        with progress(unit="samples", enabled=request.shows_progress) as show, _told(request.program):
            report = audit(
                loader,
                apart_from=apart,
                epochs=request.epochs,
                max_batches=request.max_batches,
                shuffled=request.shuffled,
                ids=request.ids,
                progress=show,
            )
        return AuditAnswer(report=report, num_others=len(others))

    def _loaders(self) -> tuple[Any, list[Any]]:
        """Return the loader of the training, and those of validation data."""
        program, sources = self._audit_request.program, self.session.sources
        source = sources.training
        if source is None:
            return only_loader(program, vars(sys.modules["__main__"])), []
        loader = source.loader if source.loader is not None else source.iterable
        if not source.gives_batches or loader is None or isinstance(loader, Iterator):
            raise OptionError(
                f"the training loop ({source.place}) makes its batches itself, or takes them from an iterator, which cannot be read again. "
                f"Name an iterable of batches, or a function that returns one: {program}:NAME."
            )
        others = [in_process(other) for other in validation_loaders(loader, sources)]
        return in_process(loader), comparable(in_process(loader), others)


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
