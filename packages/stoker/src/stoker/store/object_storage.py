"""Object storage: a folder of S3, GCS, Azure or a web server as names and bytes, with retries and counts.

    open_bucket    the folder that a URL names
    Bucket         get, get a range, put once: each request repeated with backoff where that can help

`obstore` speaks to S3, GCS, Azure, HTTP and local files; it also finds and refreshes credentials. `fsspec` reads any other protocol. Both
are imported when a URL is opened. What they report never reaches a message unfiltered, because it may hold signed URLs.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from stoker._text import how_to_install, is_url, printable, redact
from stoker.errors import OptionError, StorageError, StoreDamagedError, StoreExistsError, StoreNotFoundError

T = TypeVar("T")

ATTEMPTS = 7
"""Requests that one read or write makes at most."""
BACKOFF_S = 0.1
"""Pause before the second attempt; it doubles with each one, up to `MAX_BACKOFF_S`."""
MAX_BACKOFF_S = 8.0
TIMEOUT_S = 60.0
"""What a request may take, from its beginning to the last byte."""
WRONG_BYTES = 3
"""How often a range with wrong bytes is requested: bytes may be damaged on their way, those in a bucket stay as they are."""

_OBSTORE = {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https", "file"}
_AZURE = re.compile(r"[a-z0-9-]+@[a-z0-9]+(\.[a-z0-9-]+)+", re.IGNORECASE)  # container@account.dfs.core.windows.net


def check_url(url: str) -> str:
    """The URL without a slash at its end; raises `OptionError` if it holds credentials, which would end up in files and messages."""
    if not is_url(url):
        raise OptionError(f"{printable(url)} is not a URL; expected one like 's3://bucket/events.stoker'.", path=url)
    scheme, _, rest = url.partition("://")
    authority = rest.split("/")[0]
    is_azure = scheme.lower() in ("abfs", "abfss") and _AZURE.fullmatch(authority) is not None
    if ("@" in authority and not is_azure) or "?" in rest or "#" in rest:
        raise OptionError(
            f"a URL of {scheme.lower()}:// holds a user name, a query or a fragment, which may be credentials. Leave them out and "
            f"set them in the environment, like AWS_ACCESS_KEY_ID.",
            path=url,
        )
    if not rest.strip("/") or any(ord(character) < 32 for character in rest):
        raise OptionError(f"{printable(url)} names no store; expected a URL like 's3://bucket/events.stoker'.", path=url)
    return url.rstrip("/")


@dataclass(frozen=True)
class Traffic:
    """Requests that were made, and bytes that they brought or took."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    retries: int = 0

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(*(now - before for now, before in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class FoundObject:
    """An object of a listing. `stamp` changes with its bytes: its ETag, or its time."""

    name: str
    num_bytes: int
    stamp: str


class _Obstore:
    """What a bucket asks of a library. Failures are FileNotFoundError, PermissionError, FileExistsError, or what a retry may help."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore import exceptions, store
        except ImportError:
            raise OptionError(f"{url} needs the package obstore. {how_to_install('remote')}", path=url) from None
        self._library = obstore
        self._kinds = exceptions
        asked = (os.environ.get(f"{name}_ALLOW_HTTP", "").lower() for name in ("AWS", "AZURE", "GOOGLE"))
        allow_http = url.lower().startswith("http://") or any(name in ("1", "true") for name in asked)
        options: Any = {"timeout": f"{TIMEOUT_S:.0f}s", "connect_timeout": "10s", "allow_http": allow_http}
        self._prefix = ""
        try:
            if url.lower().startswith("file:"):  # from the root, as a folder that is yet to be made cannot be opened
                self._store: Any = store.LocalStore()
                self._prefix = unquote(urlsplit(url).path).strip("/") + "/"
            else:
                # Attempts are counted and paused here, the same for all libraries.
                retries: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=TIMEOUT_S)}
                self._store = store.from_url(url, client_options=options, retry_config=retries)
        except Exception as error:
            advice = " Set AZURE_STORAGE_ACCOUNT_NAME." if "Account must be specified" in str(error) else ""
            raise OptionError(f"{url} cannot be opened: {redact(str(error))}{advice and '.'}{advice}", path=url) from None

    def _named(self, call: Callable[[], T]) -> T:
        kinds = self._kinds
        try:
            return call()
        except FileNotFoundError:  # which some of obstore's exceptions are as well
            raise
        except kinds.NotFoundError:
            raise FileNotFoundError from None
        except (kinds.PermissionDeniedError, kinds.UnauthenticatedError):
            raise PermissionError from None
        except (kinds.AlreadyExistsError, kinds.PreconditionError):
            raise FileExistsError from None
        except Exception as error:
            raise ConnectionError(redact(str(error))) from None

    def get(self, name: str, limit: int) -> tuple[bytes, Any]:
        def read() -> tuple[bytes, Any]:
            response = self._library.get(self._store, self._prefix + name)
            tag = {key: response.meta[key] for key in ("e_tag", "version") if response.meta[key] is not None}
            parts, size = [], 0
            for part in response.stream(min_chunk_size=1 << 20):  # never more than is allowed, whatever size the server claims
                parts.append(bytes(part))
                size += len(part)
                if size > limit:
                    break
            return b"".join(parts), tag

        return self._named(read)

    def get_range(self, name: str, start: int, stop: int) -> Any:
        return self._named(lambda: self._library.get_range(self._store, self._prefix + name, start=start, end=stop))

    def head(self, name: str) -> FoundObject:
        return self._found(self._named(lambda: self._library.head(self._store, self._prefix + name)))

    def _found(self, meta: Any) -> FoundObject:
        return FoundObject(str(meta["path"])[len(self._prefix) :], int(meta["size"]), str(meta["e_tag"] or meta["last_modified"]))

    def put(self, name: str, data: Any, *, tag: Any, is_new: bool) -> None:
        mode: Any = "create" if is_new else tag if tag else "overwrite"
        self._named(lambda: self._library.put(self._store, self._prefix + name, data, mode=mode))

    def find(self, prefix: str) -> list[FoundObject]:
        # A listing names whole folders only, so the last part of the prefix is compared here.
        folder = self._prefix + (prefix.rpartition("/")[0] if "/" in prefix else "")

        def read() -> list[FoundObject]:
            return [self._found(meta) for part in self._library.list(self._store, folder.strip("/") or None) for meta in part]

        return [entry for entry in self._named(read) if entry.name.startswith(prefix)]

    def remove(self, name: str) -> None:
        self._named(lambda: self._library.delete(self._store, self._prefix + name))


class _Fsspec:
    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise OptionError(f"{url} needs the package fsspec, and the one of its protocol: install them.", path=url) from None
        try:
            self._system, self._folder = fsspec.core.url_to_fs(url)
        except Exception as error:  # an unknown protocol, or a package that is not installed
            raise OptionError(f"{url} cannot be opened: {redact(str(error))}", path=url) from None

    def get(self, name: str, limit: int) -> tuple[bytes, Any]:
        return self._system.cat_file(f"{self._folder}/{name}", start=0, end=limit + 1), None

    def get_range(self, name: str, start: int, stop: int) -> Any:
        return self._system.cat_file(f"{self._folder}/{name}", start=start, end=stop)

    def head(self, name: str) -> FoundObject:
        details = self._system.info(f"{self._folder}/{name}")
        return FoundObject(name, int(details["size"]), _stamp(details))

    def put(self, name: str, data: Any, *, tag: Any, is_new: bool) -> None:
        raise PermissionError("read only")

    def find(self, prefix: str) -> list[FoundObject]:
        details = self._system.find(self._folder, detail=True)
        entries = [
            FoundObject(path.removeprefix(self._folder).lstrip("/"), int(info.get("size") or 0), _stamp(info))
            for path, info in details.items()
        ]
        return [info for info in entries if info.name.startswith(prefix)]

    def remove(self, name: str) -> None:
        raise PermissionError("read only")


def _stamp(details: dict[str, Any]) -> str:
    """What changes with an object, as far as a file system of fsspec says it."""
    return str(
        next((details[key] for key in ("ETag", "etag", "mtime", "last_modified", "LastModified", "created") if key in details), "")
    )


class Bucket:
    """A folder of object storage. Threads may share it.

    Raises (all methods):
        StoreNotFoundError: there is no such object.
        StorageError: the request was refused, or failed at every attempt.
    """

    def __init__(self, url: str, backend: _Obstore | _Fsspec) -> None:
        self.url = url
        self._backend = backend
        self._traffic = Traffic()
        self._lock = threading.Lock()

    @property
    def traffic(self) -> Traffic:
        """What was requested up to now."""
        return self._traffic

    def get(self, name: str, limit: int) -> tuple[bytes, Any]:
        """An object of at most `limit` bytes (one more where it is larger), and its tag."""
        return self._repeated(name, lambda: self._backend.get(name, limit), lambda found: len(found[0]))

    def get_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> Any:
        """Bytes `start` to `stop`, as a buffer that `is_right` has accepted.

        Raises:
            StoreDamagedError: the object is shorter, or `is_right` refuses its bytes again and again.
        """
        wrong = 0

        def read() -> Any:
            nonlocal wrong
            data = self._backend.get_range(name, start, stop)
            if len(data) == stop - start and is_right(data):
                return data
            wrong += 1
            what = (
                f"{len(data):,} of {stop - start:,} bytes arrived" if len(data) != stop - start else "the bytes have another hash"
            )
            if wrong < WRONG_BYTES:
                raise ConnectionError(what)
            raise StoreDamagedError(f"{self.url}/{name}: {what} (bytes {start:,} to {stop:,}). Upload the store again.")

        try:
            return self._repeated(name, read, len)
        except StorageError:
            num_bytes = self._size_or_none(name)
            if num_bytes is not None and num_bytes < stop:
                raise StoreDamagedError(
                    f"{self.url}/{name} has {num_bytes:,} bytes, but at least {stop:,} are expected. Upload the store again."
                ) from None
            raise

    def _size_or_none(self, name: str) -> int | None:
        try:
            return self._backend.head(name).num_bytes
        except Exception:  # the first error is the one to report
            return None

    def size(self, name: str) -> int | None:
        """The size of an object; None where there is none."""
        try:
            return self.head(name).num_bytes
        except StoreNotFoundError:
            return None

    def head(self, name: str) -> FoundObject:
        """Size and stamp of an object."""
        return self._repeated(name, lambda: self._backend.head(name), lambda _: 0)

    def put(self, name: str, data: Any, *, tag: Any = None, is_new: bool = False) -> None:
        """Write an object, only if there is none (`is_new`) or if it still has `tag`.

        Raises:
            StoreExistsError: there is one, or it was changed since `tag` was read.
        """
        attempts = 0

        def write() -> None:
            nonlocal attempts
            attempts += 1
            self._backend.put(name, data, tag=tag, is_new=is_new)

        try:
            self._repeated(name, write, lambda _: 0)
        except StoreExistsError:
            # An earlier attempt may have been written although its answer was lost.
            if attempts == 1 or self.get(name, len(data))[0] != bytes(data):
                raise
        self._count(bytes_written=len(data))

    def find(self, prefix: str = "") -> list[FoundObject]:
        """The objects below this folder whose names begin with `prefix`, by name."""
        return sorted(self._repeated(prefix, lambda: self._backend.find(prefix), lambda _: 0), key=lambda one: one.name)

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""
        with contextlib.suppress(StoreNotFoundError):
            self._repeated(name, lambda: self._backend.remove(name), lambda _: 0)

    def _count(self, **more: int) -> None:
        with self._lock:
            self._traffic = replace(self._traffic, **{key: getattr(self._traffic, key) + value for key, value in more.items()})

    def _repeated(self, name: str, call: Callable[[], T], num_bytes: Callable[[T], int]) -> T:
        where = f"{self.url}/{name}"
        for attempt in range(ATTEMPTS):
            try:
                self._count(requests=1, retries=int(attempt > 0))
                answer = call()
                self._count(bytes_read=num_bytes(answer))
                return answer
            except FileNotFoundError:
                raise StoreNotFoundError(f"{where} does not exist.") from None
            except FileExistsError:
                raise StoreExistsError(f"{where} exists already, or was changed by another writer meanwhile.") from None
            except PermissionError:
                raise StorageError(
                    f"{where} was refused: check the credentials in the environment, and the rights they give."
                ) from None
            except StoreDamagedError:
                raise
            except Exception as error:
                if attempt + 1 == ATTEMPTS:
                    raise StorageError(f"{where} failed {ATTEMPTS} times, the last time with: {redact(str(error))}") from None
                # With jitter, so that many readers do not come back at the same moment.
                time.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2**attempt) * (0.5 + random.random() / 2))
        raise RuntimeError("no attempt was made")


def open_bucket(url: str) -> Bucket:
    """The folder that a URL names.

    Raises:
        OptionError: the URL holds credentials, or needs a package that is not installed; the message says which.
    """
    url = check_url(url)
    return Bucket(url, (_Obstore if url.partition(":")[0].lower() in _OBSTORE else _Fsspec)(url))
