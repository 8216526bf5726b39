"""`Synthesizer`: learn a table of events, generate new subjects."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

import stoker
from stoker.errors import OptionError
from stoker.extend import Array, disk
from stoker_recipes.tabular.computed import compute
from stoker_recipes.tabular.data import ModelSpec, Say, check_unique
from stoker_recipes.tabular.dates import Relative, Since, rise
from stoker_recipes.tabular.encodings import Categorical
from stoker_recipes.tabular.files import key_column, name_of, read_table, to_frame
from stoker_recipes.tabular.generation import GivenCodes, generate_codes
from stoker_recipes.tabular.settings import make_settings
from stoker_recipes.tabular.tables import (
    GroupedRows,
    dated_columns,
    decode_table,
    encode_table,
    group_rows,
    number_keys,
)
from stoker_recipes.tabular.training import TrainedTabular, load_model, train
from stoker_recipes.tabular.values import read_values, to_column


class Synthesizer:
    """Learns a table of events, or of single rows, and generates new subjects.

    Args:
        **options: Fields of `TabularSettings`, such as `size`, `epochs`, `max_seconds` or `seed`.

    Raises:
        OptionError: An option is unknown or invalid.

    Example:
        >>> rows = {"colour": ["red", "blue", "red", "green"] * 25, "n": list(range(100))}
        >>> model = Synthesizer(size="s", epochs=1, seed=1).fit(rows)
        >>> model.sample(3).num_rows
        3
    """

    def __init__(self, **options: Any) -> None:
        make_settings(**options)
        self._options = options
        self._trained: TrainedTabular | None = None

    def fit(
        self,
        events: Any,
        *,
        key: str | None = None,
        context: Any = None,
        context_key: str | None = None,
        encodings: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        device: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
        progress: bool = False,
        say: Say | None = None,
    ) -> Self:
        """Learn a table.

        Args:
            events: A file, a folder, a list of files, or a frame of pandas, Polars or Arrow. Events of a subject are in order.
            key: The column that names the subject; without it every row is one.
            context: Facts of the subjects, one row each.
            context_key: The key of the contexts. Default: `key`.
            encodings: Kinds of columns that are not to be chosen automatically, such as {"place": "lat_long"}.
            folder: Folder of the run, which `load` opens again. Default: a temporary one.
            device: Default: a GPU if there is one.
            resume: Continue the run in `folder`.
            overwrite: Replace the run in `folder`.
            progress: Show a progress bar.
            say: Called with a word and a sentence for each thing to report.

        Returns:
            This object.

        Raises:
            OptionError: A parameter is invalid, or there are too few subjects.
            SourceError: A table cannot be used.
        """
        if resume and folder is None:
            raise OptionError("resume=True needs folder=, where the run is.")
        with contextlib.ExitStack() as stack:
            where = Path(folder) if folder is not None else stack.enter_context(disk.temporary_folder()) / "run"
            common: dict[str, Any] = {"device": device, "resume": resume, "overwrite": overwrite, "progress": progress}
            if say is not None:
                common["say"] = say
            self._trained = train(
                events,
                folder=where,
                key=key,
                context=context,
                context_key=context_key,
                encodings=encodings,
                **common,
                **self._options,
            )
        return self

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """Open a finished run.

        Args:
            folder: Folder of the run.
            device: Default: a GPU if there is one.

        Raises:
            OptionError: It is not a run of this recipe, or has not finished.
        """
        model = cls()
        model._trained = load_model(folder, device=device)
        return model

    @property
    def trained(self) -> TrainedTabular:
        """The model and its columns."""
        if self._trained is None:
            raise OptionError("the model has not learned anything yet. Call fit(events) first, or Synthesizer.load(folder).")
        return self._trained

    @property
    def result(self) -> stoker.train.Result | None:
        """How training ended; None for a model that was loaded."""
        return self.trained.result

    def sample_context(
        self, num_subjects: int, *, rebalance: Mapping[str, Mapping[Any, float]] | None = None, seed: int = 0
    ) -> Any:
        """Generate contexts of new subjects, with a key.

        Args:
            num_subjects: How many.
            rebalance: Shares of values, by column; see `sample`.
            seed: Of all random numbers.

        Raises:
            OptionError: The model was trained without a context.
        """
        if self.trained.context is None:
            raise OptionError("the model was trained without a context. Call sample(n).")
        _check_number("num_subjects", num_subjects)
        rows = self._contexts(num_subjects, rebalance or {}, _checked_seed(seed))
        spec = self.trained.spec
        return to_frame(rows.add_column(0, str(spec.context_key), _new_keys(self.trained, num_subjects)), spec.frame)

    def _contexts(self, num_subjects: int, rebalance: Mapping[str, Any], seed: int, subjects: Array | None = None) -> pa.Table:
        """Generated contexts, without keys."""
        inner = Synthesizer()
        inner._trained = self.trained.context
        options = _draw_options(inner.trained.spec, rebalance, ())
        return inner._rows(num_subjects, seed=seed, subjects=subjects, **options)[0]

    def sample(
        self,
        num_subjects: int | None = None,
        *,
        context: Any = None,
        given: Any = None,
        rebalance: Mapping[str, Mapping[Any, float]] | None = None,
        impute: bool | Sequence[str] = False,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Any:
        """Generate new subjects with their events.

        The result is a function of the seed: a subject has the same events in any number of subjects, and a key of `context` or
        `given` in any order of keys.

        Args:
            num_subjects: How many. Default: those of `context` or `given`, otherwise as many as were learned.
            context: Contexts to generate for, with their keys. Default: generated ones, those of `sample_context`.
            given: First events of subjects, or rows, of which some columns are known. They come back as they are.
            rebalance: Shares that values get, such as {"segment": {"gold": 0.5}}; other values share the rest in proportion. For
                categorical columns of events, where it is the share of events, or of generated contexts.
            impute: Columns without missing values, or True for all of them: none is generated, and those of `given` are filled.
            temperature: Below 1 makes likely values likelier. It does not act on lengths.
            top_p: Draw from the likeliest values that together have this probability. It does not act on lengths.
            seed: Of all random numbers.

        Returns:
            A frame of the kind that was learned, events of a subject side by side and in order.

        Raises:
            OptionError: A parameter is invalid.
        """
        trained = self.trained
        spec = trained.spec
        seed = _checked_seed(seed)
        _check_range("temperature", temperature, 1e-3, 100)
        _check_range("top_p", top_p, 1e-6, 1)
        names = [column.name for column in spec.target.columns]
        filled = _check_impute(impute, names)
        of_events, of_context = self._split_rebalance(rebalance or {}, names, has_context=context is not None)
        keys, users = None, None
        if context is not None:
            keys, users = self._read_contexts(context)
            num_subjects = self._agree(num_subjects, len(keys), "context")
        first = None
        if given is not None:
            first = self._read_given(given, keys)
            keys = first.keys if spec.key is not None else None
            num_subjects = self._agree(num_subjects, len(first.lengths), "given")
        num_subjects = spec.num_subjects if num_subjects is None else num_subjects
        _check_number("num_subjects", num_subjects)
        numbers = None if keys is None else number_keys(keys)
        if spec.context is not None and users is None:
            users = self._contexts(num_subjects, of_context, seed, numbers)
        codes = None if spec.context is None else encode_table(users, spec.context, starts=np.arange(num_subjects))
        known = None if first is None else self._codes_of_given(first, filled, users)
        rows, lengths = self._rows(
            num_subjects, seed=seed, subjects=numbers, context=codes, given=known, users=users,
            temperature=temperature, top_p=top_p, dated=dated_columns(spec.target, users), **_draw_options(spec, of_events, filled),
        )  # fmt: skip
        if first is not None and known is not None:
            rows = _continued(rows, lengths, first.rows, known, spec)
        if spec.key is not None:
            named = keys if keys is not None else _new_keys(trained, num_subjects)
            rows = rows.add_column(0, spec.key, named.take(pa.array(np.repeat(np.arange(num_subjects), lengths))))
        return to_frame(rows, spec.frame)

    def _rows(self, num_subjects: int, *, seed: int, users: pa.Table | None = None, **options: Any) -> tuple[pa.Table, Array]:
        """Generated rows, and how many each subject has; `users` are the contexts of subjects."""
        spec = self.trained.spec
        limits = (spec.min_length, spec.max_length or 1)
        generated = generate_codes(self.trained.model, num_subjects, seed=seed, lengths=limits, **options)
        starts = np.cumsum(generated.lengths) - generated.lengths
        uniform = generated.uniform[:, int(spec.max_length is not None) :]
        return decode_table(generated.codes, spec.target, starts=starts, uniform=uniform, context=users), generated.lengths

    def _split_rebalance(
        self, rebalance: Mapping[str, Mapping[Any, float]], names: Sequence[str], *, has_context: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The shares of columns of events, and those of columns of generated contexts."""
        spec = self.trained.spec
        others = [column.name for column in spec.context.columns] if spec.context is not None and not has_context else []
        for name in rebalance:
            if name not in (*names, *others):
                known = ", ".join(map(repr, [*names, *others]))
                raise OptionError(f"rebalance names the column {name!r}; expected one of {known}.")
        of_events = {name: shares for name, shares in rebalance.items() if name in names}
        return of_events, {name: shares for name, shares in rebalance.items() if name not in names}

    @staticmethod
    def _agree(asked: int | None, count: int, what: str) -> int:
        if asked is not None and asked != count:
            raise OptionError(f"num_subjects is {asked!r}, but {what} has {count:,} subjects. Leave num_subjects out.")
        return count

    def _read_contexts(self, context: Any) -> tuple[pa.Array, pa.Table]:
        """Keys and rows of contexts."""
        spec = self.trained.spec
        if spec.context is None or spec.key is None:
            raise OptionError("context is given, but the model was trained without one. Leave it out.")
        table, what = read_table(context, "context")[0], name_of(context, "context")
        missing = [name for name in (str(spec.context_key), *spec.context.schema.names) if name not in table.column_names]
        if missing:
            raise OptionError(
                f"{what} lacks the columns {', '.join(map(repr, missing))}, which the model was trained with. Add them."
            )
        keys = key_column(table, str(spec.context_key), what)
        check_unique(keys, str(spec.context_key), what)
        return keys, table

    def _read_given(self, given: Any, keys: pa.Array | None) -> GroupedRows:
        """Given events by subject; those of single rows are numbered."""
        spec = self.trained.spec
        table, what = read_table(given, "given")[0], name_of(given, "given")
        names = [column.name for column in spec.target.columns]
        unknown = [name for name in table.column_names if name not in (*names, spec.key)]
        if unknown:
            known = ", ".join(map(repr, names))
            raise OptionError(f"{what} has the columns {', '.join(map(repr, unknown))}; expected some of {known}. Drop the others.")
        if spec.key is not None and spec.key not in table.column_names:
            raise OptionError(f"{what} has no column {spec.key!r}, the key that the model was trained with. Add it.")
        self._check_bases(table)
        if spec.key is None:
            numbers = np.arange(len(table))
            grouped = GroupedRows(rows=table, keys=pa.array(numbers), starts=numbers, lengths=np.ones(len(table), np.int64))
        else:
            grouped = group_rows(table, key=spec.key, keys=keys, what=what)
        most, limit = int(grouped.lengths.max(initial=0)), spec.max_length or 1
        if most > limit:
            raise OptionError(
                f"{what} has {most:,} events of one subject; the model was trained with at most {limit:,}. Give fewer."
            )
        return grouped

    def _codes_of_given(self, given: GroupedRows, filled: Sequence[str], users: pa.Table | None) -> GivenCodes:
        """The codes of given events."""
        spec, rows, starts, lengths = self.trained.spec, given.rows, given.starts, given.lengths
        schema = spec.target.schema
        names = schema.names
        whole = {name: rows[name] if name in rows.column_names else pa.nulls(len(rows), schema.field(name).type) for name in names}
        codes = encode_table(pa.table(whole), spec.target, starts=starts, context=users).astype(np.int64)
        padded = np.zeros((len(lengths), int(lengths.max(initial=0)), codes.shape[1]), np.int64)
        is_given = np.zeros((*padded.shape[:2], len(names)), bool)
        owner, inside = _places_of(lengths)
        padded[owner, inside] = codes
        for number, column in enumerate(spec.target.columns):
            if column.name not in rows.column_names:
                continue
            is_valid = np.ones(len(rows), bool)
            if column.name in filled and rows[column.name].null_count:
                if column.encoding.__struct_config__.tag in ("relative",):
                    raise OptionError(
                        f"impute names the column {column.name!r}, whose dates are relative to the event before; those that given has "
                        f"not cannot be filled. Leave it out."
                    )
                is_valid = rows[column.name].is_valid().to_numpy(zero_copy_only=False)
            is_given[owner, inside, number] = is_valid
        limits, places = np.stack([lengths, np.full(len(lengths), 2**31)], 1), np.cumsum([0, *map(len, spec.target.sizes)])
        begun = np.flatnonzero(lengths)
        for number, column in enumerate(spec.target.columns):
            if column.ends is not None:  # after what is never last there is another event, and none after what is only last
                final = (begun, lengths[begun] - 1)
                is_known, code = is_given[(*final, number)], padded[(*final, places[number])]
                limits[begun, 0] = np.where(is_known & np.isin(code, column.ends.last), lengths[begun] + 1, limits[begun, 0])
                limits[begun, 1] = np.where(is_known & np.isin(code, column.ends.earlier), lengths[begun], limits[begun, 1])
        times = [
            read_values(column.name, whole[column.name]).data
            for column in spec.target.columns
            if isinstance(column.encoding, Relative) and column.encoding.rhythm is not None
        ]
        dates = np.zeros((*padded.shape[:2], len(times)), np.int64)
        dates[owner, inside] = np.stack(times, -1) if times else 0
        return GivenCodes(codes=padded, is_given=is_given, lengths=lengths, limits=limits, times=dates if times else None)

    def _check_bases(self, given: pa.Table) -> None:
        """Check that what a given column is counted or computed from is given, too."""
        for name, rule in self.trained.spec.target.rules.items():
            missing = [operand for operand in rule.in_row if operand not in given.column_names]
            if name in given.column_names and missing:
                raise OptionError(
                    f"given has {name!r} but not {missing[0]!r}; {name!r} is computed from {' and '.join(map(repr, rule.operands))}. "
                    f"Give these, or encodings={{{name!r}: …}} with a kind to fit."
                )
        for column in self.trained.spec.target.columns:
            if not isinstance(column.encoding, Since) or column.name not in given.column_names:
                continue
            base = column.encoding.base
            is_there = given[column.name].is_valid().to_numpy()
            has_base = given[base].is_valid().to_numpy() if base in given.column_names else np.zeros(len(given), bool)
            if (is_there & ~has_base).any():
                row = int(np.flatnonzero(is_there & ~has_base)[0])
                raise OptionError(
                    f"given has {column.name!r} but not {base!r} in row {row:,}; {column.name!r} was learned as the time since {base!r}. "
                    f"Give both, or encodings={{{column.name!r}: 'datetime'}} to fit."
                )


def _draw_options(spec: ModelSpec, rebalance: Mapping[str, Mapping[Any, float]], filled: Sequence[str]) -> dict[str, Any]:
    """Which classes are drawn, and in which order of columns: rebalanced ones come first, imputed ones last."""
    never = {number: list(classes) for number, classes in spec.never().items()}
    shares, number = {}, spec.layout().num_positions
    for column in spec.target.columns:
        encoding = column.encoding
        if column.name in rebalance:
            shares[number] = _class_shares(
                column.name, encoding, spec.target.schema.field(column.name).type, rebalance[column.name]
            )
        if column.name in filled and encoding.has_null:
            never.setdefault(number, []).append(encoding.null_class)
        number += len(encoding.sizes)
    names = [column.name for column in spec.target.columns]
    order = sorted(range(len(names)), key=lambda number: (names[number] not in rebalance, names[number] in filled))
    return {"never": never, "ends": spec.ends(), "shares": shares, "order": order}


def _class_shares(name: str, encoding: Any, kind: pa.DataType, shares: Mapping[Any, float]) -> dict[int, float]:
    """The classes of values, with their probabilities."""
    if not isinstance(encoding, Categorical):
        tag = encoding.__struct_config__.tag
        raise OptionError(
            f"rebalance names the column {name!r}, which is encoded as {tag}; expected a categorical one. Name another."
        )
    if not isinstance(shares, Mapping):
        raise OptionError(f"rebalance[{name!r}] is {shares!r}; expected shares of its values, such as {{'gold': 0.5}}.")
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    shares_of = {}
    for value, share in shares.items():
        try:
            word = pa.array([value], inner).cast(pa.string())[0].as_py()
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            word = str(value)
        if value is None and encoding.has_null:
            shares_of[1] = share
        elif (code := encoding.own_class(word)) is not None:
            shares_of[code] = share
        elif word in encoding.values:
            raise OptionError(
                f"rebalance[{name!r}] has the value {value!r}, which shares a class with others, as the column has "
                f"{len(encoding.values):,} values. Expected one of the most frequent ones, or a column with fewer values."
            )
        else:
            known = ", ".join(map(repr, encoding.values[:8]))
            raise OptionError(f"rebalance[{name!r}] has the value {value!r}; expected some of those that were kept: {known}.")
        _check_range(f"rebalance[{name!r}][{value!r}]", share, 0, 1)
    if sum(shares_of.values()) > 1 + 1e-9:
        raise OptionError(
            f"rebalance[{name!r}] has shares with the sum {sum(shares_of.values()):g}; expected at most 1. Lower some."
        )
    return shares_of


def _check_impute(impute: Any, names: Sequence[str]) -> list[str]:
    """The columns to impute."""
    if isinstance(impute, bool):
        return list(names) if impute else []
    if isinstance(impute, str) or not isinstance(impute, Sequence):
        raise OptionError(f"impute is {impute!r}; expected a list of columns, True or False.")
    for name in impute:
        if name not in names:
            raise OptionError(f"impute names the column {name!r}; expected one of {', '.join(map(repr, names))}.")
    return list(impute)


def _continued(drawn: pa.Table, lengths: Array, given: pa.Table, codes: GivenCodes, spec: ModelSpec) -> pa.Table:
    """Generated rows that begin with the given ones, and follow them: dates are counted from given dates, and never go back."""
    starts = np.cumsum(lengths) - lengths
    owner, inside = _places_of(codes.lengths)
    at = starts[owner] + inside
    fixed = np.zeros((len(spec.target.columns), len(drawn)), np.bool_)
    fixed[:, at] = codes.is_given[owner, inside].T
    columns = {name: drawn[name] for name in drawn.column_names}
    numbers = {name: number for number, name in enumerate(columns)}
    for name in given.column_names:  # as they were given: decoded ones may differ within their interval
        is_given = fixed[numbers[name], at]
        source = np.arange(len(drawn))
        source[at[is_given]] = len(drawn) + np.flatnonzero(is_given)
        both = pa.chunked_array([*drawn[name].chunks, *given[name].cast(drawn[name].type).chunks], drawn[name].type)
        columns[name] = both.take(pa.array(source))
    followers = [column for column in spec.target.columns if isinstance(column.encoding, Relative | Since)]
    for column in sorted(followers, key=lambda column: isinstance(column.encoding, Since)):  # after what they are counted from
        encoding, name = column.encoding, column.name
        assert isinstance(encoding, Relative | Since)
        before, after = (read_values(name, table[name]) for table in (drawn, columns))
        stays = fixed[numbers[name]]
        data, valid = after.data.astype(np.int64), after.valid
        if isinstance(encoding, Since):
            bases = [read_values(encoding.base, table[encoding.base]) for table in (drawn, columns)]
            data = np.where(stays, data, data + bases[1].data - bases[0].data)
            valid = valid & (stays | bases[1].valid)
        else:  # later dates were counted from drawn ones, which given ones have replaced
            last = np.maximum.accumulate(np.where(stays & valid, np.arange(len(data)), -1))
            moves = (last >= np.repeat(starts, lengths)) & ~stays
            data[moves] += (after.data - before.data)[last[moves]]
        if encoding.rises:
            rise(data, valid, stays, starts)
        columns[name] = to_column(np.where(valid, data, 0), valid, drawn.schema.field(name).type)
    if rules := spec.target.rules:
        whole = {
            name: column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for name, column in columns.items()
        }
        columns = compute(whole, rules, drawn.schema, starts, {name: fixed[numbers[name]] for name in rules})
    return pa.table(columns, schema=drawn.schema)


def _places_of(lengths: Array) -> tuple[Array, Array]:
    """The subject of each row, and the number of the row within it."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]


def _new_keys(trained: TrainedTabular, count: int) -> pa.Array:
    """Keys of new subjects: 0, 1, 2, ... or strings of them."""
    if trained.spec.has_number_keys:
        return pa.array(np.arange(count))
    width = len(str(max(count - 1, 0)))
    return pa.array([f"{number:0{width}d}" for number in range(count)], pa.string())


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise OptionError(f"seed is {seed!r}; expected an integer.")
    return int(seed)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**40:
        raise OptionError(f"{name} is {value!r}; expected an integer from 0.")


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        raise OptionError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}.")
