"""`Synthesizer`: learn a table of events, generate new subjects."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

import stoker
from stoker import _disk
from stoker._types import Array
from stoker.errors import OptionError
from stoker.recipes.tabular.generation import GivenCodes, generate_codes
from stoker.recipes.tabular.subjects import Say, make_settings
from stoker.recipes.tabular.tables import decode_table, encode_table, group_rows, key_column, read_table, to_frame
from stoker.recipes.tabular.training import TrainedTabular, load_model, train


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
            events: A file or a frame of pandas, Polars or Arrow. Events of a subject are in order.
            key: The column that names the subject; without it every row is one.
            context: Facts of the subjects, one row each, with the same key.
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
            where = Path(folder) if folder is not None else stack.enter_context(_disk.temporary_folder()) / "run"
            common: dict[str, Any] = {"device": device, "resume": resume, "overwrite": overwrite, "progress": progress}
            if say is not None:
                common["say"] = say
            self._trained = train(events, folder=where, key=key, context=context, encodings=encodings, **common, **self._options)
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
        found = cls()
        found._trained = load_model(folder, device=device)
        return found

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

    def sample_context(self, num_subjects: int, *, seed: int = 0) -> Any:
        """Generate contexts of new subjects, with a key.

        Args:
            num_subjects: How many.
            seed: Of all random numbers.

        Raises:
            OptionError: The model was trained without a context.
        """
        trained = self.trained
        if trained.context is None:
            raise OptionError("the model was trained without a context. Call sample(n).")
        _check_number("num_subjects", num_subjects)
        inner = Synthesizer()
        inner._trained = trained.context
        rows, _ = inner._rows(num_subjects, seed=seed)
        return to_frame(rows.add_column(0, trained.spec.key or "key", _new_keys(trained, num_subjects)), trained.spec.frame)

    def sample(
        self,
        num_subjects: int | None = None,
        *,
        context: Any = None,
        given: Any = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Any:
        """Generate new subjects with their events.

        The result is a function of the seed: a subject has the same events in any number of subjects.

        Args:
            num_subjects: How many. Default: those of `context` or `given`, otherwise as many as were learned.
            context: Contexts to generate for, with their keys. Default: generated ones, those of `sample_context`.
            given: First events of subjects, or rows, of which some columns are known. They come back as they are.
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
        _check_range("temperature", temperature, 1e-3, 100)
        _check_range("top_p", top_p, 1e-6, 1)
        keys, codes = None, None
        if context is not None:
            keys, codes = self._context_codes(context)
            num_subjects = self._agree(num_subjects, len(keys), "context")
        first = None
        if given is not None:
            first = self._given(given, keys)
            keys = first[0] if keys is None else keys
            num_subjects = self._agree(num_subjects, len(first[2].lengths), "given")
        num_subjects = spec.num_subjects if num_subjects is None else num_subjects
        _check_number("num_subjects", num_subjects)
        if spec.context is not None and codes is None:
            made, _ = read_table(self.sample_context(num_subjects, seed=seed), "context")
            codes = encode_table(made, spec.context, starts=np.arange(num_subjects))
        rows, lengths = self._rows(
            num_subjects, seed=seed, context=codes, given=None if first is None else first[2], temperature=temperature, top_p=top_p
        )
        if first is not None:
            rows = _put_back(rows, lengths, first[1], first[2])
        if spec.key is not None:
            named = keys if keys is not None else _new_keys(trained, num_subjects)
            rows = rows.add_column(0, spec.key, named.take(pa.array(np.repeat(np.arange(num_subjects), lengths))))
        return to_frame(rows, spec.frame)

    def _rows(self, num_subjects: int, *, seed: int, **options: Any) -> tuple[pa.Table, Array]:
        """Generated rows, and how many each subject has."""
        spec = self.trained.spec
        limits = (spec.min_length, spec.max_length or 1)
        found = generate_codes(self.trained.model, num_subjects, seed=seed, never=spec.never(), lengths=limits, **options)
        starts = np.cumsum(found.lengths) - found.lengths
        uniform = found.uniform[:, int(spec.max_length is not None) :]
        return decode_table(found.codes, spec.target, starts=starts, uniform=uniform), found.lengths

    @staticmethod
    def _agree(asked: int | None, count: int, what: str) -> int:
        if asked is not None and asked != count:
            raise OptionError(f"num_subjects is {asked!r}, but {what} has {count:,} subjects. Leave num_subjects out.")
        return count

    def _context_codes(self, context: Any) -> tuple[pa.Array, Array]:
        spec = self.trained.spec
        if spec.context is None or spec.key is None:
            raise OptionError("context is given, but the model was trained without one. Leave it out.")
        table, _ = read_table(context, "context")
        keys = key_column(table, spec.key, "context")
        missing = [name for name in spec.context.schema.names if name not in table.column_names]
        if missing:
            raise OptionError(f"context lacks the columns {', '.join(map(repr, missing))}, which the model was trained with.")
        return keys, encode_table(table, spec.context, starts=np.arange(len(table)))

    def _given(self, given: Any, keys: pa.Array | None) -> tuple[pa.Array | None, pa.Table, GivenCodes]:
        """Keys, rows and codes of given events."""
        spec = self.trained.spec
        table, _ = read_table(given, "given")
        names = [column.name for column in spec.target.columns]
        unknown = [name for name in table.column_names if name not in (*names, spec.key)]
        if unknown:
            raise OptionError(
                f"given has the columns {', '.join(map(repr, unknown))}; expected some of {', '.join(map(repr, names))}."
            )
        columns = [number for number, name in enumerate(names) if name in table.column_names]
        if spec.key is None:
            rows, starts, lengths = table, np.arange(len(table)), np.ones(len(table), np.int64)
        else:
            grouped = group_rows(table, key=spec.key, keys=keys, what="given")
            rows, starts, lengths, keys = grouped.rows, grouped.starts, grouped.lengths, grouped.keys
        limit = spec.max_length or 1
        if lengths.max(initial=0) > limit:
            raise OptionError(
                f"given has {int(lengths.max()):,} events of one subject; the model was trained with at most {limit:,}."
            )
        schema = spec.target.schema
        whole = {name: rows[name] if name in rows.column_names else pa.nulls(len(rows), schema.field(name).type) for name in names}
        codes = encode_table(pa.table(whole), spec.target, starts=starts).astype(np.int64)
        padded = np.zeros((len(lengths), int(lengths.max(initial=0)), codes.shape[1]), np.int64)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        padded[owner, np.arange(len(codes)) - starts[owner]] = codes
        return keys, rows, GivenCodes(codes=padded, lengths=lengths, columns=columns)


def _put_back(rows: pa.Table, lengths: Array, given: pa.Table, codes: GivenCodes) -> pa.Table:
    """Write given values where they were given: decoded ones may differ within their interval."""
    starts = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(lengths)), codes.lengths)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(codes.lengths) - codes.lengths, codes.lengths)
    source = np.arange(len(rows))
    source[starts[owner] + inside] = len(rows) + np.arange(len(owner))
    for name in given.column_names:
        place = rows.column_names.index(name)
        both = pa.chunked_array([*rows[name].chunks, *given[name].cast(rows[name].type).chunks], rows[name].type)
        rows = rows.set_column(place, rows.schema.field(name), both.take(pa.array(source)))
    return rows


def _new_keys(trained: TrainedTabular, count: int) -> pa.Array:
    """Keys of new subjects: 0, 1, 2, ... or strings of them."""
    if trained.spec.has_number_keys:
        return pa.array(np.arange(count))
    width = len(str(max(count - 1, 0)))
    return pa.array([f"{number:0{width}d}" for number in range(count)], pa.string())


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**40:
        raise OptionError(f"{name} is {value!r}; expected an integer from 0.")


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise OptionError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}.")
