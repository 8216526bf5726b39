"""The evaluator: a command of the user that judges a checkpoint, in a process and a sandbox of its own.

It always runs from the files of BEFORE, so an edit of it in AFTER judges nothing. `evaluate` starts it and returns its metric with the
hashes of all files of the user that it ran and read, and the fingerprints of the samples it evaluated. `main` is the other side.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from stoker.compare.checkpoint import code_in
from stoker.compare.child import note_reads, received, run_in_sandbox, run_main, run_to_end, write_version
from stoker.compare.observed import INSTALLED, RunRequest, SeenSamples
from stoker.errors import OptionError, TrainError
from stoker.sandbox import Sandbox, enter, mirrored, original

PLACE = "{checkpoint}"
PYTHON = re.compile(r"python[0-9.]*")
ELSEWHERE = ("/dev/", "/proc/", "/sys/", "/etc/", "/usr/", "/lib", "/bin/", "/sbin/", "/run/")
"""Folders of the system: what is read there is not the user's."""
_exit = os._exit


class EvaluationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of a checkpoint."""

    words: list[str]
    """The command, with the path of the checkpoint."""
    checkpoint: str
    version: RunRequest
    """The files of BEFORE."""


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluator did."""

    error: str | None = None
    files: dict[str, str] = {}
    """SHA-256 of each file of the user that it ran or read."""
    modules: list[str] = []
    """Those of them that are its code."""
    rows: SeenSamples = SeenSamples()
    output: str = ""


def words_of(command: str) -> list[str]:
    """Return the words of a command.

    Raises:
        OptionError: It is empty, or the checkpoint has no place in it.
    """
    words = shlex.split(command)
    if not words or not any(PLACE in word for word in words):
        raise OptionError(
            f"evaluate is {command!r}; expected a command with {PLACE}, like 'python evaluate.py {PLACE}'.", parameter="evaluate"
        )
    return words


def evaluate(words: Sequence[str], checkpoint: Path, version: RunRequest, *, time_limit: float | None = None) -> Evaluated:
    """Judge a checkpoint. Raises `TrainError` with the reason if the evaluator fails."""
    filled = [word.replace(PLACE, str(checkpoint)) for word in words]
    request = EvaluationRequest(words=filled, checkpoint=str(checkpoint), version=version)
    required = version.files is not None or bool(version.removed)
    with Sandbox(None, required=required, sealed=True) as sandbox:
        answer, output, errors = run_in_sandbox(request, sandbox, type_of=Evaluated, module="evaluator", time_limit=time_limit)
    if isinstance(answer, Evaluated) and answer.error is None:
        return msgspec.structs.replace(answer, output=output)
    sys.stderr.write("".join(f"{line}\n" for line in errors.splitlines()[-20:]))
    raise TrainError(f"the evaluator {shlex.join(words)} {answer if isinstance(answer, str) else answer.error}")


def metric_of(output: str, pattern: str | None) -> float:
    """Return what an evaluator printed last: a number, or an object with one number, as JSON; or what matches the pattern.

    Raises:
        TrainError: It printed none, or several without a pattern, or one that is not finite.
    """
    from stoker.compare.quality import printed_metric

    if pattern is not None:
        return _finite(printed_metric(output, pattern))
    for line in reversed(output.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        numbers = {"": value} if not isinstance(value, dict) else value
        numbers = {name: one for name, one in numbers.items() if isinstance(one, int | float) and not isinstance(one, bool)}
        if len(numbers) == 1:
            return _finite(float(next(iter(numbers.values()))))
        if numbers:
            raise TrainError(
                f"the evaluator printed {len(numbers)} numbers ({', '.join(numbers)}); expected one. Choose it with --metric, like "
                f"'\"{next(iter(numbers))}\": ([0-9.e+-]+)'."
            )
    raise TrainError('the evaluator printed no JSON; expected a line with a number like {"loss": 0.3}, or use --metric.')


def _finite(value: float) -> float:
    if value - value != 0:
        raise TrainError(f"the evaluator printed {value}, which is not a metric.")
    return value


def named_files(words: Iterable[str]) -> list[str]:
    """Return the files that the words of a command name."""
    return sorted({os.path.realpath(word) for word in words if Path(word).is_file() and not _is_elsewhere(os.path.realpath(word))})


def hashes_of(paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file; of one that is gone, a word."""
    return {path: _hash(path) for path in paths}


def _hash(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "gone"


def _is_elsewhere(path: str) -> bool:
    foreign = (os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), str(Path(__file__).parents[1]))
    return path.startswith((*ELSEWHERE, *(f"{folder}/" for folder in foreign))) or any(
        part in INSTALLED for part in Path(path).parts
    )


# ---- in the process of the evaluator ----


def main(words: str, descriptor: int, answers: int) -> NoReturn:
    """Enter the sandbox, and run the evaluator. `descriptor` is for the answer, `answers` for the sandbox."""
    connection, request, plan = received(words, descriptor, answers, EvaluationRequest)
    enter(plan)
    write_version(request.version)
    pid, opened = os.getpid(), set[str]()
    error, rows = code_in(Path(request.checkpoint)), SeenSamples()
    if error is None:
        run = _run_python if PYTHON.fullmatch(Path(request.words[0]).name) and _script(request.words) else _run_other
        error, rows = run(request.words, opened)
    if os.getpid() != pid:
        raise SystemExit(error is not None)
    code = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    users = [path for path in {*code, *opened} if path.startswith("/") and Path(path).is_file()]
    users = [path for path in map(os.path.realpath, users) if not _is_elsewhere(original(path))]
    users = [path for path in users if not path.startswith(str(Path(request.checkpoint).parent) + "/")]
    names = sorted({original(path) for path in users})
    modules = [name for name in names if mirrored(name) in map(os.path.realpath, code) or name.endswith(".py")]
    hashes = {name: _hash(mirrored(name)) for name in names}
    connection.send_bytes(msgspec.msgpack.encode(Evaluated(error=error, files=hashes, modules=modules, rows=rows)))
    sys.stdout.flush()
    sys.stderr.flush()
    _exit(0)


def _script(words: list[str]) -> bool:
    """Whether a command of Python names a script, or a module with -m."""
    return len(words) > 1 and (not words[1].startswith("-") or (words[1] == "-m" and len(words) > 2))


def _run_python(words: list[str], opened: set[str]) -> tuple[str | None, SeenSamples]:
    """Run a script in this process, and record what it opens and which samples a model gets."""
    from stoker.compare.observer import Observer
    from stoker.compare.seeding import set_seeds

    is_module = words[1] == "-m"
    program, *arguments = words[1 + is_module :]
    request = RunRequest(program=program, module=is_module, arguments=arguments, observe=True)
    observer = Observer(request, lambda: None)
    set_seeds(0)
    observer.install()
    note_reads(opened)
    if not is_module:
        opened.add(mirrored(str(Path(program).absolute())))
    error = run_to_end(request, run_main)
    sys.stdout.flush()
    return error, observer.evaluated()


def _run_other(words: list[str], opened: set[str]) -> tuple[str | None, SeenSamples]:
    """Run another command. Only files that its words name are known to be read."""
    opened.update(str(Path(word).absolute()) for word in words if Path(word).is_file())
    try:
        done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL)
    except OSError as failure:
        return f"cannot be run: {failure.strerror}", SeenSamples()
    return (None if done.returncode == 0 else f"ended with exit code {done.returncode}"), SeenSamples()
