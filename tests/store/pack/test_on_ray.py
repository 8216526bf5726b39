"""Packs on a Ray cluster of several nodes: the bytes of one pack, also where a node dies. `make test-scale` installs Ray."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.pack.part_inputs import contents, write_events

import stoker
from stoker.errors import OptionError, SourceInvalidError, StoreExistsError
from stoker.store.formats.parquet import ParquetSource
from stoker.store.pack import on_ray, shared_plan
from stoker.store.pack.on_ray import pack_on_ray
from stoker.store.pack.parts import PartedPack

OPTIONS: dict[str, Any] = {"series": "user", "time": "ts", "sort": True}


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


def begin(source: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a plan of many tasks, which the processes of the cluster then follow."""
    monkeypatch.setattr(shared_plan, "MIN_TASK_BYTES", 500_000)
    pack = PartedPack(source, str(target), stoker.store.PackOptions(**OPTIONS), lambda *args: None)
    assert len(pack.tasks) >= 8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pack_on_two_nodes_has_the_bytes_of_one(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_events(tmp_path / "raw", rows=40_000)
    begin(source, tmp_path / "ray.stoker", monkeypatch)
    seen: list[tuple[str, float]] = []
    store = stoker.pack(
        source, tmp_path / "ray.stoker", on="ray", progress=lambda phase, share, rows: seen.append((phase, share)), **OPTIONS
    )
    stoker.pack(source, tmp_path / "one.stoker", **OPTIONS)
    assert contents(tmp_path / "ray.stoker") == contents(tmp_path / "one.stoker")
    assert store.num_steps == 160_000
    assert {phase for phase, _ in seen} == {"reading", "merging", "joining"}  # it was planned before
    assert all(0 <= share <= 1 for _, share in seen)
    assert not (tmp_path / "ray.stoker.parts").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_dies_amid_a_pack_changes_nothing(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_events(tmp_path / "raw", files=8, rows=40_000)
    begin(source, tmp_path / "ray.stoker", monkeypatch)
    victim = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    parts = tmp_path / "ray.stoker.parts"
    killed = []

    def kill() -> None:
        while not list(parts.glob("read-*.mark")):
            time.sleep(0.05)
        cluster.remove_node(victim, allow_graceful=False)
        killed.append(len(list(parts.glob("read-*.mark"))))

    thread = threading.Thread(target=kill)
    thread.start()
    stoker.pack(source, tmp_path / "ray.stoker", on="ray", **OPTIONS)
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
        stoker.pack(source, tmp_path / "ray.stoker", on="ray", **OPTIONS)
    assert not (tmp_path / "ray.stoker").exists()


def test_without_ray_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(OptionError, match=r"on='ray' needs the package ray: install stoker\[ray\]"):
        stoker.pack(write_events(tmp_path / "raw", files=1), tmp_path / "a.stoker", on="ray")


@pytest.mark.parametrize("address", ["", "local", "http://head:10001", "ray:/head", "ray://user:SECRET@head:10001"])
def test_addresses_that_are_invalid(address: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="expected 'ray', or the address of a cluster") as caught:
        stoker.pack({"x": [1.0]}, tmp_path / "a.stoker", on=address)
    assert "SECRET" not in str(caught.value)


class FakeRay:
    """Runs tasks in this process, in the order that they are given; some fail as if their node had died and are run again."""

    class exceptions:
        class RayTaskError(Exception):
            cause: Exception

    def remote(self, **options: Any) -> Any:
        assert options["max_retries"] == -1

        class Remote:
            def __init__(self, function: Any) -> None:
                self._function = function

            def remote(self, *args: Any) -> Any:
                self._function(*args)  # a first attempt whose answer is lost
                return lambda: self._function(*args) if args[1] != "join" else None

        return Remote

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def wait(self, refs: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        return refs[:1], refs[1:]

    def get(self, ref: Any) -> Any:
        return ref()


def test_nodes_share_the_inspection_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "connect", lambda address: FakeRay())
    inspected: list[str] = []
    schema = ParquetSource.schema
    monkeypatch.setattr(ParquetSource, "schema", lambda self: (inspected.append(self.name), schema(self))[1])
    source = write_events(tmp_path / "raw", files=3)
    options = stoker.store.PackOptions(**OPTIONS)
    seen: dict[str, int] = {}

    def pack() -> None:
        def progress(phase: str, share: float, rows: int) -> None:
            seen.setdefault(phase, len(inspected))

        pack_on_ray("ray", source, tmp_path / "a.stoker", options, progress, replace=False)

    pack()
    assert list(seen) == ["inspecting", "reading", "merging", "joining"]
    assert sorted(inspected[:6]) == sorted(["0.parquet", "1.parquet", "2.parquet"] * 2)  # each task is run twice here
    inspected.clear()
    with pytest.raises(StoreExistsError, match="holds a store already"):
        pack()
    assert not inspected
    parts = shared_plan.inspect_sources(source, options, 0, 2)
    plan, _ = shared_plan.make_shared_plan(source, options, parts)
    assert inspected == ["0.parquet", "2.parquet", "1.parquet"]
    assert plan == shared_plan.make_shared_plan(source, options)[0]
    os.utime(tmp_path / "raw" / "0.parquet")  # what was found of another file does not count
    shared_plan.make_shared_plan(source, options, parts)
    assert inspected[-2:] == ["0.parquet", "1.parquet"]


def test_tasks_that_run_twice_leave_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "connect", lambda address: FakeRay())
    source = write_events(tmp_path / "raw", files=2)
    options = stoker.store.PackOptions(**OPTIONS)
    pack_on_ray("ray", source, tmp_path / "a.stoker", options, lambda *args: None, replace=False)
    stoker.pack(source, tmp_path / "one.stoker", **OPTIONS)
    assert contents(tmp_path / "a.stoker") == contents(tmp_path / "one.stoker")
