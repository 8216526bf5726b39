"""Subjects: tables of events and of contexts become the codes of subjects, with all that is needed to generate others.

Lengths are protected as values are: the longest sequences, of 5 to 7 subjects, are cut to the next one's length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array
from stoker_recipes.tabular.encodings import LEAST_SUBJECTS
from stoker_recipes.tabular.ends import Ends
from stoker_recipes.tabular.files import check_names, key_column, name_of, place_of, read_table
from stoker_recipes.tabular.layout import ModelLayout, Size, make_layout
from stoker_recipes.tabular.settings import TabularSettings
from stoker_recipes.tabular.tables import KINDS, LEAST_TABLE, TableSpec, group_rows, learn_table

Say = Callable[[str, str], None]


class ModelSpec(Struct, frozen=True, kw_only=True):
    """What a model was made for; kept with its weights."""

    target: TableSpec
    context: TableSpec | None
    key: str | None
    context_key: str | None
    """The key of contexts; None where there are none."""
    has_number_keys: bool
    frame: str
    """The kind of frame that was given, which `sample` returns."""
    size: Size
    max_length: int | None
    """None for single rows."""
    min_length: int
    median_length: float
    num_subjects: int

    def layout(self) -> ModelLayout:
        """The layout of the model."""
        return make_layout(
            self.target.sizes,
            moments=self.target.moments,
            context=self.context.sizes if self.context is not None else (),
            max_length=self.max_length,
            median_length=self.median_length,
            size=self.size,
            predicts_left=False,  # a length is drawn before the first event
            feeds_context=True,
        )

    def ordered(self) -> dict[str, int]:
        """The sub-columns of the layout whose classes are in order, from this class on."""
        layout = self.layout()
        firsts = {sub.name: 0 for sub in layout.subs if sub.position}
        of_data = layout.subs[layout.num_positions :]
        for subs, table in ((of_data, self.target), (layout.context, self.context)):
            places = [(column, name) for column in (table.columns if table is not None else ()) for name in column.encoding.sizes]
            for sub, (column, name) in zip(subs, places, strict=True):
                first = column.encoding.ordered().get(name)
                if first is not None:
                    firsts[sub.name] = first
        return firsts

    def never(self) -> dict[int, list[int]]:
        """Classes that are not generated, by sub-column of the layout."""
        never, number = {}, self.layout().num_positions
        for column in self.target.columns:
            classes = column.encoding.never()
            for name in column.encoding.sizes:
                if name in classes:
                    never[number] = classes[name]
                number += 1
        return never

    def ends(self) -> dict[int, Ends]:
        """What first and last events never have, by sub-column of the layout."""
        places = self.layout().num_positions + np.cumsum([0, *map(len, self.target.sizes)])
        return {
            int(place): column.ends for place, column in zip(places, self.target.columns, strict=False) if column.ends is not None
        }


@dataclass(frozen=True, kw_only=True)
class PreparedSubjects:
    """Encoded subjects."""

    spec: ModelSpec
    codes: Array
    """(events, sub-columns)"""
    starts: Array
    lengths: Array
    context: Array | None


def prepare(
    events: Any,
    *,
    key: str | None = None,
    context: Any = None,
    context_key: str | None = None,
    encodings: Mapping[str, str] | None = None,
    settings: TabularSettings,
    say: Say,
) -> PreparedSubjects:
    """Encode tables.

    Args:
        events: The table to learn: a file, a folder, a list of files, or a frame.
        key: The column that names the subject; without it every row is one.
        context: Facts of the subjects, one row each.
        context_key: The key of the contexts. Default: `key`.
        encodings: Kinds of columns that are not to be chosen automatically; see `tables.KINDS`.
        settings: Of the model.
        say: Called with a word and a sentence for what a user should know.

    Raises:
        OptionError: A parameter is invalid, or there are too few subjects.
        SourceError: A file or a value cannot be used.
    """
    table, frame = read_table(events, "events")
    what, other_what = name_of(events, "events"), name_of(context, "context")
    check_names(table.column_names, what)
    if not len(table):
        raise OptionError(f"{what} has no rows. Give a table with some.")
    contexts = None if context is None else read_table(context, "context")[0]
    if encodings is not None and not isinstance(encodings, Mapping):
        raise OptionError(f"encodings is {encodings!r}; expected a kind for each column, such as {{'place': 'lat_long'}}.")
    asked = dict(encodings or {})
    if contexts is not None and key is None:
        raise OptionError("context is given, but key is not. Name the column that both tables have: key=…")
    if contexts is None and context_key is not None:
        raise OptionError(f"context_key is {context_key!r}, but there is no context. Give one, or leave context_key out.")
    keys = None
    if contexts is not None and key is not None:
        other_key = context_key or key
        keys = key_column(contexts, other_key, other_what, option="context_key", place=partial(place_of, context, other_what))
        check_unique(keys, other_key, other_what)
        contexts = contexts.drop_columns([other_key])
    if key is None:
        rows, starts, lengths = table, np.arange(len(table)), np.ones(len(table), np.int64)
    else:
        grouped = group_rows(table, key=key, keys=keys, what=what, place=partial(place_of, events, what))
        rows, starts, lengths = grouped.rows, grouped.starts, grouped.lengths
    _check_encodings(asked, [rows] if contexts is None else [rows, contexts])
    _check_count(len(starts), settings, key, what)
    if not rows.column_names:
        raise OptionError(f"{what} has no column to learn beside the key. Give a table with at least one more column.")
    is_sequence = key is not None and not (lengths == 1).all()
    limits = _length_limits(lengths, settings) if is_sequence else (1, 1)
    cut = int((lengths > limits[1]).sum())
    if cut:
        say("lengths", f"{cut:,} sequences of more than {limits[1]:,} events are cut: few subjects have more")
    options: dict[str, Any] = {"encodings": asked, "protect": settings.protect, "seed": settings.seed, "say": say}
    target, codes = learn_table(events, "events", rows, starts=starts, is_sequence=is_sequence, context=contexts, **options)
    other, other_codes = None, None
    if contexts is not None and contexts.column_names:
        other, other_codes = learn_table(
            context, "context", contexts, starts=np.arange(len(contexts)), is_sequence=False, **options
        )
    shortened = np.minimum(lengths, limits[1])
    spec = ModelSpec(
        target=target,
        context=other,
        key=key,
        context_key=None if contexts is None else context_key or key,
        has_number_keys=key is not None and pa.types.is_integer(table.schema.field(key).type),
        frame=frame,
        size=settings.size,
        max_length=limits[1] if is_sequence else None,
        min_length=limits[0],
        median_length=float(np.median(shortened)),
        num_subjects=len(starts),
    )
    return PreparedSubjects(spec=spec, codes=codes, starts=starts, lengths=shortened, context=other_codes)


def _check_encodings(asked: Mapping[str, str], tables: Sequence[pa.Table]) -> None:
    """Of tables without their keys, which have no encoding."""
    names = [name for table in tables for name in table.column_names]
    for name, kind in asked.items():
        if name not in names:
            raise OptionError(f"encodings names the column {name!r}; expected one of {', '.join(map(repr, names))}.")
        if kind not in KINDS:
            raise OptionError(f"encodings[{name!r}] is {kind!r}; expected one of {', '.join(KINDS)}.")


def check_unique(keys: pa.Array, key: str, what: str) -> None:
    """Raise an error for a key that two rows have."""
    counts = keys.value_counts()
    twice = np.flatnonzero(np.asarray(counts.field("counts")) > 1)
    if len(twice):
        value = counts.field("values")[int(twice[0])].as_py()
        raise BadValueError(f"{what} has the {key} {value!r} more than once; expected one row per subject. Drop the others.")


def _check_count(count: int, settings: TabularSettings, key: str | None, what: str) -> None:
    who = "rows" if key is None else "subjects"
    if count < 2:
        raise OptionError(
            f"{what} has {count} {who[:-1]}; expected at least 2, as some are kept for validation. Give more of them."
        )
    if settings.protect and count < LEAST_TABLE:
        raise OptionError(
            f"{what} has {count} {who}; protection needs at least {LEAST_TABLE}, because every value of fewer is rare. "
            f"Pass protect=False to keep all values."
        )


def _length_limits(lengths: Array, settings: TabularSettings) -> tuple[int, int]:
    """The shortest and the longest sequence that several subjects have."""
    least = LEAST_SUBJECTS + int(np.random.default_rng([settings.seed, 2]).integers(3)) if settings.protect else 0
    ordered = np.sort(lengths)
    return int(ordered[least]), max(1, int(ordered[-1 - least]))
