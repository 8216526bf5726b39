"""`append` adds rows and series to a store, `compact` rewrites it as one plain store.

An append packs the new rows into a part, an ordinary store below `parts/`, adds a line to `parts.jsonl`, and replaces the manifest. The
last step is the commit: a process that is killed before it leaves the store as it was, and the next append removes or resumes what is
left. See `stoker.store.appended` for how a store with parts is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from stoker import _disk
from stoker._types import Array
from stoker.errors import BadValueError, DiskError, OptionError, SchemaError, StoreDamagedError, TimeOrderError
from stoker.store import manifest as manifests
from stoker.store.appended import AppendedStore, Order, Overlap, PartLine, convert_times, keys_of, list_entry, places_of, read_parts
from stoker.store.formats.csv import Csv
from stoker.store.formats.discover import StreamSource, find_sources
from stoker.store.manifest import WORK_NAME, Manifest, read_manifest
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker.store.pack.options import PackOptions, parse_dtypes, parse_names
from stoker.store.pack.packer import Progress, quiet
from stoker.store.pack.sql import SqlSource
from stoker.store.pack.values import show_time
from stoker.store.pack.wide import some_names
from stoker.store.shards import Column, NonFiniteCount, entry_of, map_shard
from stoker.store.store import Store
from stoker.store.writer import (
    PARTS_LIST,
    PARTS_NAME,
    commit_manifest,
    make_work,
    new_store,
    remove_debris,
    remove_parts,
    remove_work,
    save_store,
    write_array,
    write_shard,
    write_store,
)

_KEPT_OPTIONS = ("series", "replace")


def append(
    path: str | os.PathLike[str],
    source: object,
    *,
    overlap: Overlap = "error",
    progress: Progress = quiet,
    **options: Any,
) -> Store:
    """Add rows to the series of a store, and new series, in one step: readers see the store before or after it.

    Only the new rows are read and written. The store is then the one that a pack of all rows would make: same series, same order,
    same values, same category codes. A store that is open stays as it was opened.

    Rows are added to the series with the same key. In a store packed with `wide=True`, they are added to the series of their column.
    Where each file is a series, a new file is a new series. Columns are matched by name; those that the store does not have are left
    out. A value per series (a label) is that of the newest rows; a column of these may be absent.

    Args:
        path: the folder of the store.
        source: the new rows, like the source of `stoker.pack`.
        overlap: what to do with rows whose time is not after the last time of their series: "error" refuses them; "replace" and
            "keep" put them at their time, and of two rows with an equal time keep the new or the old one.
        progress: called as by `stoker.pack`.
        options: other arguments of `stoker.pack`, such as `csv=`, `sort=` or `resources=`. Key, time, columns and types are
            those of the store. The statement that it was packed with (`sql=`) is applied to the new rows too; pass `sql=None` for rows
            that have the columns of the store.

    Returns:
        The store, opened with the new rows.

    Raises:
        OptionError: an argument is invalid, or does not fit the store.
        SchemaError: the new rows lack a column of the store, or have another type.
        TimeOrderError: a time is not after the last one of its series, and `overlap` is "error".
        SourceError: the input cannot be read.
        StoreNotFoundError: there is no store at `path`.
        StoreLockedError: another process is writing to the store.
        DiskError: the disk refused an operation; the store is as before.

    Example:
        >>> import tempfile, stoker
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = {"symbol": ["A", "B"], "day": [1, 1], "close": [1.0, 2.0]}
        ...     store = stoker.pack(table, folder + "/prices", series="symbol", time="day")
        ...     store = append(folder + "/prices", {"symbol": ["B", "C"], "day": [2, 2], "close": [2.5, 9.0]})
        ...     [(one["symbol"], one["close"].tolist()) for one in store]
        [('A', [1.0]), ('B', [2.0, 2.5]), ('C', [9.0])]
    """
    folder = _disk.check_path(path)
    if overlap not in get_args(Overlap):
        raise OptionError(f"overlap={overlap!r} is invalid; expected one of {', '.join(get_args(Overlap))}.", parameter="overlap")
    for name in _KEPT_OPTIONS:
        if options.get(name):
            raise OptionError(
                f"{name}= is decided when a store is packed, so append does not take it. Leave it out.", parameter=name
            )
    if options.get("missing") == "ffill":
        raise OptionError(
            "missing='ffill' cannot fill new rows from the steps before them. Fill them first, or pack all rows again.",
            parameter="missing",
        )
    read_manifest(folder)  # there must be a store before there is a lock in its folder
    with _disk.Lock(folder):
        now = open_store(folder)
        manifest = now.manifest
        if manifest is None:
            raise RuntimeError("a store on disk has a manifest")
        base = now.base if isinstance(now, AppendedStore) else now
        lines, listed = read_parts(folder, manifest)
        remove_parts(folder, after=len(lines) + 2)  # of a compaction that was killed; the next part may be resumed
        source, order, arguments = _plan(base, source, options)
        if lines and lines[0].order != order:
            raise OptionError(
                f"{folder} has been appended to {_ORDERS[lines[0].order]}, but these rows would be added {_ORDERS[order]}.",
                path=folder,
            )
        name = f"{len(lines) + 2:06d}"
        try:
            part = pack(source, folder / PARTS_NAME / name, replace=True, progress=progress, **arguments)
            _check_columns(base, part)
            last_time = _check_times(now, part, lines, order, overlap)
            line = PartLine(
                name=name,
                digest=part.digest or "",
                num_series=len(part),
                num_steps=part.num_steps,
                order=order,
                overlap=overlap,
                last_time=last_time,
            )
            _commit(folder, manifest, [*lines, line], listed)
        except Exception:
            with contextlib.suppress(DiskError):  # the first error is the one to report
                _undo(folder, manifest, listed)
            raise
    return open_store(folder)


_ORDERS = {"key": "by key", "name": "by the names of columns", "new": "as new series"}


def _commit(folder: Path, manifest: Manifest, parts: Sequence[PartLine], listed: bytes) -> None:
    """List a part that is on disk, and replace the manifest: from here on its rows are in the store."""
    line = msgspec.json.encode(parts[-1]) + b"\n"
    # Older manifests count fewer lines of the same list, so it may be replaced before the manifest is.
    _disk.write_file(folder / PARTS_LIST, listed + line)
    commit_manifest(folder, manifests.with_parts(manifest, list_entry(parts, listed + line)))


def _undo(folder: Path, manifest: Manifest, listed: bytes) -> None:
    """After an error: remove the part and its line, unless the new manifest is in place already."""
    if read_manifest(folder).digest != manifest.digest:
        return
    with _disk.naming(folder):
        _disk.disk.sync_folder(folder)  # from here on the new manifest cannot come back
    if listed and (folder / PARTS_LIST).read_bytes() != listed:
        _disk.write_file(folder / PARTS_LIST, listed)
    remove_parts(folder, after=manifest.revision if manifest.revision is not None else 0)


# What the new rows are: their columns, types and series.


def _plan(base: Store, source: object, options: Mapping[str, Any]) -> tuple[object, Order, dict[str, Any]]:
    """The source (opened, if it is a stream), how its series join the store, and the arguments of its pack."""
    arguments = dict(options)
    has_time = base.time is not None
    csv = options.get("csv") or Csv()
    is_wide = bool(options.get("wide"))
    statement = arguments.setdefault("sql", base.manifest.sql if base.manifest is not None else None)
    is_table = base.key is not None or has_time or statement is not None
    sources = find_sources(source, csv=csv, table=is_table, wide=is_wide)
    if isinstance(sources[0], StreamSource):
        source = sources[0]  # its stream is open
    result = sources[0] if statement is None else SqlSource(statement, sources, PackOptions(csv=csv))
    try:
        names = result.schema().names
    except OptionError as error:
        if statement is None or "sql" in options:
            raise
        raise OptionError(
            f"{error} {base.name} was packed with this statement: pass sql=None for rows that have its columns.", parameter="sql"
        ) from None
    steps = [name for name, column in base.schema.items() if column.level == "step"]
    absent = [name for name in steps if name not in names]
    is_files = base.key is None or _names_are_sources(base)
    values = [name for name in steps if name != base.time]
    order: Order = "new" if is_files else "key"
    if is_wide or (absent and base.key not in names and values == ["value"] and (not has_time or base.time in names)):
        if base.key is None:
            raise OptionError(
                f"{base.name} does not name its series, so columns cannot be matched to them. Pack all rows again.", path=base.name
            )
        order, arguments["wide"] = "name", options.get("wide") or True
    elif not is_files:
        if base.key not in names:
            raise SchemaError(f"{result.label} has no column {base.key!r}, which names the series of {base.name}. {_has(names)}")
        arguments["series"] = base.key
    if has_time and (order != "name" or base.time in names):
        arguments.setdefault("time", base.time)
    if not options.get("columns"):
        if order != "name":
            if absent:
                shown = some_names([repr(name) for name in absent])
                raise SchemaError(f"{result.label} has no column {shown}, which {base.name} has. {_has(names)}")
            arguments["columns"] = [name for name in base.schema if name in names and name != base.key]
        elif "columns" in arguments:
            arguments.pop("columns")
    default, named = parse_dtypes(options.get("dtype"))
    if order == "name":
        if default is None and not named:
            arguments["dtype"] = _dtype_name(base.schema["value"]) if "value" in base.schema else None
    else:
        kept = parse_names(arguments.get("columns"))
        wanted = {
            name: _dtype_name(column) for name, column in base.schema.items() if name != base.key and (not kept or name in kept)
        }
        asked = {name: kind for name, kind in wanted.items() if kind is not None and name in names}
        arguments["dtype"] = {**asked, **named}
    return source, order, arguments


def _names_are_sources(base: Store) -> bool:
    """Whether each series is a file: its name is that of its source."""
    sources = base.manifest.sources if base.manifest is not None else []
    texts = base.schema[base.key].texts if base.key is not None else None
    return texts is not None and len(sources) == len(base) and all(texts[i] == sources[i].name for i in {0, len(base) - 1})


def _dtype_name(column: Column) -> str | None:
    if column.kind in ("bfloat16", "category", "text"):
        return column.kind
    return column.dtype.name if column.kind == "number" and column.dtype is not None else None


def _check_columns(base: Store, part: Store) -> None:
    """Refuse new rows whose columns the store cannot hold as they are."""
    problems = []
    for name, column in base.schema.items():
        new = part.schema.get(name)
        if new is None and name == base.key:
            continue
        if new is None:
            if column.level == "step":
                problems.append(f"there is no column {name!r}")
            elif column.kind == "number" and column.dtype is not None and column.dtype.kind != "f":
                problems.append(f"there is no column {name!r}, and {column.label} cannot be missing")
        elif (new.level, new.kind, new.dtype, new.width) != (column.level, column.kind, column.dtype, column.width):
            problems.append(f"column {name!r} is {new.label} per {new.level}, not {column.label} per {column.level}")
        elif new.unit != column.unit:
            try:
                convert_times(part.column(name), new.unit, column.unit, f"column {name!r}")
            except BadValueError as error:
                problems.append(str(error).rstrip("."))
            if name == base.key:
                problems.append(f"the key {name!r} is {new.label}, not {column.label}")
    if problems:
        raise SchemaError(f"the new rows do not fit {base.name}: {'; '.join(problems)}. Convert them, or pack all rows again.")


def _check_times(now: Store, part: Store, lines: Sequence[PartLine], order: Order, overlap: Overlap) -> int | float | None:
    """Refuse times that are not after the last one of their series, unless a rule was given; returns the last time of all series."""
    name = now.time
    if name is None:
        return None
    base = now.base if isinstance(now, AppendedStore) else now
    times = (
        convert_times(part.column(name), part.schema[name].unit, base.schema[name].unit, name) if len(part) else part.column(name)
    )
    last = lines[-1].last_time if lines else _latest(base.column(name), base.offsets)
    if not len(times):
        return last
    if order != "new" and overlap == "error" and last is not None and not times.min() > last:
        _refuse_early(now, part, times, name)
    newest: int | float = times.max().item()
    return newest if last is None else max(last, newest)


def _latest(times: Array, offsets: Array) -> int | float | None:
    """The largest of the last times of all series; times increase within a series."""
    ends = offsets[1:][np.diff(offsets) > 0] - 1
    latest: int | float | None = times[ends].max().item() if len(ends) else None
    return latest


def _refuse_early(now: Store, part: Store, times: Array, name: str) -> None:
    """Compare series by series, as some times are not after the last of the whole store."""
    places = places_of(keys_of(part, now.key), keys_of(now, now.key))
    both = np.flatnonzero((places >= 0) & (part.lengths > 0))
    both = both[now.lengths[places[both]] > 0]
    first = times[part.offsets[both]]
    last = now.column(name)[now.offsets[places[both] + 1] - 1]
    early = np.flatnonzero(~(first > last))
    if not len(early):
        return
    row, column = int(early[0]), now.schema[name]
    key = keys_of(part, now.key)[int(both[row])].as_py()
    is_moment = column.kind == "timestamp"
    shown, before = (show_time(time, column.unit or "s") if is_moment else f"{time}" for time in (first[row], last[row]))
    more = f" ({len(early):,} series have such rows)" if len(early) > 1 else ""
    raise TimeOrderError(
        f"the new rows of {now.key} {key!r} begin at {name} {shown}, but the store has rows up to {before}{more}. Leave out rows that are "
        "there already, or pass overlap='replace' or overlap='keep' to merge them by time.",
        parameter="overlap",
    )


def _has(names: Sequence[str]) -> str:
    return f"It has {', '.join(names[:20])}."


def compact(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, replace: bool = False) -> Store:
    """Rewrite a store that was appended to as one plain store, in one step. Memory is bounded by the appended rows.

    Args:
        path: the folder of the store.
        out: the folder of a new store; `path` stays as it is. Without it the store is replaced. Stores that are open and in use stay
            readable.
        replace: replace a store at `out`.

    Returns:
        The compacted store, opened.

    Raises:
        StoreNotFoundError: there is no store at this path.
        StoreExistsError: there is a store at `out`, and `replace` is False.
        StoreLockedError: another process is writing to the store.
        DiskError: the disk refused an operation; the store is as before.

    Example:
        >>> import tempfile, stoker
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = stoker.pack({"id": [1, 2], "x": [0.5, 1.5]}, folder + "/a", series="id")
        ...     _ = stoker.append(folder + "/a", {"id": [2], "x": [2.5]})
        ...     store = compact(folder + "/a")
        ...     store.column("x").tolist()
        [0.5, 1.5, 2.5]
    """
    folder = _disk.check_path(path)
    if out is not None:
        target = _disk.check_path(out)
        save_store(open_store(folder), target, note=folder.name, replace=replace)
        return open_store(target)
    if read_manifest(folder).parts is None:
        if any((folder / name).exists() for name in (PARTS_NAME, PARTS_LIST, WORK_NAME)):
            with _disk.Lock(folder):  # what a compaction that was killed behind its commit has left
                remove_debris(folder)
                remove_work(folder)
        return open_store(folder)
    with new_store(folder, [], replace=True) as commit:
        store = open_store(folder)
        commit(write_store(store, folder, note=folder.name))
    return open_store(folder)


def add_column(
    store: Store, path: Path, name: str, parts: Iterator[Array], *, dtype: str, width: int | None, note: str, replace: bool = False
) -> Store:
    """Write a copy of a store on disk to `path`, with one more column of one row per step.

    The copy replaces a store at `path` in one step: until its manifest is written, the store that was there stays as it was.

    Args:
        store: The store to copy. Its shards are hashed again, so that damage is not copied.
        path: Folder of the new store.
        name: Name of the new column.
        parts: The rows of the column, piece by piece, so that memory is bounded.
        dtype: Type of the column, such as "<f4".
        width: Numbers per row; None for one.
        note: Note that the new store keeps about the column.
        replace: Replace a store at `path`; without it, a store there is an error.

    Returns:
        The new store.

    Raises:
        OptionError: The store is in memory, or has a column of this name.
        StoreDamagedError: A shard has changed since it was written.
        StoreExistsError: There is a store at `path`, and `replace` is False.
    """
    manifest, source = store.manifest, store.path
    if source is None or manifest is None:
        raise OptionError(f"{store.name} is in memory: pack it first, stoker.pack(store, path).", parameter="store")
    if manifest.parts is not None:
        raise OptionError(f"{store.name} was appended to. Run `stoker append {source} --compact` first.", path=source)
    if name in store.schema:
        raise OptionError(f"{store.name} has a column {name!r} already. Choose another name.", column=name)

    tally = NonFiniteCount()

    def counted() -> Iterator[Array]:
        done = 0
        for part in parts:
            tally.add(part, first_step=done)
            done += len(part)
            yield part

    with new_store(path, [source], replace=replace) as commit:
        make_work(path)
        for i, shard in enumerate({shard.file: shard for shard in manifests.shards(manifest)}.values()):
            if write_array(path, map_shard(source, shard, "a column of the store"), f"final.{i}") != shard:
                raise StoreDamagedError(
                    f"{source / shard.file} has changed since it was written. Run `stoker inspect {source} --verify`."
                )
        values = write_shard(path, "final.added", np.dtype(dtype), width, counted())
        column = Column(name=name, dtype=np.dtype(dtype), level="step", kind="number")
        entry = entry_of(column, values, nonfinite=tally.at(store.offsets))
        commit(msgspec.structs.replace(manifest, columns=[*manifest.columns, entry], notes=[*manifest.notes, note]))
    return open_store(path)
