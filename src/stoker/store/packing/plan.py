"""The plan of a pack: which columns, with which types, grouped how. Made from all sources before any row is packed,
so that files that disagree are found before anything is written.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from stoker.errors import BadValue, OptionError, SchemaDrift, SourceInvalid, SourceTooLarge
from stoker.store.manifest import MAX_BYTES, MAX_COLUMNS
from stoker.store.packing.field import Field, asked_type, is_list, is_number, make_field, plain_type, unify_types
from stoker.store.packing.options import Options
from stoker.store.packing.wide import select_columns, widen
from stoker.store.sources.source import Place, Source

Grouping = Literal["key", "file", "row", "wide"]

_ENTRY_BYTES = 100  # what a source or a column takes in a manifest beside its name, at least


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is read and what becomes of it."""

    sources: Sequence[Source]
    options: Options
    grouping: Grouping
    schemas: Sequence[pa.Schema]
    """What is asked of each source: the selected columns, with the key and the time among them. All alike, but with --wide."""
    key: Field | None
    step: tuple[Field, ...]
    series: tuple[Field, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Names of files and folders that lie among the sources, and that no reader takes."""

    @property
    def schema(self) -> pa.Schema:
        """What is asked of the first source, and of all others where series have more than one column."""
        return self.schemas[0]

    @property
    def rows_are_series(self) -> bool:
        """Whether a row of the input is a whole series, held in list columns."""
        return any(is_list(kind) for kind in self.schema.types)

    @property
    def time_index(self) -> int | None:
        """Which of the step fields is the time."""
        names = [field.name for field in self.step] if self.grouping != "wide" else []  # there it is checked, and not stored
        return names.index(self.options.time) if self.options.time in names else None


def make_plan(sources: Sequence[Source], options: Options) -> Plan:
    """Look at the schema of every source and decide; raises `SchemaDrift` with all differences at once."""
    schemas = [source.schema() for source in sources]
    for source, schema in zip(sources, schemas, strict=True):
        _refuse_doubles(source, schema)
    if options.wide:
        return _wide_plan(sources, options, select_columns(sources, schemas, options))
    return _plan(sources, options, _unified(sources, schemas, options))


def settle_plan(plan: Plan, report: Callable[[int], None]) -> Plan:
    """Read everything once to find the types that hold all values: for text that was guessed wrongly from its first
    block, and for integers that turn out to have gaps. With --wide each source has types of its own."""
    settled = _Settled(plan.schema, plan.options)
    schemas: list[pa.Schema] = []
    shared: dict[pa.Schema, pa.Schema] = {}
    rows = 0
    for source, schema in zip(plan.sources, plan.schemas, strict=True):
        if plan.grouping == "wide":
            settled = _Settled(schema, plan.options)
        for task in source.read(schema if source.typed else None, start=Place(), chunk_bytes=plan.options.chunk_bytes):
            table = task().table
            settled.look(source, table)
            rows += table.num_rows
            report(rows)
        if plan.grouping == "wide":
            schemas.append(shared.setdefault(settled.schema(), settled.schema()))
    if plan.grouping == "wide":
        settled_plan = _wide_plan(plan.sources, plan.options, schemas, plan.notes)
    else:
        settled_plan = _plan(plan.sources, plan.options, settled.schema())
    return replace(settled_plan, left_out=plan.left_out)


class _Settled:
    """Types that hold all values looked at so far."""

    def __init__(self, schema: pa.Schema, options: Options) -> None:
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._options = options
        self._gaps: set[str] = set()

    def look(self, source: Source, table: pa.Table) -> None:
        """Take in some more values."""
        for name, kind in self._types.items():
            column = table.column(name)
            found = asked_type(column.type, self._options.dtypes.get(name))
            text = not source.typed and pa.types.is_string(kind)  # of which some blocks may look like numbers
            settled = kind if text else unify_types(kind, found, inferred=not source.typed)
            if settled is None:
                _refuse_misfit(source, name, kind)
            self._types[name] = settled
            if _has_gaps(column):
                self._gaps.add(name)

    def schema(self) -> pa.Schema:
        """The types so far, with room for what is missing."""
        gaps = self._gaps - {self._options.series}
        return pa.schema([(name, _nullable(kind) if name in gaps else kind) for name, kind in self._types.items()])


def _has_gaps(column: pa.ChunkedArray) -> bool:
    if column.null_count:
        return True
    return any(is_list(chunk.type) and chunk.flatten().null_count > 0 for chunk in column.chunks)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Integers and booleans with gaps become float64 with NaN; values that float64 cannot hold are refused later."""
    if is_list(kind):
        return pa.large_list(_nullable(kind.value_type))
    value = plain_type(kind)
    return pa.float64() if pa.types.is_integer(value) or pa.types.is_boolean(value) else kind


def _refuse_misfit(source: Source, name: str, kind: pa.DataType) -> NoReturn:
    find = getattr(source, "find_misfit", None)
    found = find(name, kind) if find is not None else None
    place = f" (first in row {found[0]:,}: {found[1][:60]!r})" if found else ""
    text = found[1][:20] if found else ""
    raise BadValue(
        f"column {name!r} of {source.label} holds values that are not {kind} like those before them{place}. "
        f"Fix the file, pass --null {text!r} if it means missing, or --dtype {name}=text."
    )


def _unified(sources: Sequence[Source], schemas: Sequence[pa.Schema], options: Options) -> pa.Schema:
    """One schema for all sources, or an error that lists every way in which they differ."""
    first, differences = schemas[0], []
    names = _selected(first, sources[0], options)
    types = {name: asked_type(first.field(name).type, options.dtypes.get(name)) for name in names}
    by_name = options.columns is not None
    for source, schema in zip(sources[1:], schemas[1:], strict=True):
        if not by_name and schema.names != first.names and sorted(schema.names) == sorted(first.names):
            differences.append(f"{source.label} has its columns in another order ({', '.join(schema.names[:8])})")
        missing = [name for name in names if name not in schema.names]
        extra = [] if by_name else [name for name in schema.names if name not in first.names]
        differences.extend(f"{source.label} has no column {name!r}" for name in missing)
        differences.extend(f"{source.label} has a column {name!r} more" for name in extra)
        for name in names:
            if name in missing:
                continue
            inferred = not source.typed and not sources[0].typed
            found = asked_type(schema.field(name).type, options.dtypes.get(name))
            kind = unify_types(types[name], found, inferred=inferred)
            if kind is None:
                differences.append(
                    f"column {name!r} of {source.label} is {_word(schema.field(name).type)}, not {_word(types[name])}"
                )
            else:
                types[name] = kind
    if differences:
        shown = "; ".join(differences[:8]) + (f"; and {len(differences) - 8:,} more" if len(differences) > 8 else "")
        raise SchemaDrift(
            f"{len(differences):,} difference{'s' if len(differences) > 1 else ''} from {sources[0].label}: {shown}. "
            "Fix the files, or name common columns with --columns."
        )
    return pa.schema([(name, types[name]) for name in names])


def _word(kind: pa.DataType) -> str:
    plain = plain_type(kind)
    return "text" if pa.types.is_string(plain) else str(plain)


def _refuse_doubles(source: Source, schema: pa.Schema) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        normal = unicodedata.normalize("NFC", name)
        if normal in seen:
            raise SourceInvalid(f"{source.label} has two columns named {name!r}. Rename one of them.")
        seen[normal] = name


def _selected(schema: pa.Schema, source: Source, options: Options) -> list[str]:
    for role, name in (("--series", options.series), ("--time", options.time), *(("--columns", n) for n in options.columns or ())):
        if name is not None and name not in schema.names:
            raise OptionError(f"{role} names {name!r}, but {source.label} has the columns {', '.join(schema.names[:20])}.")
    unknown = [name for name in options.dtypes if name not in schema.names]
    if unknown:
        raise OptionError(f"--dtype names {unknown[0]!r}, but {source.label} has the columns {', '.join(schema.names[:20])}.")
    wanted = schema.names if options.columns is None else list(options.columns)
    roles = [name for name in (options.series, options.time) if name is not None and name not in wanted]
    return [*dict.fromkeys(wanted), *dict.fromkeys(roles)]


def _plan(sources: Sequence[Source], options: Options, schema: pa.Schema) -> Plan:
    if options.dtypes:
        schema = pa.schema([(n, asked_type(t, options.dtypes.get(n))) for n, t in zip(schema.names, schema.types, strict=True)])
    lists = any(is_list(kind) for kind in schema.types)
    where = sources[0].label
    key, step, series = None, [], []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name == options.series:
            key = _key_field(name, kind, where)
        elif lists and not is_list(kind):
            series.append(make_field(name, kind, level="series", asked=options.dtypes.get(name), where=where))
        else:
            step.append(make_field(name, kind, level="step", asked=_asked(name, kind, options), where=where))
    # The names of the series are a column too: those of the key, or of the files.
    total = len(step) + len(series) + (key is not None or not (lists or any(source.path is None for source in sources)))
    if total > MAX_COLUMNS:
        raise SourceTooLarge(
            f"{where} has {len(schema):,} columns, which make {total:,} with the names of the series, but a store has at most "
            f"{MAX_COLUMNS:,}. Use --columns, or --wide for a series each."
        )
    _refuse_large_manifest(sources, schema)
    if not step:
        beside = f"has no column left to pack beside {', '.join(schema.names)}" if len(schema) else "has no columns"
        raise OptionError(f"{where} {beside}.")
    for field in step:
        if field.name == options.time and field.kind not in ("timestamp", "duration", "number"):
            raise BadValue(
                f"the time column {field.name!r} of {where} is text that is not ISO 8601. "
                "Pass --time-format, like '%d/%m/%Y %H:%M'."
            )
    if options.time is not None and all(field.name != options.time for field in step):
        raise OptionError(f"--time names {options.time!r}, which has one value a series in {where}; times are needed a step.")
    notes = [f"column {f.name!r} was decimal and is stored as float64" for f in (*step, *series) if pa.types.is_decimal(f.arrow)]
    grouping: Grouping = "key" if key is not None else "row" if lists else "file"
    return Plan(
        sources=sources,
        options=options,
        grouping=grouping,
        schemas=[schema] * len(sources),
        key=key,
        step=tuple(step),
        series=tuple(series),
        notes=tuple(notes),
    )


def _refuse_large_manifest(sources: Sequence[Source], schema: pa.Schema) -> None:
    """Before anything is read: a manifest has a line for every source and column (the commit checks the whole of it again)."""
    sources_bytes = sum(len(msgspec.json.encode(source.name)) + _ENTRY_BYTES for source in sources)
    columns_bytes = sum(len(msgspec.json.encode(name)) + _ENTRY_BYTES for name in schema.names)
    if sources_bytes + columns_bytes > MAX_BYTES:
        what = f"{len(sources):,} sources" if sources_bytes > columns_bytes else f"the names of {len(schema):,} columns"
        raise SourceTooLarge(
            f"{what} need a manifest of {sources_bytes + columns_bytes:,} bytes, but a store has at most {MAX_BYTES:,}. "
            "Pack fewer at a time, or join files."
        )


def _asked(name: str, kind: pa.DataType, options: Options) -> str | None:
    """The type the user wants for a column: named, or the default where it is a number and not the time."""
    if name in options.dtypes or name == options.time:
        return options.dtypes.get(name)
    value = plain_type(kind)
    return options.dtype if is_number(value.value_type if is_list(value) else value) else None


def _key_field(name: str, kind: pa.DataType, where: str) -> Field:
    value = plain_type(kind)
    if pa.types.is_string(value):
        return Field(name=name, arrow=value, level="series", kind="text", dtype=np.dtype("|u1"))
    if pa.types.is_integer(value) or pa.types.is_timestamp(value) or pa.types.is_date(value):
        field = make_field(name, value, level="series", asked=None, where=where)
        return replace(field, dtype=np.dtype("<u8") if pa.types.is_uint64(value) else np.dtype("<i8"))
    raise BadValue(f"--series {name!r} is {_word(kind)} in {where}; a key is text, a whole number, or a date (and never missing).")


def _wide_plan(sources: Sequence[Source], options: Options, schemas: Sequence[pa.Schema], notes: tuple[str, ...] = ()) -> Plan:
    """Each numeric column of each source is a series of one column named value."""
    wide = widen(sources, schemas, options)
    _refuse_large_manifest(wide.sources, pa.schema([]))
    return Plan(
        sources=wide.sources,
        options=options,
        grouping="wide",
        schemas=wide.schemas,
        key=None,
        step=(wide.value,),
        series=(),
        notes=(*notes, *wide.notes),
    )
