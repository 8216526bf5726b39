"""Packs on a Ray cluster of several nodes: the bytes of one pack, also where a node dies. `make test-scale` installs Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.store.pack.cluster import contents, pack_on_fake, write_events

import stoker
from stoker.errors import BadValueError, OptionError, SourceInvalidError
from stoker.store.pack import on_ray

pytestmark = [pytest.mark.scale, pytest.mark.promise("P3")]

OPTIONS: dict[str, Any] = {"series": "user", "time": "ts", "sort": True}
FILE_ROWS = 250_000
"""Rows of a file of about 8 MB: as many as one task reads."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes with one each."""
    ray = pytest.importorskip("ray", reason="make test-scale installs Ray")
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}
    )
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=100 << 20)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pack_on_two_nodes_has_the_bytes_of_one(cluster: Any, tmp_path: Path) -> None:
    source = write_events(tmp_path / "raw", files=8, rows=FILE_ROWS)
    seen: list[tuple[str, float]] = []
    store = stoker.pack(
        source,
        tmp_path / "ray.stoker",
        resources=stoker.Resources(ray="ray"),
        progress=lambda phase, share, rows: seen.append((phase, share)),
        **OPTIONS,
    )
    stoker.pack(source, tmp_path / "one.stoker", **OPTIONS)
    assert contents(tmp_path / "ray.stoker") == contents(tmp_path / "one.stoker")
    assert store.num_steps == 8 * FILE_ROWS
    assert {phase for phase, _ in seen} == {"reading", "joining"}
    assert all(0 <= share <= 1 for _, share in seen)
    assert not (tmp_path / "ray.stoker.parts").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_dies_amid_a_pack_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    source = write_events(tmp_path / "raw", files=8, rows=FILE_ROWS)
    victim = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    parts = tmp_path / "ray.stoker.parts"
    killed = []

    def kill() -> None:
        while len(list(parts.glob("read-*~*/run0.k"))) < 2:
            time.sleep(0.05)
        cluster.remove_node(victim, allow_graceful=False)
        killed.append(len(list(parts.glob("read-*~*"))))

    thread = threading.Thread(target=kill)
    thread.start()
    stoker.pack(source, tmp_path / "ray.stoker", resources=stoker.Resources(ray="ray"), **OPTIONS)
    thread.join()
    assert killed
    stoker.pack(source, tmp_path / "one.stoker", **OPTIONS)
    assert contents(tmp_path / "ray.stoker") == contents(tmp_path / "one.stoker")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_errors_of_tasks_come_back_as_they_are(cluster: Any, tmp_path: Path) -> None:
    source = write_events(tmp_path / "raw", files=2)
    data = bytearray((tmp_path / "raw" / "1.parquet").read_bytes())
    data[100:2000] = bytes(1900)
    (tmp_path / "raw" / "1.parquet").write_bytes(data)
    with pytest.raises(SourceInvalidError, match=r"1\.parquet is damaged or not Parquet"):
        stoker.pack(source, tmp_path / "ray.stoker", resources=stoker.Resources(ray="ray"), **OPTIONS)
    assert not (tmp_path / "ray.stoker").exists()


def test_what_one_process_has_to_do_is_refused(tmp_path: Path) -> None:
    for source, options, text in (
        ({"x": [1.0]}, {}, "a table in memory is not seen by other processes"),
        ("a.csv", {"sql": "FROM source"}, "sql= is one statement over all rows"),
        ("a.csv", {"time": stoker.Time("t", timezone="Europe/Berlin")}, "ambiguous='infer' follows the rows"),
    ):
        with pytest.raises(OptionError, match=text):
            pack_on_fake(source, tmp_path / "a.stoker", **options)  # type: ignore[arg-type]


# Tasks of a Ray cluster: errors as they are. Real clusters are in `make test-scale`


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
