"""Sequences as a store: packed tensors seen as one, and tables of any size, which stream through `stoker.pack`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker import files
from stoker.encode.sequences.columns import TableColumn, read_column
from stoker.errors import BadValue, OptionError
from stoker.store.arrays import store_from_arrays
from stoker.store.column import Column, Texts
from stoker.store.pack import pack
from stoker.store.packing.options import DEFAULT_MEMORY, Missing
from stoker.store.packing.packing import quiet
from stoker.store.packing.state import Progress
from stoker.store.store import Store
from stoker.store.target import check_target

Array = npt.NDArray[Any]

_CHUNK_BYTES = 8 << 20


def store_in_memory(columns: Mapping[str, Array], offsets: Array, key: tuple[str, Any] | None) -> Store:
    """A store over flat columns, and the key of each sequence as a column of its own."""
    store = store_from_arrays(columns, lengths=np.diff(offsets))
    if key is None:
        return store
    name, keys = key
    column, values = _key_column(name, keys)
    return Store(
        {name: column, **store.schema},
        {**({} if values is None else {name: values}), **{one: store.column(one) for one in store.schema}},
        num_series=len(store),
        length=store.uniform_length,
        offsets=None if store.uniform_length is not None else store.offsets,
        name=store.name,
    )


def _key_column(name: str, keys: Any) -> tuple[Column, Array | None]:
    if isinstance(keys, pa.Array):
        if keys.null_count:
            raise OptionError("one of the contexts has no key, which a store cannot hold. Pass key=None.")
        if pa.types.is_temporal(keys.type):
            keys = np.asarray(keys.to_numpy(zero_copy_only=False))
        elif pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
            return Column(name=name, dtype=None, level="series", kind="text", texts=lay_texts(keys)), None
        else:
            raise OptionError(f"the contexts' keys are {keys.type}, which a store cannot hold. Pass key=None.")
    elif not isinstance(keys, np.ndarray):
        keys = keys.cpu().numpy()
    values = np.ascontiguousarray(keys)
    if values.dtype.kind in "mM":
        kind, unit = "timestamp" if values.dtype.kind == "M" else "duration", np.datetime_data(values.dtype)[0]
        return Column(name=name, dtype=np.dtype("<i8"), level="series", kind=kind, unit=unit), values.view("<i8")  # type: ignore[arg-type]
    return Column(name=name, dtype=values.dtype, level="series", kind="number"), values


def lay_texts(keys: pa.Array) -> Texts:
    """Arrow's texts as those of a store, without a copy."""
    large = keys.cast(pa.large_string())
    if large.offset:
        large = pa.concat_arrays([large, large[:0]])
    _, offsets, utf8 = large.buffers()
    ends = np.frombuffer(offsets, dtype="<i8", count=len(large) + 1) if offsets is not None else np.zeros(1, dtype="<i8")
    return Texts(np.frombuffer(utf8 or b"", dtype="|u1", count=int(ends[-1])), ends)


def pack_sequences(
    source: Any,
    path: str | os.PathLike[str],
    *,
    key: str,
    columns: str | Sequence[str] | None = None,
    contexts: Any = None,
    time: str | None = None,
    sort: bool = False,
    dtype: str | Mapping[str, str] | None = None,
    missing: Missing = "keep",
    memory: str | int = DEFAULT_MEMORY,
    threads: int | None = None,
    replace: bool = False,
    progress: Progress = quiet,
) -> Store:
    """Pack files or a table of any size into a store at `path`, one series a key, in the order of the keys; memory is bounded.

    It is `stoker.pack(…, series=key)`; with `contexts` (keys, or a file with a column of the key's name) the store has exactly
    these series: those without rows are empty, and rows of other keys are left out, which a note tells. With `replace`, a store
    that is at `path` already is replaced; without it, that is an error.
    """
    target = files.check_path(path)

    def pack_to(folder: Path, *, replace: bool) -> Store:
        with _naming_the_key():
            return pack(
                source, folder, series=key, time=time, sort=sort, columns=columns, dtype=dtype, missing=missing,
                memory=memory, threads=threads, replace=replace, progress=progress,
            )  # fmt: skip

    if contexts is None:
        return pack_to(target, replace=replace)
    from stoker.encode.sequences.chosen import choose_series
    from stoker.encode.sequences.listed import find_listed

    listed = _listed(contexts, key)
    find_listed(listed, listed)  # so that a context that is there twice is found at once
    pa.default_memory_pool().release_unused()  # what that took, or it would come on top of what the pack takes
    check_target(target, replace=replace)  # before a long pack
    with files.scratch_folder(files.beside(target, ".{}.all-keys")) as scratch:
        packed = pack_to(scratch / "store", replace=True)  # what a killed run left there is of this function's own making
        chosen = choose_series(packed, listed)
        pa.default_memory_pool().release_unused()
        return chosen.save(target, replace=replace)


@contextlib.contextmanager
def _naming_the_key() -> Iterator[None]:
    """A pack calls the key --series."""
    try:
        yield
    except (BadValue, OptionError) as error:
        raise type(error)(re.sub(r"^--series\b", "key", str(error))) from None


def _listed(contexts: Any, key: str) -> TableColumn:
    """The contexts, from memory or from the files that hold them."""
    if not isinstance(contexts, str | os.PathLike):
        return read_column("contexts", contexts)
    from stoker.store.sources.dialect import Dialect
    from stoker.store.sources.find import find_sources
    from stoker.store.sources.source import Place

    parts: list[pa.Array] = []
    for source in find_sources(contexts, dialect=Dialect(), table=True):
        schema = source.schema()
        if key not in schema.names:
            raise OptionError(f"{source.label} has no column {key!r} with contexts; it has {', '.join(schema.names[:20])}.")
        for task in source.read(pa.schema([schema.field(key)]), start=Place(), chunk_bytes=_CHUNK_BYTES):
            column = task().table.column(key)
            parts.extend(column.cast(column.type.value_type).chunks if pa.types.is_dictionary(column.type) else column.chunks)
    return read_column("contexts", pa.chunked_array(parts))
