"""Tests stay on this machine: what would contact another host fails, and fails the test.

In this process `connect`, `sendto` and the lookup of names refuse whatever is neither loopback nor an address of this machine. Libraries
that open sockets without Python, and child processes, get a proxy that is not there: HTTP clients of all languages obey the variables
of the environment (obstore, requests, urllib, gRPC, curl). Programs that obey neither are not stopped.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Any

import psutil
import pytest

CLOSED = "http://127.0.0.1:9"  # the port of `discard`, on which nothing listens
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
attempts: list[str] = []
"""What was refused since the test began."""


class OutsideError(Exception):
    """A test contacts another host. Not an OSError, which code under test may expect and try again."""


@functools.cache
def _own_addresses() -> frozenset[str]:
    return frozenset(entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries)


def is_outside(host: Any) -> bool:
    """Whether a host is neither this machine nor a name or address of it."""
    if host is None or host in ("", b"", "localhost", b"localhost"):
        return False
    text = host.decode() if isinstance(host, bytes) else str(host)
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text not in (socket.gethostname(), "localhost.localdomain", "ip6-localhost", "<broadcast>")
    return not (address.is_loopback or address.is_unspecified or str(address) in _own_addresses())


def _refuse(host: Any, what: str) -> None:
    if is_outside(host):
        attempts.append(f"{what} {host!r}")
        raise OutsideError(f"{attempts[-1]}: tests contact nothing outside this machine. Use a server on 127.0.0.1.")


def _guarded(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: socket.socket, *arguments: Any) -> Any:
        sends = (
            what == "sendto" or self.type & socket.SOCK_STREAM
        )  # connecting a datagram socket sends nothing: it finds an interface
        if self.family in (socket.AF_INET, socket.AF_INET6) and sends:
            _refuse(arguments[-1][0], what)
        return method(self, *arguments)

    return call


def stay_on_this_machine(patch: pytest.MonkeyPatch) -> None:
    """Refuse other hosts from here on, until `patch` is undone."""
    for name in ("connect", "connect_ex", "sendto"):
        patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name), name))
    lookup = socket.getaddrinfo

    @functools.wraps(lookup)
    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        _refuse(host, "lookup of")
        return lookup(host, *arguments, **options)

    patch.setattr(socket, "getaddrinfo", getaddrinfo)
    for name in PROXIES:
        patch.setenv(name, CLOSED)
    here = ",".join(["localhost", socket.gethostname(), *sorted(_own_addresses() | {"127.0.0.1", "::1"})])
    patch.setenv("NO_PROXY", here)
    patch.setenv("no_proxy", here)
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    os.environ.pop("AWS_PROFILE", None)  # which may name an account of whoever runs the tests
