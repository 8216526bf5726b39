"""Which writes of a program pass to the disk while it is diagnosed: caches, new temporary files and devices.

A cache is a folder that programs fill so that the next run is faster. Compilers (numba, Inductor, Triton), hubs and plotting libraries
pass what they write there to other processes and to libraries that do not know the scratch folder. Any environment variable with
CACHE in its name names one. All other writes go to the scratch folder (`stoker.diagnose.file_overlay`).
"""

from __future__ import annotations

import os
import site
import stat
import sysconfig
from collections.abc import Mapping
from pathlib import Path

IN_HOME = (".cache", ".triton", ".nv/ComputeCache", ".cupy", ".config/matplotlib")  # default caches, in the home folder
VARIABLES = ("HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_HOME", "MPLCONFIGDIR")
"""Variables that name a cache and have no CACHE in their name."""
COMPILED = "__pycache__"
INDUCTOR = "torchinductor_"  # prefix of the temporary folder of torch.compile
APART = ("/dev", "/proc", "/sys", "/run")
_lstat, _join = os.lstat, os.path.join  # of the disk: those of `os` are replaced by the overlay


def cache_folders(environ: Mapping[str, str], here: str) -> set[str]:
    """The caches of this user and the folders of installed packages, links resolved.

    A variable that names the home folder, the current folder (`here`) or one around them is ignored: the user's files lie there.
    """
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111
    named = {value for name, value in environ.items() if value and ("CACHE" in name or name in VARIABLES)}
    named |= {_join(value, "matplotlib") for name, value in environ.items() if name == "XDG_CONFIG_HOME"}
    real = {os.path.realpath(_join(here, os.path.expanduser(one))) for one in named}  # noqa: PTH111
    believed = {one for one in real if not is_below(home, one) and not is_below(here, one)}
    packages = {*(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")), site.getusersitepackages()}
    return believed | {os.path.realpath(one) for one in packages} | {_join(home, one) for one in IN_HOME}


class PassThrough:
    """Decides which names pass to the disk: the innermost known folder around a name decides."""

    def __init__(self, scratch: str) -> None:
        self.variables_changed = True  # whether an environment variable has changed, so that caches may be elsewhere
        self.made: set[str] = set()  # folders that the program made among temporary files
        self._scratch = scratch
        self._began_ns = 0
        self._here = os.path.realpath(Path.cwd())
        self._temporary = os.path.realpath(os.environ.get("TMPDIR", "/tmp"))
        self._caches: set[str] = set()
        self._folders: list[str] = []  # folders that decide, the innermost first

    def begin(self) -> None:
        """Temporary files that exist when the scratch folder is made were there before the program."""
        self._began_ns = _lstat(self._scratch).st_ctime_ns

    def passes(self, name: str, *, is_moved: bool) -> bool:
        """Whether writes to a name go to the disk; `is_moved` if the overlay has a file of this name."""
        if is_below(name, self._scratch) or any(is_below(name, one) for one in APART) or COMPILED in name.split("/"):
            return True
        folder = self._deciding(name)
        if folder is None or folder == self._here:
            return False
        if folder in self._caches or name.startswith(_join(self._temporary, INDUCTOR)):
            return True
        return name == self._temporary or not (is_moved or self._was_before(name))

    def is_temporary(self, name: str) -> bool:
        """Whether a name lies among temporary files."""
        return self._deciding(name) == self._temporary

    def _deciding(self, name: str) -> str | None:
        if self.variables_changed:
            self.variables_changed = False
            caches = cache_folders(os.environ, self._here)
            self._caches = caches - {self._here, self._temporary}
            self._folders = sorted({*caches, self._temporary, self._here}, key=len, reverse=True)
        return next((one for one in self._folders if is_below(name, one)), None)

    def _was_before(self, name: str) -> bool:
        """Whether a temporary file existed before the program."""
        if not is_there(name) or any(one in self.made for one in upwards(name)):
            return False
        # A folder changes whenever something is made in it, so its age says nothing; a file changes when it is written.
        state = _lstat(name)
        return stat.S_ISDIR(state.st_mode) or state.st_ctime_ns < self._began_ns


def is_there(name: str) -> bool:
    """Whether the disk has something of this name, whatever the overlay has."""
    try:
        _lstat(name)
    except OSError:
        return False
    return True


def is_below(name: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)


def upwards(name: str) -> list[str]:
    """A name and all folders above it."""
    parts = name.rstrip("/").split("/")
    return ["/".join(parts[:number]) or "/" for number in range(len(parts), 0, -1)]
