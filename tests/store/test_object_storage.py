"""Object storage: requests that are repeated where that helps, counts, and messages without credentials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker._text import redact
from stoker.errors import OptionError, StorageError, StoreDamagedError, StoreExistsError, StoreNotFoundError
from stoker.store import Traffic, object_storage
from stoker.store.object_storage import ATTEMPTS, WRONG_BYTES, Bucket, FoundObject, open_bucket

pytestmark = pytest.mark.scale


class Backend:
    """Answers with what it is given, one per request; an exception is raised, the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.stored = b""

    def _next(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def get(self, name: str, limit: int) -> tuple[bytes, Any]:
        return self.stored, None

    def get_range(self, name: str, start: int, stop: int) -> Any:
        return self._next()

    def head(self, name: str) -> FoundObject:
        return FoundObject(name, 5, "")

    def find(self, prefix: str) -> list[FoundObject]:
        return self._next()

    def remove(self, name: str) -> None:
        self._next()

    def put(self, name: str, data: Any, *, tag: Any, is_new: bool) -> None:
        self._next()


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_storage, "BACKOFF_S", 0.0)


def bucket(*answers: Any) -> Bucket:
    return Bucket("s3://bucket/a", Backend(*answers))


def is_abc(found: Any) -> bool:
    return bytes(found) == b"abc"


def test_a_request_is_repeated_until_the_bytes_are_right() -> None:
    there = bucket(ConnectionError("503"), b"ab", b"abd", b"abc")
    assert there.get_range("x", 0, 3, is_abc) == b"abc"
    assert there.traffic == Traffic(requests=4, bytes_read=3, retries=3)
    assert there.traffic - Traffic(requests=1) == Traffic(requests=3, bytes_read=3, retries=3)


@pytest.mark.promise("P31", control=True)
@pytest.mark.parametrize(("answer", "message"), [(b"abd", "the bytes have another hash"), (b"a", "1 of 3 bytes arrived")])
def test_bytes_that_stay_wrong_are_damage(answer: bytes, message: str) -> None:
    there = bucket(answer)
    with pytest.raises(StoreDamagedError, match=rf"s3://bucket/a/x: {message} \(bytes 0 to 3\)\. Upload the store again\."):
        there.get_range("x", 0, 3, is_abc)
    assert there.traffic.requests == WRONG_BYTES


def test_a_request_that_always_fails_ends_in_one_line_without_secrets() -> None:
    there = bucket(ConnectionError("GET http://host/x?X-Amz-Signature=SECRET failed\nsecond line"))
    with pytest.raises(StorageError) as caught:
        there.get_range("x", 0, 3, is_abc)
    assert str(caught.value) == f"s3://bucket/a/x failed {ATTEMPTS} times, the last time with: GET http://host/x… failed"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (FileNotFoundError(), StoreNotFoundError, "s3://bucket/a/x does not exist"),
        (PermissionError(), StorageError, "check the credentials in the environment"),
    ],
)
def test_refusals_are_not_repeated(answer: BaseException, kind: type[Exception], message: str) -> None:
    there = bucket(answer)
    with pytest.raises(kind, match=message):
        there.get_range("x", 0, 3, is_abc)
    assert there.traffic.requests == 1


def test_a_put_that_another_writer_has_won_fails() -> None:
    with pytest.raises(StoreExistsError, match="exists already, or was changed by another writer"):
        bucket(FileExistsError()).put("x", b"abc", is_new=True)


@pytest.mark.parametrize(("stored", "wins"), [(b"abc", True), (b"other", False)])
def test_a_put_whose_answer_was_lost_is_compared(stored: bytes, wins: bool) -> None:
    there = bucket(ConnectionError("reset"), FileExistsError())
    there._backend.stored = stored  # type: ignore[attr-defined]
    if wins:
        there.put("x", b"abc", is_new=True)
        assert there.traffic.bytes_written == 3
    else:
        with pytest.raises(StoreExistsError):
            there.put("x", b"abc", is_new=True)


@pytest.mark.promise("P31")
@pytest.mark.parametrize(
    "url", ["https://me:SECRET@host/a", "s3://SECRET@bucket/a", "https://host/a?sig=SECRET", "https://host/a#SECRET"]
)
def test_a_url_with_credentials_is_refused_without_naming_them(url: str) -> None:
    with pytest.raises(OptionError, match="may be credentials") as caught:
        open_bucket(url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["AWS_SECRET_ACCESS_KEY=SECRET", "authorization: SECRET", "https://u:SECRET@host/x", "x?token=SECRET y"]
)
def test_messages_of_libraries_lose_their_secrets(text: str) -> None:
    assert "SECRET" not in redact(f"failed: {text}")


def test_other_protocols_are_read_by_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/stoker-test/x", b"abcdef")
    there = open_bucket("memory://stoker-test")
    assert there.get("x", 3)[0] == b"abcd"
    assert there.get_range("x", 0, 3, is_abc) == b"abc"
    assert there.size("x") == 6
    assert there.size("y") is None
    with pytest.raises(StorageError):
        there.put("x", b"")


# ---- obstore ----


@pytest.fixture
def local(tmp_path: Path) -> Callable[[], Bucket]:
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    return lambda: open_bucket(f"file://{tmp_path}/a b")


def test_obstore_reads_ranges_and_puts_once(local: Callable[[], Bucket]) -> None:
    there = local()
    assert there.size("x") is None
    with pytest.raises(StoreNotFoundError):
        there.get("x", 10)
    there.put("x", b"abcdef", is_new=True)
    assert there.get("x", 3)[0][:4] == b"abcd"
    assert bytes(there.get_range("x", 0, 3, is_abc)) == b"abc"
    with pytest.raises(StoreExistsError):
        local().put("x", b"other", is_new=True)
    assert there.get("x", 10)[0] == b"abcdef"


@pytest.mark.parametrize(
    ("url", "kind", "parts"),
    [
        ("s3://bucket/a/b.stoker", "S3Store", {"bucket": "bucket"}),
        ("s3a://bucket/a/b.stoker", "S3Store", {"bucket": "bucket"}),
        ("gs://bucket/a/b.stoker", "GCSStore", {"bucket": "bucket"}),
        ("az://container/a/b.stoker", "AzureStore", {"container_name": "container"}),
        ("abfs://container/a/b.stoker", "AzureStore", {"container_name": "container"}),
        (
            "abfss://container@account.dfs.core.windows.net/a/b.stoker",
            "AzureStore",
            {"container_name": "container", "account_name": "account"},
        ),
        ("https://account.blob.core.windows.net/container/a/b.stoker", "AzureStore", {"container_name": "container"}),
    ],
)
def test_every_provider_is_opened_without_a_request(
    url: str, kind: str, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store: Any = open_bucket(url)._backend._store  # type: ignore[attr-defined]
    assert (type(store).__name__, store.prefix) == (kind, "a/b.stoker")
    assert parts.items() <= dict(store.config).items()


@pytest.mark.parametrize("kind", ["obstore", "fsspec"])
def test_objects_are_listed_by_name_with_their_size(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(kind)
    if kind == "fsspec":
        import fsspec

        system, url = fsspec.filesystem("memory"), "memory://listed"
        for name in ("raw/b.csv", "raw/a.csv", "raw/more/c.csv", "rawest.csv"):
            system.pipe_file(f"/listed/{name}", name.encode())
    else:
        url = f"file://{tmp_path}/listed"
        for name in ("raw/b.csv", "raw/a.csv", "raw/more/c.csv", "rawest.csv"):
            open_bucket(url).put(name, name.encode())
    bucket = open_bucket(url)
    assert [one.name for one in bucket.find()] == ["raw/a.csv", "raw/b.csv", "raw/more/c.csv", "rawest.csv"]
    assert [(one.name, one.num_bytes) for one in bucket.find("raw/m")] == [("raw/more/c.csv", 14)]
    assert bucket.find("none") == []
    before = bucket.head("raw/a.csv")
    assert (before.num_bytes, bucket.size("raw/x.csv")) == (9, None)
    with pytest.raises(StoreNotFoundError):
        bucket.head("raw/x.csv")
    if kind == "obstore":
        assert bucket.head("raw/a.csv") == before
        bucket.remove("raw/a.csv")
        bucket.remove("raw/a.csv")
        assert bucket.size("raw/a.csv") is None
    else:
        with pytest.raises(StorageError, match="was refused"):
            bucket.remove("raw/a.csv")
