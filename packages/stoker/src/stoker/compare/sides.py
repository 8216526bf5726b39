"""The two sides of a comparison: how a version of a program is made without changing a file of the user.

A version is the program with other files (a patch or a commit), another environment, or another interpreter. Files of a version are
written in the sandbox of its run, over the user's files as the run alone sees them: paths, data and names stay the same.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stoker import _disk
from stoker.compare.child import Starter, run_program
from stoker.compare.observed import INSTALLED, Observed, RunRequest
from stoker.compare.ranks import module_flag
from stoker.errors import OptionError
from stoker.sandbox import VARIABLE, Sandbox, SandboxMode

IN_EACH_RANK = "stoker.compare.rank"
"""The module that a launcher starts in place of the program."""
WORKING_TREE = "WORK"
"""The name of the files as they are now, where a commit is expected."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a training program.

    Example:
        >>> Version(program="train.py", environment={"OMP_NUM_THREADS": "1"}).program
        'train.py'
    """

    program: str
    """A script, or the name of a module with `module=True`."""
    module: bool = False
    launcher: tuple[str, ...] = ()
    """Words before the program that start it in several processes, such as ("torchrun", "--nproc-per-node", "2")."""
    patch: str | None = None
    """A unified diff that is applied to the user's files, with paths as `git diff` writes them or relative to the current folder."""
    commit: str | None = None
    """A commit, branch or tag of the repository of the current folder: files that it tracks are as there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    """Another interpreter, in whose packages stoker is installed."""
    edits: Mapping[str, bytes] = field(default_factory=dict)
    """New contents of files of the user, by their absolute paths."""
    extension: str = ""
    """A change that is made from outside in the process of the program: "module:class" of a `stoker.compare.child.Extension`."""
    options: str = ""
    """The options of the extension."""
    title: str = ""
    """How this version is called in the receipt; by default, what is different in it."""

    def __post_init__(self) -> None:
        if not self.module and self.commit is None and not Path(self.program).is_file():
            raise OptionError(f"{self.program} does not exist; expected a Python script.", parameter="program")
        if self.patch is not None and not Path(self.patch).is_file():
            raise OptionError(f"{self.patch} does not exist; expected a patch.", parameter="patch")
        if sum((self.patch is not None, self.commit is not None, bool(self.edits))) > 1:
            raise OptionError("a version has several of patch, commit and edits; expected one of them.", parameter="patch")

    def describe(self) -> str:
        """Return a name of this version for people."""
        if self.title:
            return self.title
        other = [f"with {self.patch}" if self.patch else "", f"at {self.commit}" if self.commit else ""]
        other += [f"{name}={value}" for name, value in self.environment.items()]
        other.append(f"by {self.python}" if self.python else "")
        return " ".join([*self.launcher, self.program, *filter(None, other)])


class Side:
    """A version that can be run. Made by `prepared`.

    With `confined` its runs leave nothing behind, and cannot read the files that it names.
    """

    def __init__(self, version: Version, files: Path | None, removed: list[str], confined: Sequence[str] | None = None) -> None:
        self.version = version
        self._files, self._removed, self._confined = files, removed, confined
        self.mode: SandboxMode | None = None
        """How its last run was protected."""

    @property
    def request(self) -> RunRequest:
        """The program and the files of this version, as a run needs them."""
        version = self.version
        return RunRequest(
            program=version.program,
            module=version.module,
            launcher=[*version.launcher, module_flag(version.launcher), IN_EACH_RANK] if version.launcher else [],
            files=None if self._files is None else str(self._files),
            removed=self._removed,
            extension=version.extension,
            options=version.options,
        )

    @property
    def changes_packages(self) -> bool:
        """Whether it has other files of installed packages, which a process that has imported them would not see."""
        changed = [] if self._files is None else map(str, self._files.rglob("*.*"))
        return any(part in INSTALLED for path in (*changed, *self._removed) for part in Path(path).parts)

    def content(self, path: str) -> bytes | None:
        """Return what a file has in this version; None if it does not exist there."""
        changed = None if self._files is None else Path(f"{self._files}{path}")
        if changed is not None and changed.is_file():
            return changed.read_bytes()
        return Path(path).read_bytes() if Path(path).is_file() and path not in self._removed else None

    def run(
        self, arguments: list[str], *, quiet: bool = True, time_limit: float | None = None, starter: Starter | None = None,
        **options: object,
    ) -> Observed:  # fmt: skip
        """Run it in a fresh process, or in a fork of `starter`. `options` are fields of a `RunRequest`."""
        version, confined = self.version, self._confined is not None
        hidden = list(self._confined or ())
        if confined and version.launcher:
            raise OptionError(
                "an evaluator was given with a launcher; expected one of them: only runs of one process are confined."
            )
        request = msgspec.structs.replace(self.request, arguments=arguments, kept=confined, hidden=hidden, **options)
        replaces = request.files is not None or bool(request.removed)
        program = None if version.module else Path(version.program).absolute()
        with Sandbox(program, required=replaces, hidden=hidden, sealed=confined) as sandbox:
            observed = run_program(
                request,
                sandbox,
                python=version.python or sys.executable,
                environment=version.environment,
                quiet=quiet,
                time_limit=time_limit,
                starter=starter,
            )
            self.mode = sandbox.mode
        return observed


@contextlib.contextmanager
def prepared(version: Version, confined: Sequence[str] | None = None) -> Iterator[Side]:
    """Make the files of a version in a temporary folder. See `Side` for `confined`."""
    if version.python is not None:
        _check_python(version.python)
    if version.patch is None and not version.edits and version.commit in (None, WORKING_TREE):
        yield Side(version, None, [], confined)
        return
    if os.environ.get(VARIABLE) == "off":
        raise OptionError(f"{VARIABLE} is off, so the files of another version would replace yours; expected a sandbox. Unset it.")
    with _disk.temporary_folder() as folder:
        files = folder / "files"
        _disk.make_folder(files)
        removed: list[str] = []
        for path, data in version.edits.items():
            _write(files, Path(path), data)
        if version.commit is not None:
            removed = _files_of_commit(version.commit, files)
            if not version.module and _path_of(version.program, removed, files) is None:
                raise OptionError(
                    f"{version.program} does not exist in {version.commit}; expected a Python script.", parameter="program"
                )
        elif version.patch is not None:
            removed = _files_of_patch(Path(version.patch), files)
        yield Side(version, files, removed, confined)


def _path_of(program: str, removed: list[str], files: Path) -> Path | None:
    """The program in a commit: a file that differs, or the user's."""
    path = Path(program).resolve()
    changed = Path(f"{files}{path}")
    if changed.is_file():
        return changed
    return path if path.is_file() and str(path) not in removed else None


def _git(*words: str, folder: Path, data: bytes | None = None) -> bytes:
    result = subprocess.run(["git", *words], cwd=folder, input=data, capture_output=True, check=False)
    if result.returncode:
        raise OptionError(f"git {words[0]} failed: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


def _files_of_commit(commit: str, files: Path) -> list[str]:
    """Write the files that a commit has otherwise than the working tree. Returns files that it does not have."""
    top = Path(_git("rev-parse", "--show-toplevel", folder=Path.cwd()).decode().strip())
    _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", folder=top)
    changed = _git("diff", "--name-only", "--no-renames", "-z", commit, "--", folder=top).decode().split("\0")
    there = set(_git("ls-tree", "-r", "--name-only", "-z", commit, folder=top).decode().split("\0"))
    for name in filter(None, changed):
        if name in there:
            _write(files, top / name, _git("show", f"{commit}:{name}", folder=top))
    return [str(top / name) for name in changed if name and name not in there]


def _files_of_patch(patch: Path, files: Path) -> list[str]:
    """Write the files that a patch makes. Returns files that it removes."""
    data = patch.read_bytes()
    names = _names_in(data)
    here = Path.cwd()
    # `git apply` also works outside a repository, where it reads paths relative to the current folder.
    top = here
    with contextlib.suppress(OptionError, OSError):
        root = Path(_git("rev-parse", "--show-toplevel", folder=here).decode().strip())
        top = here if all((here / old).exists() for old, _ in names if old is not None) else root
    with _disk.temporary_folder() as copy:
        for old, _ in names:
            if old is not None:
                if not (top / old).is_file():
                    raise OptionError(f"{patch} changes {old}, which does not exist in {top}.", parameter="patch")
                _write_plain(copy / old, (top / old).read_bytes())
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
        result = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], cwd=copy, input=data, capture_output=True, check=False, env=environment
        )
        if result.returncode:
            raise OptionError(f"{patch} cannot be applied: {result.stderr.decode(errors='replace').strip()}", parameter="patch")
        for _, new in names:
            if new is not None:
                _write(files, top / new, (copy / new).read_bytes())
    return [str(top / old) for old, new in names if old is not None and new is None]


def _names_in(patch: bytes) -> list[tuple[str | None, str | None]]:
    """The files of a patch before and after it; None where it makes or removes one."""
    names: list[tuple[str | None, str | None]] = []
    old: str | None = None
    for line in patch.decode(errors="surrogateescape").splitlines():
        if line.startswith("--- "):
            old = _name(line)
        elif line.startswith("+++ "):
            names.append((old, _name(line)))
    if not names:
        raise OptionError("the patch changes no file; expected a unified diff, as git diff writes it.", parameter="patch")
    return names


def _name(line: str) -> str | None:
    name = line[4:].partition("\t")[0].strip()
    return None if name == "/dev/null" else name.removeprefix("a/").removeprefix("b/")


def _write(files: Path, path: Path, data: bytes) -> None:
    """Write a file of a version, by its absolute path below a folder."""
    _write_plain(Path(f"{files}{path.resolve()}"), data)


def _write_plain(path: Path, data: bytes) -> None:
    _disk.make_folder(path.parent)
    _disk.write_file(path, data, durable=False)


def _check_python(python: str) -> None:
    """Check that an interpreter exists and has this stoker."""
    from stoker import __version__

    code = "import stoker; print(stoker.__version__)"
    try:
        result = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        raise OptionError(f"{python} cannot be run: {error.strerror}.", parameter="python") from None
    if result.stdout.strip() != __version__:
        have = f"stoker {result.stdout.strip()}" if result.stdout.strip() else "no stoker"
        raise OptionError(
            f"{python} has {have}; expected {__version__}. In the folder of a clone of Stoker: {python} -m pip install ./packages/stoker",
            parameter="python",
        )
