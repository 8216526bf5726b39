"""`analyze` and `encode`, as mostlyai-engine has them, in the workspace of its `split`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError
from stoker.extend import Array, disk
from stoker_recipes.tabular.compat.codes import codes_of_column, column_names, read_column
from stoker_recipes.tabular.compat.statistics import part_of_column, reduce_column, reduce_lengths
from stoker_recipes.tabular.compat.workspace import Role, Workspace, empty_folder, read_parquet, write_json, write_parquet
from stoker_recipes.tabular.files import key_column
from stoker_recipes.tabular.layout import POSITION, position_sizes
from stoker_recipes.tabular.sequences.pad import pad_sequences
from stoker_recipes.tabular.tables import GroupedRows, group_rows

Progress = Callable[..., Any]


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
        roles = _roles(workspace)
        parts_of: dict[Role, dict[str, list[dict[str, Any]]]] = {}
        lengths: list[Array] = []
        counts = {"trn": 0, "val": 0}
        kinds = {role: workspace.read(workspace.meta(role, "encoding-types"), "mostlyai.engine.split") for role in roles}
        keys = {role: workspace.read(workspace.meta(role, "keys"), "mostlyai.engine.split") for role in roles}
        files = workspace.parts()
        for number, path in enumerate(files):
            grouped, order = _read_part(workspace, path, keys)
            lengths.append(grouped.lengths)
            counts[path.name[-len("trn.parquet") :][:3]] += len(grouped.keys)
            for role in roles:
                table = grouped.rows if role == "tgt" else read_parquet(workspace.data("ctx") / path.name)
                starts = grouped.starts if role == "tgt" else np.arange(len(table))
                parts = parts_of.setdefault(role, {name: [] for name in kinds[role]})
                for name, kind in kinds[role].items() if len(table) else ():
                    column = read_column(name, _column(table, name, path), kind)
                    # Rows lie as in the file, other than those of relative dates, whose order within subjects matters.
                    values = column.take(pa.array(order)) if role == "tgt" and kind == "TABULAR_DATETIME_RELATIVE" else column
                    parts[name].append(part_of_column(kind, values, starts))
            report(completed=number, total=len(files) + 1)
        for role in roles:
            columns = _reduce(role, kinds[role], parts_of[role], protect=value_protection)
            stats: dict[str, Any] = {"columns": columns}
            if role == "tgt":
                stats |= {"no_of_training_records": counts["trn"], "no_of_validation_records": counts["val"]}
                stats["seq_len"] = reduce_lengths(np.concatenate(lengths), protect=value_protection)
                stats["is_sequential"] = (stats["seq_len"]["min"], stats["seq_len"]["max"]) != (1, 1)
            stats |= {"keys": keys[role], "value_protection_epsilon_spent": None}
            write_json(workspace.stats(role), stats)
        if "ctx" not in roles:
            disk.remove_folder(workspace.stats("ctx").parent)


def _roles(workspace: Workspace) -> list[Role]:
    """The tables of a workspace; the context of an earlier split, which `split` leaves there, is none of them."""
    has_key = "context_key" in workspace.read(workspace.meta("tgt", "keys"), "mostlyai.engine.split")
    return ["tgt", "ctx"] if has_key and workspace.data("ctx").is_dir() else ["tgt"]


def _reduce(role: Role, kinds: Mapping[str, str], parts_of: Mapping[str, list[Any]], *, protect: bool) -> dict[str, Any]:
    tables = list(dict.fromkeys(name.split("::")[0] for name in kinds))
    columns = {}
    for number, (name, kind) in enumerate(kinds.items()):
        if not parts_of[name]:  # no partition has rows
            columns[name] = {"encoding_type": kind}
            continue
        columns[name] = reduce_column(kind, parts_of[name], protect=protect) | {
            "argn_processor": "tgt" if role == "tgt" else "ctxflt",
            "argn_table": f"t{tables.index(name.split('::')[0])}",
            "argn_column": f"c{number}",
        }
    return columns


def _column(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise OptionError(f"{path} has no column {name!r}, which its encoding-types.json names. Call split(...) again.")
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
        roles = _roles(workspace)
        stats = {role: workspace.read(workspace.stats(role), "compat.analyze") for role in roles}
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
    grouped, order = _read_part(workspace, path, {role: statistics["keys"] for role, statistics in stats.items()})
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
    owner = np.repeat(np.arange(len(lengths)), lengths)
    packed = pad_sequences(
        {"": owner, **sub_codes},
        key="",
        contexts=np.arange(len(lengths)),
        max_length=max_length,
        layout="packed",
        compat="mostlyai",
    )
    offsets = pa.array(packed.cu_seqlens.numpy())
    names = [*(f"{POSITION}__{name}" for name in position_sizes(max_length)), *sub_codes]
    return pa.table(columns | {name: pa.ListArray.from_arrays(offsets, pa.array(packed[name].numpy())) for name in names})


@contextmanager
def _reported(update: Progress | None) -> Iterator[Progress]:
    """Call `update_progress`: 0 of 1 at the start, 1 of 1 at the end."""
    report: Progress = update or (lambda **values: None)
    report(completed=0, total=1)
    yield report
    report(completed=1, total=1)
