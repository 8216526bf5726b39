"""`find_sources`: the readers of what the user passes (files, patterns, folders, tables), always in sorted order."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from stoker._disk import check_path
from stoker.errors import OptionError, SourceEmptyError, SourceInvalidError, SourceNotFoundError
from stoker.store.formats.base import MAX_LIMITS, DataSource, ReadLimits
from stoker.store.formats.csv import Dialect
from stoker.store.formats.time_moe import META, is_time_moe

_COMPRESSED = {".gz", ".zst", ".bz2", ".xz"}
_READERS = {
    ".parquet": "parquet:ParquetSource",
    ".pq": "parquet:ParquetSource",
    ".arrow": "arrow:ArrowSource",
    ".feather": "arrow:ArrowSource",
    ".ipc": "arrow:ArrowSource",
    ".jsonl": "json:JsonLinesSource",
    ".ndjson": "json:JsonLinesSource",
    ".json": "json:JsonSource",
    ".npy": "numpy:NpySource",
    ".npz": "numpy:NpzSource",
    ".ts": "ucr:TsSource",
    ".arff": "ucr:ArffSource",
}
"""Module and class by suffix, imported when used."""
SUFFIXES = [".csv", ".tsv", ".txt", *_READERS]
_PLAIN_ONLY = {".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npy", ".npz"}


def find_sources(
    given: object,
    *,
    dialect: Dialect,
    table: bool = False,
    wide: bool = False,
    left_out: list[Path] | None = None,
    limits: ReadLimits = MAX_LIMITS,
) -> list[DataSource]:
    """Find the readers of a path, a pattern, a folder, a list of these, or a table in memory.

    Args:
        given: what the user passed as the source.
        dialect: how text tables are written.
        table: rows are steps even where a format would hold one series per row (`.tsv`, `.arff`).
        wide: each column is a series.
        left_out: gets the files that no reader knows.
        limits: what no part of a file may exceed.

    Raises:
        SourceNotFoundError: no file matches.
        SourceEmptyError: a folder or file has nothing to read.
        SourceInvalidError: a file cannot be read.

    Example:
        >>> [source.name for source in find_sources({"x": [1, 2]}, dialect=Dialect())]
        ['<dict>']
    """
    from stoker.store.formats.tables import is_table, table_source

    if is_table(given):
        return [table_source(given)]
    inputs = [given] if isinstance(given, str | os.PathLike) else list(given) if isinstance(given, Iterable) else None
    if not inputs or not all(isinstance(one, str | os.PathLike) for one in inputs):
        raise OptionError(f"{type(given).__name__} is not data. Pass a path, a pattern, a folder, or a table.")
    # A file that two patterns match, or a folder and a pattern, is read once.
    others: list[Path] = []
    named = {path.absolute(): path for one in inputs for path in _resolve(os.fspath(one), others)}
    paths = list(named.values())
    if left_out is not None:
        left_out.extend(path for path in sorted({one.absolute() for one in others}) if path not in named)
    parent = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    sources = [_source(path, _name(path, parent), dialect, table, wide, limits) for path in paths]
    for source in sources:
        source.limits = limits
    return sources


def _name(path: Path, parent: Path) -> str:
    """The name for the manifest: relative to the folder that all sources share, and the same in every locale."""
    try:
        return os.fsencode(path.absolute().relative_to(parent).as_posix()).decode("utf-8")
    except UnicodeDecodeError:
        raise SourceInvalidError(f"{str(path)!a} has a name that is not UTF-8. Rename it, or leave it out.") from None


def _resolve(given: str, left_out: list[Path]) -> list[Path]:
    path = check_path(given)
    if path.is_dir():
        return _walk(path, left_out)
    if path.exists():
        return [path]
    if not glob.has_magic(given):
        raise SourceNotFoundError(f"{given} does not exist. Give a file, a folder, or a pattern like 'data/*.csv' (in quotes).")
    matches = sorted(Path(match) for match in glob.glob(given, recursive=True))
    found: list[Path] = []
    for match in matches:
        if match.is_dir():
            with contextlib.suppress(SourceEmptyError):  # a folder among others may be empty
                found.extend(_walk(match, left_out))
        else:
            found.append(match)
    if not found:
        raise SourceNotFoundError(f"no file matches {given!r} (looked in {Path.cwd()}).")
    return found


def _walk(folder: Path, left_out: list[Path]) -> list[Path]:
    """All files below a folder that some reader knows; a folder that is one data set is one source."""
    if _is_dataset(folder):
        left_out.extend(_beside(folder))
        return [folder]
    found: list[Path] = []
    others: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=_refuse_unlistable):
        folders.sort()
        for name in list(folders):
            path = Path(root, name)
            if _is_store(path):
                folders.remove(name)  # a store beside its sources is a result, not a source
            elif _is_dataset(path):
                found.append(path)
                folders.remove(name)
                left_out.extend(_beside(path))
            elif path.is_symlink():
                raise SourceInvalidError(
                    f"{path} is a link to a folder, which is not followed. Pass its target as a source, or remove it."
                )
        for name in sorted(names):
            known = _suffix(Path(name)) in SUFFIXES
            found.extend([Path(root, name)] if known else [])
            others.extend([] if known else [Path(root, name)])
    if not found:
        seen = f"it holds {len(others):,} other files, like {others[0].name!r}" if others else "it is empty"
        raise SourceEmptyError(f"folder {folder} holds nothing to read: looked for {' '.join(SUFFIXES)}, but {seen}.")
    left_out.extend(others)
    return sorted(found)


def _beside(folder: Path) -> list[Path]:
    """Files in a Time-MoE folder that are not read with it."""
    if not is_time_moe(folder):
        return []
    return sorted(path for path in folder.iterdir() if path.name != META and path.suffix != ".bin")


def _refuse_unlistable(error: OSError) -> NoReturn:
    raise SourceInvalidError(f"{error.filename} cannot be read: {error.strerror}. Change its mode, or leave it out.")


def _is_dataset(folder: Path) -> bool:
    """A folder that is one data set: a store, a Time-MoE folder, or a Hugging Face data set."""
    return _is_store(folder) or is_time_moe(folder) or _is_hugging_face(folder)


def _is_store(folder: Path) -> bool:
    """A store, or the folder of an interrupted pack."""
    if (folder / ".lock").is_file() and (folder / "work").is_dir():
        return True
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        return b'"stoker"' in file.read(64)


def _is_hugging_face(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _source(path: Path, name: str, dialect: Dialect, table: bool, wide: bool, limits: ReadLimits) -> DataSource:
    """The reader for a path."""
    if path.is_dir():
        return _dataset(path, name)
    _refuse_unreadable(path)
    if path.stat().st_size == 0:
        raise SourceEmptyError(f"{path} is empty (0 bytes). Remove it, or leave it out of the pattern.")
    suffix = _suffix(path)
    if suffix in _PLAIN_ONLY and path.suffix.lower() in _COMPRESSED:
        raise SourceInvalidError(f"{path} is a compressed {suffix} file, which cannot be read in parts. Decompress it first.")
    if suffix in (".csv", ".tsv", ".txt"):
        return _delimited(path, name, suffix, dialect, table, limits)
    if suffix in _READERS:
        module, _, reader = _READERS[suffix].partition(":")
        options = {"wide": wide} if suffix == ".npy" else {"as_table": table or wide} if suffix == ".arff" else {}
        source: DataSource = getattr(import_module(f"stoker.store.formats.{module}"), reader)(path, name, **options)
        return source
    known = " ".join(SUFFIXES)
    raise SourceInvalidError(
        f"{path} has the suffix {suffix or 'none'!r}, which no reader knows. Known: {known} (and .gz .zst .bz2 .xz of text)."
    )


def _refuse_unreadable(path: Path) -> None:
    if not path.exists():
        raise SourceInvalidError(f"{path} is a link to {path.readlink()}, which does not exist. Remove it, or leave it out.")
    if not path.is_file():
        raise SourceInvalidError(f"{path} is not a plain file. Leave it out.")
    if not os.access(path, os.R_OK):
        raise SourceInvalidError(f"{path} cannot be read: permission denied. Change its mode, or leave it out.")


def _delimited(path: Path, name: str, suffix: str, dialect: Dialect, table: bool, limits: ReadLimits) -> DataSource:
    """A text table; but a `.tsv` without header that begins with a label is a UCR set, unless rows are steps."""
    from stoker.store.formats.csv import CsvSource
    from stoker.store.formats.ucr import UcrSource, is_ucr

    if suffix == ".tsv" and not table and dialect == Dialect() and is_ucr(path, limits):
        return UcrSource(path, name)
    return CsvSource(path, name, dialect)


def _dataset(path: Path, name: str) -> DataSource:
    if _is_hugging_face(path):
        from stoker.store.formats.arrow import HuggingFaceSource

        return HuggingFaceSource(path, name)
    if is_time_moe(path):
        from stoker.store.formats.time_moe import TimeMoeSource

        return TimeMoeSource(path, name)
    from stoker.store.formats.tables import TableSource
    from stoker.store.store import open_store

    return TableSource(open_store(path).to_arrow(), name, path)
