"""A program of the user's, unchanged, in one child process: what it is -> what was measured of it -> what was found."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker import files
from stoker.diagnose.child import Answer, Request
from stoker.diagnose.measurements import Measurements
from stoker.errors import OptionError, TrainError

if TYPE_CHECKING:
    from stoker.diagnose.finding import Finding

START = "import sys; from stoker.diagnose.child import main; main(sys.argv[1:])"


def script(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    seconds: float | None = None,
) -> Finding:
    """Run a script (or, with `module`, a module by its name) until it is known what holds its training back."""
    from stoker.diagnose.conclude import conclude

    return conclude(measure_script(program, arguments, module=module, quiet=quiet, seconds=seconds))


def measure_script(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    pace: float = 1.0,
    seconds: float | None = None,
) -> Measurements:
    """What a verdict is made of. All that the program prints goes to stderr, or nowhere when `quiet`.

    `pace` is the length of stretches as a share of what they usually are: less is sooner, and less sure.
    After `seconds` of measuring, stretches that have not begun are left out.
    """
    if not module and not Path(program).is_file():
        raise OptionError(f"{program} is {'a folder' if Path(program).is_dir() else 'not there'}; expected a Python script.")
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"stoker-diagnose-{secrets.token_hex(8)}"
    words = [str(one) for one in arguments]
    request = Request(program=str(program), module=module, arguments=words, pace=pace, scratch=str(folder), seconds=seconds)
    try:
        answer = _ask(request, quiet=quiet)
    finally:
        files.remove_folder(folder)
    if answer.measurements is None:
        raise TrainError(answer.error or f"{program} gave no answer.")
    return answer.measurements


def _ask(request: Request, *, quiet: bool) -> Answer:
    reading, writing = Pipe(duplex=False)
    with reading:
        with writing:
            command = [sys.executable, "-c", START, str(writing.fileno()), msgspec.json.encode(request).decode()]
            variables = {**os.environ, "KINETO_LOG_LEVEL": "99"}  # torch's profiler would write of itself
            target = subprocess.DEVNULL if quiet else sys.stderr.fileno()
            child = subprocess.Popen(command, pass_fds=[writing.fileno()], stdout=target, stderr=target, env=variables)
        try:
            data = reading.recv_bytes()
        except EOFError:
            code = child.wait()
            raise TrainError(f"{request.program} ended with code {code} before anything was measured.") from None
        except BaseException:
            child.terminate()
            raise
        finally:
            child.wait()
    return msgspec.json.decode(data, type=Answer)
