"""The exchange of a pack in parts: results appear once and whole, and what killed attempts leave is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.store.pack.part_inputs import write_events

from stoker import _disk
from stoker.errors import OptionError, StorageError, StoreDamagedError
from stoker.store.object_storage import Bucket
from stoker.store.pack.api import pack_part
from stoker.store.pack.exchange import Exchange, mark_name, open_exchange


@pytest.fixture(params=["folder", "bucket"])
def exchange(request: pytest.FixtureRequest, tmp_path: Path) -> Exchange:
    if request.param == "bucket":
        pytest.importorskip("obstore", reason="needs stoker[remote]")
        return open_exchange(f"file://{tmp_path}/a.stoker")
    return open_exchange(tmp_path / "a.stoker")


def test_small_objects_are_created_once(exchange: Exchange) -> None:
    assert exchange.get("plan") is None
    assert exchange.create("plan", b"first")
    assert not exchange.create("plan", b"second")
    assert exchange.get("plan") == b"first"
    exchange.remove("plan")
    assert exchange.get("plan") is None


def test_files_are_read_once_they_are_published(exchange: Exchange) -> None:
    with exchange.attempt("read-0") as attempt:
        (attempt.folder / "data").write_bytes(b"0123456789")
        exchange.report(attempt, b"half")
        assert exchange.reports() == {"read-0": b"half"}
        assert exchange.publish(attempt, b"mark")
    assert exchange.reports() == {}
    assert exchange.get(mark_name("read-0")) == attempt.name.encode() + b"\nmark"
    assert bytes(exchange.read_range(f"{attempt.name}/data", 2, 5, lambda data: bytes(data) == b"234")) == b"234"
    for start, stop, accepted in ((2, 5, False), (8, 12, True)):
        with pytest.raises(StoreDamagedError):
            exchange.read_range(f"{attempt.name}/data", start, stop, lambda data, accepted=accepted: accepted)
    with pytest.raises(StoreDamagedError, match="is missing"):
        exchange.read_range(f"{attempt.name}/none", 0, 1, lambda data: True)
    exchange.clear()
    assert exchange.get(mark_name("read-0")) is None


def test_an_attempt_that_fails_leaves_nothing(exchange: Exchange, tmp_path: Path) -> None:
    folders = []

    def fail() -> None:
        with exchange.attempt("read-0") as attempt:
            folders.append(attempt.folder)
            (attempt.folder / "data").write_bytes(b"0")
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert not folders[0].exists()
    assert not list(tmp_path.rglob("data"))


def test_storage_without_conditional_writes_is_refused() -> None:
    class ReadOnly:
        def put(self, *args: Any, **options: Any) -> None:
            raise PermissionError

    bucket = Bucket("memory://a.parts", ReadOnly())  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="was refused"):
        bucket.put("plan", b"", is_new=True)


def test_of_two_attempts_at_a_task_the_first_counts(tmp_path: Path) -> None:
    exchange = open_exchange(tmp_path / "a.stoker")
    with exchange.attempt("read-0") as first, exchange.attempt("read-0") as second:
        for attempt in (first, second):
            (attempt.folder / "data").write_text(attempt.name)
        assert exchange.publish(second, b"mark")
        assert not exchange.publish(first, b"mark")
    assert exchange.get(mark_name("read-0")) == second.name.encode() + b"\nmark"
    assert not first.folder.exists()
    assert (second.folder / "data").read_text() == second.name


def test_what_a_killed_attempt_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    exchange = open_exchange(tmp_path / "a.stoker")
    with exchange.attempt("read-0") as dead:
        (dead.folder / "data").write_text("half")
        exchange.create("keep", b"")
        with exchange.attempt("read-0"):
            assert dead.folder.exists()  # it is locked, so it lives
        left = {path.name: path.read_bytes() for path in dead.folder.iterdir()}
    dead.folder.mkdir()
    for name, data in left.items():
        (dead.folder / name).write_bytes(data)
    with exchange.attempt("read-1"):
        assert dead.folder.exists()  # of another task
    with exchange.attempt("read-0"):
        assert not dead.folder.exists()


def test_files_are_created_once(tmp_path: Path) -> None:
    assert _disk.create_file(tmp_path / "a", b"first")
    assert not _disk.create_file(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_of_the_user_is_never_taken_for_parts(tmp_path: Path) -> None:
    events = write_events(tmp_path / "raw")
    folder = tmp_path / "a.stoker.parts"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"Stoker did not make it\. Move it away"):
        pack_part(events, tmp_path / "a.stoker", "1/1", series="user")
    assert (folder / "mine.txt").read_text() == "mine"
