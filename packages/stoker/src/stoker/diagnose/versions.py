"""The experiments of a diagnosis on a version of a program, in a run of the engine (`stoker.compare`): why one version is faster.

`shares_of` runs a version until its bottleneck is known, and returns the share of a step that each cause takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from stoker.compare.observed import RunRequest
from stoker.compare.sides import Version, prepared
from stoker.diagnose.measurements import Measurements
from stoker.diagnose.rewriting import rewrite_imports, run_main
from stoker.diagnose.rule import conclude
from stoker.diagnose.session import Session
from stoker.diagnose.windows import measure_all
from stoker.errors import TrainError

TIME_LIMIT = 120.0  # of a run
LISTED = 0.05  # of a step, from which on a cause is listed


class DiagnosedProgram:
    """The extension of a run that measures its steps as a diagnosis does, and ends it."""

    def __init__(self, options: str, done: Callable[[], None]) -> None:
        self._session = Session(measure_all, on_done=done)

    def run(self, request: RunRequest) -> None:
        """Run the program as the main module."""
        self._session.install()
        rewrite_imports(self._session.sources)
        run_main(request.program, request.arguments, self._session.sources, module=request.module)

    def answer(self) -> bytes:
        """Return the measurements. Raises `TrainError` if no step was measured."""
        self._session.remove()
        if self._session.failure is not None:
            raise TrainError(f"could not be measured: {self._session.failure}")
        return msgspec.msgpack.encode(self._session.measurements())


def shares_of(version: Version, arguments: Sequence[str], *, quiet: bool = True) -> dict[str, float]:
    """Return the share of a step by cause. Raises `TrainError` if the version fails, or ends before enough is measured."""
    diagnosed = replace(version, extension=f"{__name__}:{DiagnosedProgram.__name__}")
    with prepared(diagnosed) as side:
        run = side.run([str(word) for word in arguments], quiet=quiet, hooks=False, time_limit=TIME_LIMIT)
    finding = conclude(msgspec.msgpack.decode(run.answer, type=Measurements))
    causes = finding.causes or ([finding.likely] if finding.likely is not None else [])
    return {cause.verdict: cause.share for cause in causes if cause.share >= LISTED}
