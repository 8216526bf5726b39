"""Tasks of a Ray cluster: errors as they are. Real clusters are in `make test-scale`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import BadValueError, OptionError
from stoker.store.pack import on_ray


class TaskError(Exception):
    """As Ray raises it: the error of the task is its cause."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


@pytest.mark.parametrize(("error", "expected"), [(BadValueError("row 3"), BadValueError), (RuntimeError("bug"), TaskError)])
def test_errors_of_stoker_come_back_as_they_are(error: Exception, expected: type[Exception]) -> None:
    def get(ref: object) -> None:
        raise TaskError(error)

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayTaskError=TaskError))
    with pytest.raises(expected):
        on_ray._result(ray, object())


@pytest.mark.parametrize("address", ["", "local", "http://head:10001", None, 3])
def test_addresses_that_are_invalid(address: Any) -> None:
    with pytest.raises(OptionError, match="expected 'ray', or the address of a cluster"):
        on_ray._connect(address)
