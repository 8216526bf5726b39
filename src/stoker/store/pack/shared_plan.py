"""The plan that all processes of a pack in parts share: its sources, its options, and which rows each task reads.

The first process inspects all sources and writes the plan. The others compare options, names, sizes and times with it, so that a process
with other options, or with sources that were changed, ends with an error and not with other rows. Tasks depend on the sources alone, not
on how many processes share them. Paths, and what storage needs to be opened, are not in the plan.
"""

from __future__ import annotations

import base64

import msgspec
import pyarrow as pa

import stoker
from stoker.errors import OptionError, SourceChangedError
from stoker.store.formats.base import DataSource, KnownSource
from stoker.store.manifest import VERSION
from stoker.store.pack.exchange import Exchange
from stoker.store.pack.options import PackOptions
from stoker.store.pack.packer import list_sources, plan_pack, stat_source
from stoker.store.pack.plan import PackPlan

TASKS = 64
"""Tasks of a small pack, as far as its sources can be cut."""
MIN_TASK_BYTES, MAX_TASK_BYTES = 8 << 20, 1 << 30
PLAN = "plan"
JOINED = "joined"
"""The hash of the manifest that a join is about to commit."""
_NOT_SHARED = ("memory_bytes", "threads", "dialect")


class RowRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of a source, from one of its borders to another (None: its end)."""

    source: int
    start: int
    stop: int | None


class SharedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be equal wherever a source is read."""

    name: str
    num_bytes: int
    stamp: int  # the time of its last change, or what object storage has instead
    schema: int = 0  # which of the schemas of the plan it has


class SharedPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the plan in an exchange."""

    version: int
    stoker: str
    options: dict[str, str]
    sources: list[SharedSource]
    schemas: list[str]  # as Arrow writes them, in base64
    tasks: list[list[RowRange]]


def agree(
    exchange: Exchange,
    source: object,
    options: PackOptions,
    *,
    may_write: bool,
    known: Schemas | None = None,
) -> tuple[SharedPlan, PackPlan]:
    """The plan of a pack, written by the first process and compared by the others, which need not open files for it.

    `known` are schemas that other processes have found.

    Raises:
        OptionError: there is no plan and this process may not write one, the options differ, or a source is in memory.
        SourceChangedError: the sources differ.
    """
    data = exchange.get(PLAN)
    if data is None and not may_write:
        raise OptionError(f"{exchange.label} has no parts of a pack. First run the parts: --part 1/N to --part N/N.")
    if data is None:
        exchange.remove(JOINED)  # of an earlier pack, whose join was killed when it had removed all else
        own, plan = make_shared_plan(source, options, known)
        if exchange.create(PLAN, msgspec.json.encode(own)):
            return own, plan
        data = exchange.get(PLAN) or b""
    try:
        there = msgspec.json.decode(data, type=SharedPlan)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise OptionError(f"{exchange.label} has a plan that cannot be read. Remove it and run all parts again.") from None
    again = f"Remove {exchange.label} and run all parts again"
    if (there.version, there.stoker) != (VERSION, stoker.__version__):
        raise OptionError(f"{exchange.label} was begun by Stoker {there.stoker}, but this is {stoker.__version__}. {again}.")
    for name, value in _shown(options).items():
        if there.options.get(name) != value:
            raise OptionError(
                f"{name} is {value}, but {there.options.get(name)} in the plan of {exchange.label}. Use the same options for all parts. "
                f"{again} to change them."
            )

    def know(found: list[DataSource]) -> list[DataSource]:
        _compare_sources(exchange, there.sources, _seen(found), again)
        schemas = [pa.ipc.read_schema(pa.py_buffer(base64.b64decode(one))) for one in there.schemas]
        return [KnownSource(one, schemas[seen.schema]) for one, seen in zip(found, there.sources, strict=True)]

    return there, plan_pack(source, options, know)


def has_plan(exchange: Exchange) -> bool:
    """Whether a pack was begun."""
    return exchange.get(PLAN) is not None


Schemas = dict[tuple[str, int, int], bytes]
"""Schemas, as Arrow writes them, by the name, size and stamp of their source."""


def inspect_sources(source: object, options: PackOptions, part: int, count: int) -> Schemas:
    """The schemas of every `count`-th source, from number `part` on."""
    found = list_sources(source, options, [])[part::count]
    return {_key(seen): one.schema().serialize().to_pybytes() for one, seen in zip(found, _seen(found), strict=True)}


def _key(source: SharedSource) -> tuple[str, int, int]:
    return source.name, source.num_bytes, source.stamp


def make_shared_plan(source: object, options: PackOptions, known_schemas: Schemas | None = None) -> tuple[SharedPlan, PackPlan]:
    """The plan as this process sees it, which inspects all sources but those whose schemas are known."""
    schemas: dict[pa.Schema, int] = {}
    seen: list[SharedSource] = []

    def note(found: list[DataSource]) -> list[DataSource]:
        known: list[DataSource] = []
        for one, there in zip(found, _seen(found), strict=True):
            data = (known_schemas or {}).get(_key(there))
            schema = one.schema() if data is None else pa.ipc.read_schema(pa.py_buffer(data))
            seen.append(msgspec.structs.replace(there, schema=schemas.setdefault(schema, len(schemas))))
            known.append(KnownSource(one, schema))
        return known

    plan = plan_pack(source, options, note)
    encoded = [base64.b64encode(schema.serialize().to_pybytes()).decode() for schema in schemas]
    shared = SharedPlan(
        version=VERSION, stoker=stoker.__version__, options=_shown(options), sources=seen, schemas=encoded, tasks=_tasks(plan, seen)
    )
    return shared, plan


def _shown(options: PackOptions) -> dict[str, str]:
    shown = {name: repr(value) for name, value in vars(options).items() if name not in _NOT_SHARED}
    shown.update({name: repr(value) for name, value in vars(options.dialect).items()})
    return shown


def _seen(sources: list[DataSource]) -> list[SharedSource]:
    """What is compared of the sources."""
    if any(source.path is None for source in sources):
        raise OptionError("a table in memory cannot be packed in parts, as other processes do not see it. Give files or URLs.")
    found = []
    for source in sources:
        num_bytes, stamp = stat_source(source) or (source.num_bytes, 0)
        found.append(SharedSource(name=source.name, num_bytes=num_bytes, stamp=stamp))
    return found


def _tasks(plan: PackPlan, sources: list[SharedSource]) -> list[list[RowRange]]:
    """Neighbouring sources, or parts of one, of about the same size. One task may read many small files."""
    total = sum(source.num_bytes for source in sources)
    task_bytes = min(max(total // TASKS, MIN_TASK_BYTES), MAX_TASK_BYTES)
    tasks: list[list[RowRange]] = [[]]
    filled = 0
    for number, (source, seen) in enumerate(zip(plan.sources, sources, strict=True)):
        # The times of a wide table are checked from its first row on.
        for start, stop, num_bytes in (
            _cut(source, seen.num_bytes, task_bytes) if plan.grouping != "wide" else [(0, None, seen.num_bytes)]
        ):
            if tasks[-1] and filled + num_bytes > task_bytes:
                tasks.append([])
                filled = 0
            tasks[-1].append(RowRange(source=number, start=start, stop=stop))
            filled += num_bytes
    return tasks


def _cut(source: DataSource, num_bytes: int, task_bytes: int) -> list[tuple[int, int | None, int]]:
    """Parts of a source of at most `task_bytes`, as far as its borders allow: start, stop, and about how many bytes."""
    borders, num_rows = source.borders(), getattr(source, "num_rows", None)
    if num_bytes <= task_bytes or len(borders) < 2 or not num_rows:
        return [(0, None, num_bytes)]
    rows_each = max(1, num_rows * task_bytes // num_bytes)
    starts = [0]
    for before, border in zip(borders, [*borders[1:], num_rows], strict=True):
        if border - starts[-1] > rows_each and before > starts[-1]:
            starts.append(before)
    stops: list[int | None] = [*starts[1:], None]
    ends = [*starts[1:], num_rows]
    return [(start, stop, num_bytes * (end - start) // num_rows) for start, stop, end in zip(starts, stops, ends, strict=True)]


def _compare_sources(exchange: Exchange, there: list[SharedSource], own: list[SharedSource], again: str) -> None:
    plan = f"the plan of {exchange.label}"
    known, found = {one.name: one for one in there}, {one.name: one for one in own}
    for name in (*known, *found):
        if name not in found or name not in known:
            what = f"{name} is a source of {plan}, but is not there now" if name in known else f"{name} is not a source of {plan}"
            raise SourceChangedError(f"{what}. All parts need the same sources. {again}.")
        old, new = known[name], found[name]
        if (old.num_bytes, old.stamp) != (new.num_bytes, new.stamp):
            what = (
                f"has {new.num_bytes:,} bytes, but {old.num_bytes:,}"
                if new.num_bytes != old.num_bytes
                else "has changed since it was"
            )
            raise SourceChangedError(f"{name} {what} in {plan}. {again}.")
    if list(known) != list(found):
        raise SourceChangedError(f"the sources have another order than in {plan}. {again}.")
