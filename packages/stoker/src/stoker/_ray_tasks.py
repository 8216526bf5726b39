"""Tasks on a Ray cluster: packs (`store.pack.on_ray`) run on one.

Ray starts a task again, on another node if need be, where its process or node dies. So a task must be a pure function of what it is
given, or leave one result however often it runs. Ray (extra `ray`) is imported when a cluster is asked for.
"""

from __future__ import annotations

import re
from typing import Any

from stoker._text import how_to_install, redact
from stoker.errors import OptionError, StokerError


def check_address(address: str) -> str:
    """Refuse what is not the address of a Ray cluster; addresses have no credentials."""
    if not isinstance(address, str) or (address != "ray" and not re.fullmatch(r"ray://[\w.-]+(:\d+)?", address)):
        raise OptionError(
            f"on={redact(str(address))!r} is invalid; expected 'ray', or the address of a cluster like 'ray://head:10001'."
        )
    return address


def connect(address: str) -> Any:
    """The module `ray`, connected to the cluster at `address` ("ray": the one of this machine, or a new one)."""
    check_address(address)
    try:
        import ray
    except ImportError:
        raise OptionError(f"ray={address!r} needs the package ray. {how_to_install('ray')}", parameter="ray") from None
    if not ray.is_initialized():
        ray.init(address=None if address == "ray" else address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray


def result(ray: Any, ref: Any) -> Any:
    """The result of a task; errors of Stoker are raised as they are."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, StokerError):
            raise error.cause from None
        raise
