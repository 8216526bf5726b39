"""The checkpoint of a judged run: how it leaves the sandbox, whether the run made it, and whether loading it would run code.

What a run writes exists in its sandbox alone. Before the process of the run ends, it packs the checkpoint into a file that was opened
for it outside. From then on it is data: the evaluator gets a copy, and the run has ended.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stoker import _disk
from stoker.errors import TrainError
from stoker.sandbox import mirrored

WEIGHTS = 4096  # bytes of a file of a checkpoint from which on it has weights: configurations are often copies


def pack_checkpoint(path: str, descriptor: int) -> str | None:
    """Write a file or folder to an open file, in the process of the run. Returns why it could not be written."""
    place = Path(mirrored(path) if path.startswith("/") else path)
    if not place.exists():
        return f"did not write its checkpoint {path}"
    handed: Any = _Handed(descriptor)
    with tarfile.open(fileobj=handed, mode="w|", dereference=True) as archive:
        archive.add(place, arcname=Path(path).name)
    return None


class _Handed:
    """A file that was opened outside of the sandbox."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        _disk.write_all(lambda rest, _: _disk.disk.write(self._descriptor, rest), memoryview(data))
        return len(data)


def unpack_checkpoint(packed: Path, folder: Path, name: str) -> Path:
    """Write the packed files into a folder, and return the path of the checkpoint. Anything but files and folders is left out."""
    try:
        with tarfile.open(packed) as archive:
            for member in archive:
                parts = Path(member.name).parts
                if parts[:1] != (name,) or ".." in parts:
                    raise TrainError(f"the checkpoint {name} has a file {member.name!r} outside of it.")
                place = folder.joinpath(*parts)
                if member.isdir():
                    _disk.make_folder(place)
                elif (source := archive.extractfile(member)) is not None:
                    _disk.make_folder(place.parent)
                    _disk.write_file(place, source.read(), durable=False)
    except tarfile.TarError as error:
        raise TrainError(f"the checkpoint {name} was not handed over whole: {error}.") from error
    if not (folder / name).exists():
        raise TrainError(f"the checkpoint {name} was not handed over.")
    return folder / name


def files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint, which is one or a folder of them."""
    return sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]


def copies_of(files: Iterable[Path], tree: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a tree that have the bytes of one of some files, each with that file."""
    by_size: dict[int, list[Path]] = {}
    for file in files:
        by_size.setdefault(file.stat().st_size, []).append(file)
    for path in tree:
        try:
            same = by_size.get(path.stat().st_size, ())
            yield from ((file, path) for file in same if file.read_bytes() == path.read_bytes())
        except OSError:  # it is gone, or not readable
            continue


def code_in(path: Path) -> str | None:
    """Return why loading a checkpoint could run code of the training program; None if it has tensors and plain values alone."""
    for file in files_of(path):
        with file.open("rb") as opened:
            start = opened.read(4)
        if not start.startswith((b"\x80", b"PK\x03\x04")) or _is_exported(file):
            continue
        import torch

        try:
            torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), str(error).splitlines()[0])
            return f"{file.name} is not only tensors and plain values, so that loading it could run code of the run: {reason[:200]}"
    return None


def _is_exported(file: Path) -> bool:
    """Whether a file is a ZIP archive without pickled objects, or a program of TorchScript, which torch reads without Python."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        names = [Path(name).name for name in archive.namelist()]
    return "constants.pkl" in names or not any(name.endswith((".pkl", ".pickle")) for name in names)
