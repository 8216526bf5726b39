"""Tasks of a Ray cluster: results in order, errors as they are. Real clusters are in `make test-scale`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stoker import _ray_tasks
from stoker.errors import BadValueError


class TaskError(Exception):
    """As Ray raises it: the error of the task is its cause."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def fake_ray(sent: list[Any]) -> Any:
    """Runs a task when its result is asked for."""

    def get(ref: Callable[[], Any]) -> Any:
        try:
            return ref()
        except Exception as error:
            raise TaskError(error) from error

    def remote(**options: Any) -> Any:
        assert options == {"num_cpus": 1, "max_retries": -1}  # a task whose node died is run again
        return lambda function: SimpleNamespace(remote=lambda work, item: lambda: function(work, item))

    exceptions = SimpleNamespace(RayTaskError=TaskError)
    put = lambda work: (sent.append(work), work)[1]  # noqa: E731
    return SimpleNamespace(is_initialized=lambda: True, put=put, get=get, remote=remote, exceptions=exceptions)


def test_results_are_in_the_order_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setitem(sys.modules, "ray", fake_ray(sent))
    work = lambda item: item * 2  # noqa: E731
    assert _ray_tasks.run_tasks("ray", work, range(5)) == [0, 2, 4, 6, 8]
    assert sent == [work]  # once for all tasks


@pytest.mark.parametrize(("error", "found"), [(BadValueError("row 3"), BadValueError), (RuntimeError("bug"), TaskError)])
def test_errors_of_stoker_come_back_as_they_are(error: Exception, found: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", fake_ray([]))

    def work(item: int) -> None:
        raise error

    with pytest.raises(found):
        _ray_tasks.run_tasks("ray", work, [1])
