"""Checkpoint: one folder with a safetensors file for each part that has tensors, and checkpoint.json, which is written last.

    step-000001200/
      model.safetensors  optimizer.safetensors  ...     read by any tool that knows the format
      checkpoint.json      facts of the run; of each part its skeleton, and size and hash of its file; a digest of itself

The law: checkpoint.json gets its name when all else is safe on the disk. So a folder without it is debris, and one with it is
whole; reading hashes every byte, and nothing that is read is ever run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stoker import files
from stoker.errors import CheckpointError, CheckpointInvalid, DiskError
from stoker.files import AppendFile
from stoker.train.image import CHUNK_BYTES, Image
from stoker.train.state import flatten, unflatten

INDEX_NAME = "checkpoint.json"
VERSION = 1
MAX_INDEX_BYTES = 64 << 20
_SUFFIX = ".safetensors"
_PART_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_ZEROS = "0" * 32


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a part's file."""

    num_bytes: int
    xxh3: str


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part: its skeleton, and its file if it has tensors."""

    name: str
    file: File | None
    skeleton: Any


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of checkpoint.json."""

    format: Literal["stoker checkpoint"]
    version: int
    digest: str
    facts: Any
    parts: list[Part]


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A state as it was at one moment, on its way to the disk."""

    facts: Any
    skeletons: dict[str, Any]
    images: dict[str, Image]
    """Of the parts that have tensors."""

    @property
    def num_bytes(self) -> int:
        """Size of all files but checkpoint.json."""
        return sum(image.num_bytes for image in self.images.values())


def capture(parts: Mapping[str, Any], facts: Mapping[str, Any], *, memory: dict[str, Image] | None = None) -> Captured:
    """Copy a state into host memory; `memory` of an earlier capture is used again."""
    tensors, encoded_facts = flatten(dict(facts))
    if tensors:
        raise CheckpointError(f"facts.{next(iter(tensors))} is a tensor: facts are plain values, tensors go into parts.")
    memory = {} if memory is None else memory
    skeletons, images = {}, {}
    for name, tree in parts.items():
        if not _PART_NAME.fullmatch(name):
            raise CheckpointError(f"the part {name!r} has a name that is not made of 1 to 32 small letters, digits and '_'.")
        tensors, skeletons[name] = flatten(tree)
        if tensors:
            images[name] = memory.setdefault(name, Image())
            images[name].capture(tensors)
    return Captured(facts=encoded_facts, skeletons=skeletons, images=images)


def write(folder: Path, parts: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Make a checkpoint in a folder that does not exist. Once this returns it survives a power loss; if it raises, it is gone."""
    write_captured(folder, capture(parts, facts))


def write_captured(folder: Path, captured: Captured) -> None:
    """The part of `write` that needs no tensor of the training."""
    if not files.make_folder(folder):
        raise CheckpointError(f"{folder} exists: a checkpoint is never written over.")
    try:
        written = {name: _write_part(folder, name, image) for name, image in captured.images.items()}
        if written:
            with files.naming(folder):
                files.disk.sync_folder(folder)
        parts = [Part(name=name, file=written.get(name), skeleton=skeleton) for name, skeleton in captured.skeletons.items()]
        index = Index(format="stoker checkpoint", version=VERSION, digest=_ZEROS, facts=captured.facts, parts=parts)
        data = _dump(index)
        if len(data) > MAX_INDEX_BYTES:
            raise CheckpointError(f"{folder}: what is not a tensor takes {len(data):,} bytes, but at most {MAX_INDEX_BYTES:,} fit.")
        files.write_file(folder / INDEX_NAME, data)
    except BaseException:
        with contextlib.suppress(DiskError):  # the first error is the one to report; debris is removed by the next save
            remove(folder)
        raise


def remove(folder: Path) -> None:
    """Remove a checkpoint: first what makes it one, then the rest."""
    files.remove_file(folder / INDEX_NAME)
    files.remove_folder(folder)


def is_committed(folder: Path) -> bool:
    """Whether all of a checkpoint was written. That it is still whole only `read` can tell."""
    return (folder / INDEX_NAME).is_file()


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read parts and facts, and verify every byte; anything that is not exactly right raises `CheckpointInvalid`."""
    index = _read_index(folder)
    expected = {INDEX_NAME, *(part.name + _SUFFIX for part in index.parts if part.file is not None)}
    with _reading(folder):
        strange = sorted({entry.name for entry in folder.iterdir()} - expected)
    if strange:
        raise CheckpointInvalid(f"{folder} holds {strange[0]!r}, which is not part of the checkpoint. Remove it.")
    parts = {}
    for part in index.parts:
        path = folder / (part.name + _SUFFIX)
        tensors = {} if part.file is None else _read_tensors(path, part.file)
        with _within(f"{folder}, part {part.name!r}"):
            parts[part.name] = unflatten(tensors, part.skeleton)
    with _within(f"{folder}, facts"):
        facts = unflatten({}, index.facts)
    if not isinstance(facts, dict):
        raise CheckpointInvalid(f"{folder}, facts: expected named values, found {type(facts).__name__}.")
    return parts, facts


def _write_part(folder: Path, name: str, image: Image) -> File:
    path = folder / (name + _SUFFIX)
    file = AppendFile.create(path.with_name(path.name + ".tmp"))
    try:
        image.wait()
        digest = xxhash.xxh3_128()
        for chunk in image.chunks():
            file.append(chunk)
            digest.update(chunk)
        file.publish(path)
    finally:
        file.close()
    return File(num_bytes=file.num_bytes, xxh3=digest.hexdigest())


def _dump(index: Index) -> bytes:
    """One index has one text, in which the digest is that of the text with zeros in its place."""
    text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(index, digest=_ZEROS)), indent=1) + b"\n"
    return text.replace(_ZEROS.encode(), xxhash.xxh3_128_hexdigest(text).encode(), 1)


def _read_index(folder: Path) -> Index:
    path = folder / INDEX_NAME
    with _opened(path) as fd:
        size = os.fstat(fd).st_size
        if size > MAX_INDEX_BYTES:
            raise CheckpointInvalid(f"{path} has {size:,} bytes, but at most {MAX_INDEX_BYTES:,} are allowed.")
        data = os.pread(fd, size, 0)
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).version
        if version != VERSION:
            raise CheckpointInvalid(f"{path} has format version {version}, but this stoker reads version {VERSION}.")
        index = msgspec.json.decode(data, type=Index)
        same = _dump(index) == data
    except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError) as error:
        raise CheckpointInvalid(f"{path} is not the index of a checkpoint: {error}.") from None
    _check(index, path)
    if not same:
        raise CheckpointInvalid(f"{path} does not match its digest: it was changed after it was written.")
    return index


class _AnyVersion(msgspec.Struct):
    version: int


def _check(index: Index, path: Path) -> None:
    names: set[str] = set()
    for i, part in enumerate(index.parts):
        if not _PART_NAME.fullmatch(part.name) or part.name in names:
            _broken(path, f"$.parts[{i}].name", "a new name of 1 to 32 small letters, digits and '_'", repr(part.name))
        names.add(part.name)
        if part.file is not None and part.file.num_bytes < 0:
            _broken(path, f"$.parts[{i}].file.num_bytes", "a size", str(part.file.num_bytes))
        if part.file is not None and not _DIGEST.fullmatch(part.file.xxh3):
            _broken(path, f"$.parts[{i}].file.xxh3", "32 hex digits", repr(part.file.xxh3))


def _broken(path: Path, place: str, expected: str, found: str) -> NoReturn:
    raise CheckpointInvalid(f"{path}: {place}: expected {expected}, found {found}.")


def _read_tensors(path: Path, file: File) -> dict[str, Tensor]:
    """All tensors of a file, in memory of their own: the file may be removed or cut while they are used."""
    with _opened(path) as fd:
        size = os.fstat(fd).st_size
        if size != file.num_bytes:
            raise CheckpointInvalid(f"{path} has {size:,} bytes, but {file.num_bytes:,} are expected.")
        if _hash(fd, size, path) != file.xxh3:
            raise CheckpointInvalid(f"{path} does not match its hash: it was changed or swapped after it was written.")
        try:
            # By the descriptor: what is parsed is what was hashed, whatever the name means by now.
            with safe_open(f"/proc/self/fd/{fd}", framework="pt") as opened:
                return {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118 - it is no dict
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointInvalid(f"{path} is not a safetensors file: {reason}.") from error


def _hash(fd: int, size: int, path: Path) -> str:
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(CHUNK_BYTES, size)))
    done = 0
    while done < size:
        count = os.preadv(fd, [buffer[: size - done]], done)
        if count == 0:
            raise CheckpointInvalid(f"{path} became shorter while it was read.")
        digest.update(buffer[:count])
        done += count
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = files.open_plain(path, CheckpointInvalid)
    except FileNotFoundError:
        raise CheckpointInvalid(f"{path} is missing.") from None
    try:
        with _reading(path):
            yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What the disk refuses to read is as good as damaged: an older checkpoint may still be whole."""
    try:
        yield
    except OSError as error:
        raise CheckpointInvalid(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error


@contextlib.contextmanager
def _within(where: str) -> Iterator[None]:
    """Put the place before the message of an error."""
    try:
        yield
    except CheckpointInvalid as error:
        raise CheckpointInvalid(f"{where}: {error}") from None
