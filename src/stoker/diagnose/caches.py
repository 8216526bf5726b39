"""Caches: folders that programs fill so that the next run is faster. What is written there passes through the scratch folder.

Compilers (numba, Inductor, Triton), hubs and plotting libraries hand what they write to other processes and to libraries that know
nothing of the scratch folder, and a cache is made to be filled. Any environment variable with CACHE in its name names one.
"""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Mapping

IN_HOME = (".cache", ".triton", ".nv/ComputeCache", ".cupy", ".config/matplotlib")
"""Where tools keep them unless told otherwise."""
VARIABLES = ("HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_HOME", "MPLCONFIGDIR")
"""Those that name one and have no CACHE in their name."""
COMPILED = "__pycache__"
INDUCTOR = "torchinductor_"
"""How the folder of torch.compile among temporary files begins."""


def cache_folders(environ: Mapping[str, str], here: str) -> set[str]:
    """The caches of this user and the folders of installed packages, without links in their names.

    A variable that names a folder around the home folder or the current one (`here`) is ignored: the user's files lie there.
    """
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111
    named = {value for name, value in environ.items() if value and ("CACHE" in name or name in VARIABLES)}
    named |= {os.path.join(value, "matplotlib") for name, value in environ.items() if name == "XDG_CONFIG_HOME"}  # noqa: PTH118
    real = {os.path.realpath(os.path.join(here, os.path.expanduser(one))) for one in named}  # noqa: PTH111, PTH118
    believed = {one for one in real if not is_below(home, one) and not is_below(here, one)}
    packages = {*(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")), site.getusersitepackages()}
    return believed | {os.path.realpath(one) for one in packages} | {os.path.join(home, one) for one in IN_HOME}  # noqa: PTH118


def is_below(name: str, folder: str) -> bool:
    """Whether a name is that of a folder or of something in it."""
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)
