"""`split`, `analyze` and `encode`, as mostlyai-engine has them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from stoker.errors import OptionError
from stoker.extend import Array, disk
from stoker_recipes.tabular.compat.codes import KINDS, codes_of_column, column_names, position_columns, read_column
from stoker_recipes.tabular.compat.statistics import part_of_column, reduce_column, reduce_lengths
from stoker_recipes.tabular.compat.workspace import Role, Workspace, empty_folder, read_parquet, write_json, write_parquet
from stoker_recipes.tabular.data import check_unique
from stoker_recipes.tabular.tables import GroupedRows, find_owners, group_rows, key_column, read_table

Progress = Callable[..., Any]


def set_random_state(random_state: int | None = None) -> None:
    """Seed `random`, `np.random` and torch, from which all steps draw.

    Args:
        random_state: The seed; None draws one.
    """
    seed = int.from_bytes(os.urandom(4), "little") if random_state is None else random_state
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def split(
    tgt_data: Any,
    *,
    ctx_data: Any = None,
    tgt_primary_key: str | None = None,
    ctx_primary_key: str | None = None,
    tgt_context_key: str | None = None,
    model_type: str | None = None,
    tgt_encoding_types: Mapping[str, str] | None = None,
    ctx_encoding_types: Mapping[str, str] | None = None,
    n_partitions: int = 1,
    trn_val_split: float | Callable[[Any], tuple[Any, Any]] = 0.8,
    workspace_dir: str | Path = "engine-ws",
    update_progress: Progress | None = None,
) -> None:
    """Split tables into rows to train and to validate with.

    Args:
        tgt_data: The table to learn.
        ctx_data: Facts of the subjects, one row each.
        tgt_primary_key: The column of `tgt_data` that names its rows; it is not learned.
        ctx_primary_key: The column of `ctx_data` that names the subject.
        tgt_context_key: The column of `tgt_data` that names the subject.
        model_type: "TABULAR"; others are refused.
        tgt_encoding_types: Encodings of columns, such as {"time": "TABULAR_DATETIME_RELATIVE"}.
        ctx_encoding_types: The same of `ctx_data`.
        n_partitions: The number of files for each of both sets.
        trn_val_split: The share of subjects to train with, or a function from a pandas Series of keys to those of both sets.
        workspace_dir: The workspace.
        update_progress: Called with `total` and `completed`.

    Raises:
        OptionError: A parameter is invalid.
        BadValueError: A key is missing, occurs twice, or is not among the contexts.

    Example:
        >>> split({"x": list(range(100))}, workspace_dir="ws")
        >>> sorted(path.name for path in Path("ws/OriginalData/tgt-data").iterdir())
        ['part.000000-trn.parquet', 'part.000000-val.parquet']
    """
    with _reported(update_progress) as report:
        target, frame = read_table(tgt_data, "tgt_data")
        context = None if ctx_data is None else read_table(ctx_data, "ctx_data")[0]
        if str(getattr(model_type, "value", model_type) or "TABULAR") != "TABULAR":
            raise OptionError(f"model_type is {model_type!r}; expected 'TABULAR': language models are not part of this recipe.")
        if not len(target):
            raise OptionError("tgt_data has no rows. Give a table with some.")
        if isinstance(n_partitions, bool) or not isinstance(n_partitions, int) or n_partitions < 1:
            raise OptionError(f"n_partitions is {n_partitions!r}; expected an integer from 1.")
        if tgt_primary_key is not None:
            check_unique(key_column(target, tgt_primary_key, "tgt_data"), tgt_primary_key, "tgt_data")
        if context is not None:
            for name, key in (("tgt_context_key", tgt_context_key), ("ctx_primary_key", ctx_primary_key)):
                if key is None:
                    raise OptionError(f"ctx_data is given, but {name} is not. Pass the column that names the subject.")
            check_unique(key_column(context, str(ctx_primary_key), "ctx_data"), str(ctx_primary_key), "ctx_data")
        elif tgt_context_key is not None:
            ctx_primary_key = ctx_primary_key or tgt_context_key
            context = pa.table({ctx_primary_key: key_column(target, tgt_context_key, "tgt_data").unique()})
        is_object = frame == "pandas" and {name for name in tgt_data.columns if tgt_data[name].dtype == object}
        kinds = _kinds("tgt", target, tgt_encoding_types, (tgt_primary_key, tgt_context_key), is_object or set())
        context_kinds = {} if context is None else _kinds("ctx", context, ctx_encoding_types, (ctx_primary_key,), set())
        keys, owner = _owners(target, context, tgt_context_key, ctx_primary_key)
        part = _parts(keys, trn_val_split, n_partitions)
        workspace = Workspace(folder=Path(workspace_dir))
        for role in ("tgt", "ctx"):
            empty_folder(workspace.data(role))
        for number in range(2 * n_partitions):
            name = f"part.{number // 2:06d}-{('trn', 'val')[number % 2]}.parquet"
            write_parquet(
                workspace.data("tgt") / name, _with_pandas(target.filter(pa.array(part[owner] == number)), tgt_data, frame)
            )
            if context is not None:
                write_parquet(workspace.data("ctx") / name, context.filter(pa.array(part == number)))
            report(completed=number, total=2 * n_partitions)
        own = {"primary_key": tgt_primary_key, "context_key": tgt_context_key}
        write_json(workspace.meta("tgt", "keys"), {name: key for name, key in own.items() if key is not None})
        write_json(workspace.meta("tgt", "encoding-types"), kinds)
        if context is not None:
            write_json(workspace.meta("ctx", "keys"), {"primary_key": ctx_primary_key})
            write_json(workspace.meta("ctx", "encoding-types"), context_kinds)
        else:
            for folder in (workspace.data("ctx"), workspace.meta("ctx", "keys").parent):
                disk.remove_folder(folder)


def _with_pandas(table: pa.Table, given: Any, frame: str) -> pa.Table:
    """With what pandas needs to read its own types again."""
    return (
        table.replace_schema_metadata(pa.Schema.from_pandas(given, preserve_index=False).metadata) if frame == "pandas" else table
    )


def _kinds(
    role: Role, table: pa.Table, asked: Mapping[str, str] | None, keys: Sequence[str | None], is_object: set[str]
) -> dict[str, str]:
    """The encoding of each column: those that are asked for, then the others."""
    given = {name: str(getattr(kind, "value", kind)) for name, kind in (asked or {}).items()}
    names = [name for name in table.column_names if name not in keys]
    for name, kind in given.items():
        if name not in names:
            raise OptionError(f"{role}_encoding_types names the column {name!r}; expected one of {', '.join(map(repr, names))}.")
        if kind not in KINDS and kind != "AUTO":
            raise OptionError(f"{role}_encoding_types[{name!r}] is {kind!r}; expected one of {', '.join(KINDS)}.")
    found = {name: kind for name, kind in given.items() if kind != "AUTO"}
    for name in names:
        kind = table.schema.field(name).type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            raise OptionError(
                f"column {name!r} of {role}_data holds lists, which are not supported. Drop it, or make a column per item."
            )
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        is_date = pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and name not in is_object)
        auto = "TABULAR_NUMERIC_AUTO" if is_number else "TABULAR_DATETIME" if is_date else "TABULAR_CATEGORICAL"
        found.setdefault(name, auto)
    return found


def _owners(target: pa.Table, context: pa.Table | None, key: str | None, primary: str | None) -> tuple[pa.Array, Array]:
    """Return the keys of all subjects, and the number of the subject of each row."""
    if context is None or key is None:
        return pa.array(np.arange(len(target))), np.arange(len(target))
    keys = key_column(context, str(primary), "ctx_data")
    column = key_column(target, key, "tgt_data")
    return keys, find_owners(column, keys, key=key, what="tgt_data", other="ctx_data")


def _parts(keys: pa.Array, share: Any, count: int) -> Array:
    """The file of each subject: even numbers to train with, odd ones to validate with; -1 for none."""
    if callable(share):
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        place = {key: number for number, key in enumerate(keys.to_pylist())}
        both: list[Any] = [[place[key] for key in pd.Series(one).tolist()] for one in share(keys.to_pandas())]
    else:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise OptionError(f"trn_val_split is {share!r}; expected a number between 0 and 1, or a function.")
        order, trained = np.random.permutation(len(keys)), round(share * len(keys))
        both = [order[:trained], order[trained:]]
    part = np.full(len(keys), -1)
    for kind, one in enumerate(both):
        part[np.asarray(one, np.int64)] = 2 * (np.arange(len(one)) % count) + kind
    return part


def analyze(
    *,
    value_protection: bool = True,
    differential_privacy: Any = None,
    workspace_dir: str | Path = "engine-ws",
    update_progress: Progress | None = None,
) -> None:
    """Compute the statistics of all columns.

    Args:
        value_protection: Leave out values that fewer than 5 to 7 rows have.
        differential_privacy: Not supported; expected None.
        workspace_dir: The workspace of `split`.
        update_progress: Called with `total` and `completed`.

    Raises:
        OptionError: There are too few subjects for protection, or `split` has not run.
    """
    if differential_privacy is not None:
        raise OptionError("differential_privacy is not supported here; expected None.")
    with _reported(update_progress) as report:
        workspace = Workspace(folder=Path(workspace_dir))
        roles: list[Role] = ["tgt", "ctx"] if workspace.data("ctx").is_dir() else ["tgt"]
        found: dict[Role, dict[str, list[dict[str, Any]]]] = {}
        lengths: list[Array] = []
        counts = {"trn": 0, "val": 0}
        kinds = {role: workspace.read(workspace.meta(role, "encoding-types"), "split") for role in roles}
        keys = {role: workspace.read(workspace.meta(role, "keys"), "split") for role in roles}
        files = workspace.parts()
        for number, path in enumerate(files):
            grouped, order = _read_part(workspace, path, keys)
            lengths.append(grouped.lengths)
            counts[path.name[-len("trn.parquet") :][:3]] += len(grouped.keys)
            for role in roles:
                table = grouped.rows if role == "tgt" else read_parquet(workspace.data("ctx") / path.name)
                starts = grouped.starts if role == "tgt" else np.arange(len(table))
                parts = found.setdefault(role, {name: [] for name in kinds[role]})
                for name, kind in kinds[role].items() if len(table) else ():
                    column = read_column(name, _column(table, name, path), kind)
                    # Rows lie as in the file, other than those of relative dates, whose order within subjects matters.
                    own = column.take(pa.array(order)) if role == "tgt" and kind == "TABULAR_DATETIME_RELATIVE" else column
                    parts[name].append(part_of_column(kind, own, starts))
            report(completed=number, total=len(files) + 1)
        for role in roles:
            columns = _reduce(role, kinds[role], found[role], protect=value_protection)
            stats: dict[str, Any] = {"columns": columns}
            if role == "tgt":
                stats |= {"no_of_training_records": counts["trn"], "no_of_validation_records": counts["val"]}
                stats["seq_len"] = reduce_lengths(np.concatenate(lengths), protect=value_protection)
                stats["is_sequential"] = (stats["seq_len"]["min"], stats["seq_len"]["max"]) != (1, 1)
            stats |= {"keys": keys[role], "value_protection_epsilon_spent": None}
            write_json(workspace.stats(role), stats)
        if "ctx" not in roles:
            disk.remove_folder(workspace.stats("ctx").parent)


def _reduce(role: Role, kinds: Mapping[str, str], found: Mapping[str, list[Any]], *, protect: bool) -> dict[str, Any]:
    tables = list(dict.fromkeys(name.split("::")[0] for name in kinds))
    columns = {}
    for number, (name, kind) in enumerate(kinds.items()):
        if not found[name]:  # no partition has rows
            columns[name] = {"encoding_type": kind}
            continue
        columns[name] = reduce_column(kind, found[name], protect=protect) | {
            "argn_processor": "tgt" if role == "tgt" else "ctxflt",
            "argn_table": f"t{tables.index(name.split('::')[0])}",
            "argn_column": f"c{number}",
        }
    return columns


def _column(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise OptionError(f"{path} has no column {name!r}, which its encoding-types.json names. Call compat.split(...) again.")
    return table[name]


def _read_part(workspace: Workspace, path: Path, keys: Mapping[Role, Mapping[str, Any]]) -> tuple[GroupedRows, Array]:
    """The rows of a part as they lie in the file, with the place of each subject when they are sorted, and that order."""
    table, key = read_parquet(path), keys["tgt"].get("context_key")
    if key is None:
        rows = np.arange(len(table))
        return GroupedRows(rows=table, keys=pa.array(rows), starts=rows, lengths=np.ones(len(table), np.int64)), rows
    numbers = pa.array(np.arange(len(table)))
    known = None
    if "ctx" in keys:
        known = key_column(read_parquet(workspace.data("ctx") / path.name), str(keys["ctx"]["primary_key"]), "ctx_data")
    sorted_rows = group_rows(pa.table({key: table[key], "": numbers}), key=key, keys=known, what=path.name)
    order = sorted_rows.rows[""].to_numpy().astype(np.int64)
    return GroupedRows(rows=table, keys=sorted_rows.keys, starts=sorted_rows.starts, lengths=sorted_rows.lengths), order


def encode(*, workspace_dir: str | Path = "engine-ws", update_progress: Progress | None = None) -> None:
    """Encode all rows: one row of codes per subject, in random order.

    Args:
        workspace_dir: The workspace of `analyze`.
        update_progress: Called with `total` and `completed`.

    Raises:
        OptionError: `analyze` has not run.
    """
    with _reported(update_progress) as report:
        workspace = Workspace(folder=Path(workspace_dir))
        roles: list[Role] = ["tgt", "ctx"] if workspace.data("ctx").is_dir() else ["tgt"]
        stats = {role: workspace.read(workspace.stats(role), "analyze") for role in roles}
        files = workspace.parts()
        empty_folder(workspace.encoded)
        for number, path in enumerate(files):
            table = _encode_part(workspace, path, stats)
            if len(table) and any(name.startswith("tgt:") for name in table.column_names):
                shuffled = table.take(pa.array(np.random.permutation(len(table))))
                write_parquet(workspace.encoded / path.name, shuffled)
            report(completed=number, total=len(files) + 1)


def _encode_part(workspace: Workspace, path: Path, stats: Mapping[Role, Mapping[str, Any]]) -> pa.Table:
    """The codes of a part, subjects in the order of the contexts."""
    target = stats["tgt"]
    grouped, order = _read_part(workspace, path, {role: one["keys"] for role, one in stats.items()})
    sub_codes: dict[str, Array] = {}
    for name, entry in target["columns"].items():
        if "cardinalities" in entry:
            codes = codes_of_column(name, _column(grouped.rows, name, path), entry, order, grouped.starts)
            sub_codes |= dict(zip(column_names(entry), codes.T, strict=True))
    columns: dict[str, Any] = {}
    if "ctx" in stats:
        context = read_parquet(workspace.data("ctx") / path.name)
        rows = np.arange(len(context))
        for name, entry in stats["ctx"]["columns"].items():
            if "cardinalities" in entry:
                codes = codes_of_column(name, _column(context, name, path), entry, rows, rows)
                columns |= dict(zip(column_names(entry), codes.T, strict=True))
    lengths = grouped.lengths
    if not target["is_sequential"]:
        first = np.where(lengths > 0, grouped.starts, len(order))  # a subject without rows has codes 0
        return pa.table(columns | {name: np.append(codes, 0)[first] for name, codes in sub_codes.items()})
    max_length = target["seq_len"]["max"]
    kept = np.minimum(lengths, max_length)
    steps = np.repeat(np.arange(len(kept)), kept)
    inside = np.arange(len(steps)) - (np.cumsum(kept) - kept)[steps]
    source, place = grouped.starts[steps] + inside, np.arange(len(steps)) + steps  # one more step per subject, the end
    offsets = pa.array(np.append(0, np.cumsum(kept + 1)).astype(np.int32))
    whole = position_columns(kept, max_length)
    for name, codes in sub_codes.items():
        whole[name] = np.zeros(len(steps) + len(kept), np.int64)
        whole[name][place] = codes[source]
    return pa.table(columns | {name: pa.ListArray.from_arrays(offsets, pa.array(codes)) for name, codes in whole.items()})


@contextmanager
def _reported(update: Progress | None) -> Iterator[Progress]:
    """Call `update_progress`: 0 of 1 at the start, 1 of 1 at the end."""
    report: Progress = update or (lambda **values: None)
    report(completed=0, total=1)
    yield report
    report(completed=1, total=1)
