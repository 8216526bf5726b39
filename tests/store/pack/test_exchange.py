"""The exchange of a pack on several machines: files are read as they were published, and everything is removed at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.pack.cluster import pack_on_fake, write_events

from stoker.errors import OptionError, StoreDamagedError
from stoker.store.pack.exchange import Exchange, open_exchange


@pytest.fixture(params=["folder", "bucket"])
def exchange(request: pytest.FixtureRequest, tmp_path: Path) -> Exchange:
    if request.param == "bucket":
        pytest.importorskip("obstore", reason="needs stoker[remote]")
        return open_exchange(f"file://{tmp_path}/a.stoker")
    return open_exchange(tmp_path / "a.stoker")


@pytest.mark.promise("P3")
def test_two_attempts_at_a_task_do_not_mix(exchange: Exchange) -> None:
    exchange.put("begun", b"")
    with exchange.attempt("read-0") as first, exchange.attempt("read-0") as second:
        for attempt in (first, second):
            (attempt.folder / "data").write_text(attempt.name)
    for attempt in (first, second):
        size = len(attempt.name)
        assert bytes(exchange.read_range(f"{attempt.name}/data", 0, size, lambda data: True)).decode() == attempt.name


def test_what_is_read_is_checked(exchange: Exchange) -> None:
    exchange.put("begun", b"")
    with exchange.attempt("read-0") as attempt:
        (attempt.folder / "data").write_bytes(b"0123456789")
    assert bytes(exchange.read_range(f"{attempt.name}/data", 2, 5, lambda data: bytes(data) == b"234")) == b"234"
    for start, stop, accepted in ((2, 5, False), (8, 12, True)):
        with pytest.raises(StoreDamagedError):
            exchange.read_range(f"{attempt.name}/data", start, stop, lambda data, accepted=accepted: accepted)
    with pytest.raises(StoreDamagedError, match="is missing"):
        exchange.read_range(f"{attempt.name}/none", 0, 1, lambda data: True)


def test_an_attempt_that_fails_leaves_nothing(exchange: Exchange, tmp_path: Path) -> None:
    exchange.put("begun", b"")
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


def test_a_folder_of_the_user_is_never_taken_for_parts(tmp_path: Path) -> None:
    events = write_events(tmp_path / "raw")
    folder = tmp_path / "a.stoker.parts"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"Stoker did not make it\. Move it away"):
        pack_on_fake(events, tmp_path / "a.stoker", series="user")
    assert (folder / "mine.txt").read_text() == "mine"
