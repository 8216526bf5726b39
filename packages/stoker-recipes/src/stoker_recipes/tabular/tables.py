"""Tables become columns of classes, grouped by subject, and generated classes become tables again.

group_rows      the rows of each subject, side by side
fit_table       which encoding each column gets                     TableSpec       the result, kept with a run as JSON
learn_table     fit and encode
encode_table    codes (rows, sub-columns)                           decode_table    values of codes
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import xxhash
from msgspec import Struct, structs

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array
from stoker_recipes.tabular.clock import DatedColumn
from stoker_recipes.tabular.computed import IN_ROW, Computed, First, Formula, compute, find_rules
from stoker_recipes.tabular.dates import (
    LEAST_RISES,
    Datetime,
    Relative,
    Since,
    find_base,
    find_floors,
    fit_datetime,
    fit_relative,
    fit_since,
    never_falls,
)
from stoker_recipes.tabular.encodings import (
    LEAST_SUBJECTS,
    MOST_CHARACTERS,
    Categorical,
    Character,
    LatLong,
    Moment,
    Numeric,
    Subjects,
    fit_categorical,
    fit_character,
    fit_lat_long,
    fit_numeric,
)
from stoker_recipes.tabular.ends import Ends, find_ends
from stoker_recipes.tabular.files import check_values, key_column
from stoker_recipes.tabular.values import Values, family_of, read_values

AnyEncoding = Categorical | Numeric | Character | LatLong | Datetime | Relative | Since | Computed
KINDS = ("auto", "categorical", "numeric", "datetime", "relative", "lat_long", "character")
"""What a column may be encoded as."""
LEAST_TABLE = 20
"""Subjects that protection needs; with fewer nearly every value is rare."""
MANY_ROWS = 50_000
T = TypeVar("T")
R = TypeVar("R")


def number_keys(keys: pa.Array) -> Array:
    """A number of each key, which does not depend on other keys: an integer itself, also as a string of digits, otherwise a hash.

    Args:
        keys: Without equal ones. Where two strings are the same number, such as "7" and "07", all of them are hashed.
    """
    if pa.types.is_integer(keys.type):
        return np.array(keys.cast(pa.int64(), safe=False))
    words = [str(key) for key in keys.to_pylist()]
    is_number = [word.isascii() and word.isdecimal() and len(word) <= 18 for word in words]
    hashed = [xxhash.xxh3_64_intdigest(word.encode(errors="surrogatepass")) - 2**63 for word in words]
    numbers = np.array(
        [int(word) if is_whole else other for word, is_whole, other in zip(words, is_number, hashed, strict=True)], np.int64
    )
    return numbers if len(np.unique(numbers)) == len(numbers) else np.array(hashed, np.int64)


@dataclass(frozen=True, kw_only=True)
class GroupedRows:
    """Rows of subjects, side by side in the order of the file."""

    rows: pa.Table
    """Without the key."""
    keys: pa.Array
    """One per subject, in the order of their first rows, or of the context."""
    starts: Array
    lengths: Array


def group_rows(
    table: pa.Table,
    *,
    key: str,
    keys: pa.Array | None = None,
    what: str = "events",
    place: Callable[[int], tuple[str, int]] | None = None,
) -> GroupedRows:
    """Bring the rows of each subject together.

    Args:
        table: The rows.
        key: The column that names the subject.
        keys: All subjects, those without rows too; without it those of the rows.
        what: The name of the parameter, for messages.
        place: The file of a row and its number there, for messages.

    Raises:
        OptionError: There is no such column.
        BadValueError: A key is missing, or is not among `keys`.
    """
    column = key_column(table, key, what, place=place)
    rows = table.drop_columns([key])
    if keys is None:
        coded = column.dictionary_encode()
        keys, owner = coded.dictionary, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        owner = _find_owners(column, keys, key=key, what=what, place=place)
    lengths = np.bincount(owner, minlength=len(keys))
    if len(owner) and (np.diff(owner) < 0).any():
        rows = rows.take(pa.array(np.argsort(owner, kind="stable")))  # stable: the order of a subject's events stays
    return GroupedRows(rows=rows, keys=keys, starts=np.cumsum(lengths) - lengths, lengths=lengths)


def _find_owners(
    column: pa.Array, keys: pa.Array, *, key: str, what: str, place: Callable[[int], tuple[str, int]] | None = None
) -> Array:
    """Return the number of the subject of each row; a row whose key is not among those of the context is an error."""
    import pyarrow.compute as pc

    try:
        keys = keys.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadValueError(
            f"{key} is of the type {column.type} in {what}, but of the type {keys.type} in context. Convert one of them."
        ) from None
    owner = pc.index_in(column, value_set=keys)
    if owner.null_count:
        row = int(np.flatnonzero(owner.is_null().to_numpy(zero_copy_only=False))[0])
        where, number = place(row) if place is not None else (what, row)
        raise BadValueError(
            f"{where} has the {key} {column[row].as_py()!r} in row {number:,}, which context does not have. Add it there, or drop "
            f"its rows."
        )
    return np.asarray(owner.to_numpy(zero_copy_only=False).astype(np.int64))


class ColumnSpec(Struct, frozen=True, kw_only=True):
    """A column and its encoding."""

    name: str
    encoding: AnyEncoding
    ends: Ends | None = None
    """What the first and the last event of a subject never have."""


class TableSpec(Struct, frozen=True, kw_only=True):
    """The columns of a table, without its key: types and encodings."""

    columns: list[ColumnSpec]
    types: str
    """The Arrow schema, in base64."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.types)))

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The sub-columns of each column, with their numbers of classes."""
        return [column.encoding.sizes for column in self.columns]

    @property
    def moments(self) -> list[dict[str, Moment]]:
        """The sub-columns of each column that only some events have."""
        return [column.encoding.moments() for column in self.columns]

    @property
    def rules(self) -> dict[str, Formula]:
        """How computed columns follow from others."""
        return {column.name: column.encoding.formula for column in self.columns if isinstance(column.encoding, Computed)}


def choose_kind(name: str, column: pa.ChunkedArray, asked: str, subjects: Subjects, *, is_sequence: bool) -> str:
    """What a column is encoded as.

    Dates and integers that never fall within subjects are relative, others are not. Strings that few subjects share are characters.
    """
    family, is_whole = family_of(column.type), pa.types.is_integer(column.type)
    possible = {
        "number": ("numeric", "categorical", *(["relative"] if is_whole else [])), "time": ("datetime", "relative", "categorical"),
        "text": ("categorical", "character", "lat_long"), None: (),
    }[family]  # fmt: skip
    if asked != "auto" and family is not None:
        if asked == "relative" and not is_sequence:
            raise OptionError(f"encodings[{name!r}] is 'relative', which is for events of subjects. Name their column: key=…")
        if asked not in possible:
            raise OptionError(
                f"encodings[{name!r}] is {asked!r}, but the column is of the type {column.type}; expected one of {', '.join(possible)}."
            )
        return asked
    if column.null_count == len(column):
        return "categorical"
    if (family == "time" or is_whole) and is_sequence:
        least = LEAST_RISES if is_whole else 0
        if never_falls(read_values(name, column), subjects.starts, least=least):
            return "relative"
    if family == "text":
        values = read_values(name, column)
        counts = np.bincount(values.data[values.valid], minlength=len(values.words))
        shared = counts[counts >= max(1, subjects.least)].sum()
        if shared < 0.5 * values.valid.sum() and max(map(len, values.words.to_pylist())) <= MOST_CHARACTERS:
            return "character"
    return {"number": "numeric", "time": "datetime", "text": "categorical", None: "categorical"}[family]


def fit_table(
    table: pa.Table,
    *,
    say: Callable[[str, str], None],
    starts: Array,
    encodings: Mapping[str, str],
    protect: bool,
    seed: int,
    is_sequence: bool,
    context: pa.Table | None = None,
) -> TableSpec:
    """Choose and fit the encodings of all columns.

    Args:
        table: Rows of subjects side by side, without the key.
        say: Called with a word and a sentence for what a user should know.
        starts: The first row of each subject.
        encodings: A kind for each column that is not to be chosen automatically; see `KINDS`.
        protect: Keep only values that several subjects have.
        seed: Of the number of subjects.
        is_sequence: Whether the rows of a subject are events, in order.
        context: The contexts of subjects, whose dates may bound those of events.

    Raises:
        OptionError: A kind is unknown, or not possible for its column.
        BadValueError: A column cannot be learned.
    """
    names = table.column_names
    drawn = np.random.default_rng([seed, 1]).integers(3, size=len(names))
    has_events = np.diff(np.append(starts, len(table))) > 0
    owned = starts[has_events]
    users = context.filter(pa.array(has_events)) if context is not None and is_sequence else None
    free = [
        name for name in names if encodings.get(name, "auto") == "auto" and family_of(table.schema.field(name).type) is not None
    ]
    rules = find_rules(table.select(free), owned, free, is_sequence=is_sequence) if len(owned) > 1 else {}
    bases = find_bases(table.select([name for name in names if name not in rules]), encodings)

    def fit(number: int) -> tuple[ColumnSpec, int]:
        """Return the encoding of a column; where too few subjects have a value to keep any, also how many would be enough."""
        name, column = names[number], table[names[number]]
        subjects = Subjects(starts=owned, num_rows=len(table), least=LEAST_SUBJECTS + int(drawn[number]) if protect else 0)
        encoding: AnyEncoding | None = None
        if name in rules:
            encoding = Computed(formula=rules[name], first=_fit_first(name, column, rules[name], subjects))
        elif name in bases:
            base, dates = bases[name], read_values(name, column)
            rises = is_sequence and never_falls(dates, owned, least=0)
            encoding = fit_since(dates, base, read_values(base, table[base]), subjects, rises=rises)
        if encoding is None:
            asked = encodings.get(name, "auto")
            kind = choose_kind(name, column, asked, subjects, is_sequence=is_sequence)
            encoding = _fit(name, column, kind, subjects, is_asked=asked != "auto", users=users)
        too_few = 2 * subjects.least + 1 if encoding is None else 0
        return ColumnSpec(name=name, encoding=encoding or _hidden(name, column, subjects)), too_few

    columns = []
    for column, too_few in _on_threads(fit, range(len(names)), num_rows=len(table)):
        if too_few:
            say("protected", f"column {column.name!r}: fewer than {too_few} subjects have a value; they are left out")
        columns.append(column)
    types = base64.b64encode(table.schema.remove_metadata().serialize().to_pybytes()).decode()
    return TableSpec(columns=columns, types=types)


def _fit_first(name: str, column: pa.ChunkedArray, rule: Formula, subjects: Subjects) -> First | None:
    """The encoding of first events, where a column follows from the event before."""
    if rule.operation in IN_ROW:
        return None
    rows = column.take(pa.array(subjects.starts))
    firsts = Subjects(starts=np.arange(len(rows)), num_rows=len(rows), least=subjects.least)
    kind = choose_kind(name, rows, "auto", firsts, is_sequence=False)
    first = _fit(name, rows, kind, firsts, is_asked=False, users=None) or _hidden(name, rows, firsts)
    assert not isinstance(first, Relative | Since | Computed)  # which need other rows or columns
    return first


def _hidden(name: str, column: pa.ChunkedArray, subjects: Subjects) -> Categorical:
    """The encoding of a column of which no value may be kept."""
    return fit_categorical(read_values(name, column, family="text"), subjects, column.type)


def learn_table(source: Any, what: str, table: pa.Table, *, starts: Array, **options: Any) -> tuple[TableSpec, Array]:
    """Fit and encode all columns.

    Args:
        source: What the user gave, for messages.
        what: The name of the parameter, for messages.
        table: Rows of subjects side by side, without the key.
        starts: The first row of each subject.
        **options: As for `fit_table`.

    Returns:
        The encodings, and the codes as `encode_table` has them.

    Raises:
        OptionError: A kind is unknown, or not possible for its column.
        BadValueError: A column cannot be learned.
    """
    try:
        spec = fit_table(table, starts=starts, **options)
        codes = encode_table(table, spec, starts=starts, context=options.get("context"))
        return (_with_ends(spec, codes, starts) if options["is_sequence"] else spec), codes
    except BadValueError:
        check_values(source, what)
        raise


def _with_ends(spec: TableSpec, codes: Array, starts: Array) -> TableSpec:
    """The columns, with what first and last events never have."""
    places = np.cumsum([0, *map(len, spec.sizes)])

    def find(number: int) -> ColumnSpec:
        column = spec.columns[number]
        if not column.encoding.sizes:
            return column
        ends = find_ends(column.encoding, codes[:, places[number]], starts, num_columns=len(spec.columns))
        return structs.replace(column, ends=ends)

    return structs.replace(spec, columns=_on_threads(find, range(len(spec.columns)), num_rows=len(codes)))


def find_bases(table: pa.Table, encodings: Mapping[str, str]) -> dict[str, str]:
    """Dates that are counted from another date of their row: that column of each."""
    kinds = {field.name: field.type for field in table.schema if family_of(field.type) == "time"}
    free = [name for name in kinds if encodings.get(name, "auto") == "auto"]
    if len(kinds) < 2 or not free:
        return {}
    dates, bases = {name: read_values(name, table[name]) for name in kinds}, dict[str, str]()
    for name in free:
        if name not in bases.values():
            others = {kind: dates[kind] for kind in kinds if kind != name and kind not in bases and kinds[kind] == kinds[name]}
            base = find_base(dates[name], others, least=LEAST_SUBJECTS + 2)
            if base is not None:
                bases[name] = base
    return bases


def _on_threads(work: Callable[[T], R], items: Iterable[T], *, num_rows: int) -> list[R]:
    """Like `map`; the columns of large tables share the cores, since NumPy and the kernels release the GIL."""
    cores = len(os.sched_getaffinity(0))
    if num_rows < MANY_ROWS or cores == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(cores, thread_name_prefix="stoker-columns") as pool:
        return list(pool.map(work, items))


def _fit(
    name: str, column: pa.ChunkedArray, kind: str, subjects: Subjects, *, is_asked: bool, users: pa.Table | None
) -> AnyEncoding | None:
    values = _values(name, column, kind)
    if kind == "relative":
        bounds = context_dates(users, column.type)
        base, floors = find_floors(values, subjects.starts, bounds, least=LEAST_SUBJECTS + 2)
        return fit_relative(values, subjects, column.type, base=base, floors=floors, bounds=bounds)
    if kind == "categorical":
        return fit_categorical(values, subjects, column.type, may_share=not is_asked)
    if kind == "character":
        return fit_character(values, subjects)
    if kind == "lat_long":
        return fit_lat_long(name, values, subjects)
    if kind == "numeric":
        return fit_numeric(values, subjects, has_tails=pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    return fit_datetime(values, subjects, column.type)


def context_dates(users: pa.Table | None, kind: pa.DataType, names: Sequence[str] | None = None) -> dict[str, Values]:
    """The dates of contexts in the unit of a column of dates: all that have one, or those of these names.

    Raises:
        OptionError: A context has none of a named date.
    """
    dates: dict[str, Values] = {}
    if users is None or family_of(kind) != "time":
        return dates
    for name in users.column_names if names is None else names:
        if family_of(users[name].type) != "time":
            continue
        try:
            dates[name] = read_values(name, users[name].cast(kind, safe=False))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # times of day, or of another zone
            continue
        if names is not None and not dates[name].valid.all():
            row = int(np.flatnonzero(~dates[name].valid)[0])
            raise OptionError(f"context has no {name!r} in row {row:,}; events were learned not to start before it. Fill it.")
    return dates


def _values(name: str, column: pa.ChunkedArray, kind: str) -> Values:
    is_words = kind in ("categorical", "character", "lat_long")
    return read_values(name, column, family="text" if is_words else None)


def encode_table(table: pa.Table, spec: TableSpec, *, starts: Array, context: pa.Table | None = None) -> Array:
    """The codes of a table, (rows, sub-columns): of the smallest type that holds them, and a sub-column after the other in memory.

    Args:
        table: Rows of subjects side by side.
        spec: Of the table.
        starts: The first row of each subject.
        context: The contexts of subjects, a row each.

    Raises:
        OptionError: A column is missing, or has another type.
    """
    widest = max((size for column_sizes in spec.sizes for size in column_sizes.values()), default=1)
    kind = np.uint8 if widest <= 2**8 else np.int16 if widest <= 2**15 else np.int32
    codes: Array = np.empty((sum(map(len, spec.sizes)), len(table)), kind).T
    ends = np.cumsum([len(sizes) for sizes in spec.sizes])

    def encode(number: int) -> None:
        codes_of = encode_column(table, spec.columns[number], spec.schema.field(number), starts, context)
        codes[:, ends[number] - codes_of.shape[1] : ends[number]] = codes_of

    _on_threads(encode, range(len(spec.columns)), num_rows=len(table))
    return codes


def encode_column(table: pa.Table, column: ColumnSpec, field: pa.Field, starts: Array, context: pa.Table | None = None) -> Array:
    """The codes of a column, (rows, sub-columns)."""
    values_of = table[column.name]
    values_of = values_of if values_of.type == field.type else _cast(values_of, field)
    learned = column.encoding.first if isinstance(column.encoding, Computed) else column.encoding
    if learned is None:
        return np.zeros((len(table), 0), np.int64)
    values = _values(column.name, values_of, str(learned.__struct_config__.tag))
    return np.asarray(column.encoding.encode(values, starts, *_others(column.encoding, field, table, context)))


def _others(
    encoding: AnyEncoding, field: pa.Field, columns: pa.Table | Mapping[str, pa.Array], context: pa.Table | None
) -> list[dict[str, Values]]:
    """The dates that values are counted from, of the same rows or of contexts; empty for encodings that take none."""
    if isinstance(encoding, Since):
        base = columns[encoding.base]
        return [{encoding.base: read_values(encoding.base, base if base.type == field.type else _cast(base, field))}]
    if isinstance(encoding, Relative):
        return [context_dates(context, field.type, encoding.bases) if encoding.bases else {}]
    return []


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(
            f"column {field.name!r} is of the type {column.type}, but was {field.type} in training. Convert it."
        ) from error


def dated_columns(spec: TableSpec, context: pa.Table | None) -> list[DatedColumn]:
    """The columns whose dates have a rhythm, with the dates of contexts that they depend on."""
    dated = []
    for number, column in enumerate(spec.columns):
        if isinstance(column.encoding, Relative) and column.encoding.rhythm is not None:
            [bounds] = _others(column.encoding, spec.schema.field(column.name), {}, context)
            dates = {name: values.data for name, values in bounds.items()}
            dated.append(DatedColumn(column=number, encoding=column.encoding, bounds=dates))
    return dated


def decode_table(codes: Array, spec: TableSpec, *, starts: Array, uniform: Array, context: pa.Table | None = None) -> pa.Table:
    """The values of codes.

    Args:
        codes: (rows, sub-columns).
        spec: Of the table.
        starts: The first row of each subject.
        uniform: (rows, columns) numbers from [0, 1): where in its interval a number lies.
        context: The contexts of subjects, a row each.
    """
    columns: dict[str, pa.Array] = {}
    ends = np.cumsum([len(sizes) for sizes in spec.sizes])
    # Dates that are counted from another one come after it.
    for number in sorted(range(len(spec.columns)), key=lambda place: isinstance(spec.columns[place].encoding, Since)):
        column, field = spec.columns[number], spec.schema.field(number)
        codes_of = codes[:, ends[number] - len(column.encoding.sizes) : ends[number]].astype(np.int64)
        others = _others(column.encoding, field, columns, context)
        columns[column.name] = column.encoding.decode(codes_of, field.type, starts, uniform[:, number], *others)
    if spec.rules:
        columns = compute(columns, spec.rules, spec.schema, starts)
    return pa.table([columns[name] for name in spec.schema.names], schema=spec.schema) if columns else pa.table({})
