"""The workflow of mostlyai-engine, with its names, arguments, defaults and files, on the model and the generator of this recipe.

    from stoker.recipes.tabular import compat

    compat.split(events, tgt_context_key="user_id", workspace_dir="ws")
    compat.analyze(workspace_dir="ws")
    compat.encode(workspace_dir="ws")
    compat.train(workspace_dir="ws", max_epochs=10)
    compat.generate(workspace_dir="ws")          # ws/SyntheticData/part.000000.000000.parquet

Statistics and codes are equal to those of mostlyai-engine 2.7.3 for the same state of `np.random`, and each library opens the
workspace of the other. What is wrong there is not repeated: see "Against mostlyai-engine" in docs/recipes/tabular.md. Frames may be of
pandas, Polars or Arrow, or files. What is not here is refused by name: language models, differential privacy, lists, fairness.
"""

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

from stoker import _disk
from stoker._types import Array
from stoker.errors import BadValueError, OptionError
from stoker.recipes.tabular.compat_encodings import KINDS
from stoker.recipes.tabular.compat_encodings import encoding_of as encoding_of
from stoker.recipes.tabular.compat_model import SIZES, decode_types, fit_workspace, load_workspace
from stoker.recipes.tabular.compat_statistics import part_of_column, reduce_column, reduce_lengths
from stoker.recipes.tabular.compat_workspace import (
    Role,
    Workspace,
    codes_of_column,
    column_names,
    empty_folder,
    position_columns,
    read_column,
    read_parquet,
    write_json,
    write_parquet,
)
from stoker.recipes.tabular.synthesizer import Synthesizer
from stoker.recipes.tabular.tables import GroupedRows, cast_keys, group_rows, key_column, read_table

Progress = Callable[..., Any]
DEFAULT_MINUTES, DEFAULT_EPOCHS, DEFAULT_WINDOW = 14400.0, 100.0, 100


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
            _check_unique(key_column(target, tgt_primary_key, "tgt_data"), "tgt_data", tgt_primary_key)
        if context is not None:
            for name, key in (("tgt_context_key", tgt_context_key), ("ctx_primary_key", ctx_primary_key)):
                if key is None:
                    raise OptionError(f"ctx_data is given, but {name} is not. Pass the column that names the subject.")
            _check_unique(key_column(context, str(ctx_primary_key), "ctx_data"), "ctx_data", str(ctx_primary_key))
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
                _disk.remove_folder(folder)


def _with_pandas(table: pa.Table, given: Any, frame: str) -> pa.Table:
    """With what pandas needs to read its own types again."""
    return (
        table.replace_schema_metadata(pa.Schema.from_pandas(given, preserve_index=False).metadata) if frame == "pandas" else table
    )


def _check_unique(keys: pa.Array, what: str, key: str) -> None:
    if len(keys.unique()) < len(keys):
        counts = keys.value_counts()
        value = counts.field("values")[int(np.argmax(np.asarray(counts.field("counts"))))].as_py()
        raise BadValueError(f"{what} has the {key} {value!r} more than once; expected one row for each. Drop the others.")


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
    """The keys of all subjects, and the number of the subject of each row."""
    if context is None or key is None:
        return pa.array(np.arange(len(target))), np.arange(len(target))
    import pyarrow.compute as pc

    keys, own = key_column(context, str(primary), "ctx_data"), key_column(target, key, "tgt_data")
    found = pc.index_in(own, value_set=cast_keys(keys, own.type, key, "tgt_data"))
    if found.null_count:
        row = int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadValueError(
            f"tgt_data has the {key} {own[row].as_py()!r} in row {row:,}, which ctx_data does not have. Add it there, or drop its rows."
        )
    return keys, found.to_numpy(zero_copy_only=False).astype(np.int64)


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
    _refuse("differential_privacy", differential_privacy)
    with _reported(update_progress) as report:
        workspace = Workspace(folder=Path(workspace_dir))
        roles: list[Role] = ["tgt", "ctx"] if workspace.data("ctx").is_dir() else ["tgt"]
        found: dict[Role, dict[str, list[dict[str, Any]]]] = {}
        lengths: list[Array] = []
        counts = {"trn": 0, "val": 0}
        kinds = {role: workspace.read(workspace.meta(role, "encoding-types"), "split") for role in roles}
        keys = {role: workspace.read(workspace.meta(role, "keys"), "split") for role in roles}
        files = workspace.parts(workspace.data("tgt"), "split")
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
            _disk.remove_folder(workspace.stats("ctx").parent)


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
        files = workspace.parts(workspace.data("tgt"), "split")
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


def train(
    *,
    model: str | None = None,
    max_training_time: float | None = DEFAULT_MINUTES,
    max_epochs: float | None = DEFAULT_EPOCHS,
    batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    enable_flexible_generation: bool = True,
    max_sequence_window: int | None = None,
    differential_privacy: Any = None,
    model_state_strategy: str = "RESET",
    device: Any = None,
    workspace_dir: str | Path = "engine-ws",
    update_progress: Progress | None = None,
    upload_model_data_callback: Callable[[], Any] | None = None,
) -> None:
    """Train the model of a workspace.

    Args:
        model: "MOSTLY_AI/Small", "MOSTLY_AI/Medium" (default) or "MOSTLY_AI/Large".
        max_training_time: Minutes; None for the default.
        max_epochs: Epochs, rounded up; None for the default.
        batch_size: Subjects per update. Default: 1/64 of them, a power of two, fewer for large models and long sequences.
        gradient_accumulation_steps: Batches per update of the weights.
        enable_flexible_generation: Learn columns in any order.
        max_sequence_window: Events of a sequence that an update sees, at most. Default: 100.
        differential_privacy: Not supported; expected None.
        model_state_strategy: "RESET" starts again, "REUSE" starts with the weights of the workspace, "RESUME" continues a run.
        device: Default: a GPU if there is one.
        workspace_dir: The workspace of `encode`.
        update_progress: Called with `total`, `completed` and, after each epoch, a `message`; it stops the run with
            {"stopExecution": True}.
        upload_model_data_callback: Called after each epoch.

    Raises:
        OptionError: A parameter is invalid, or `encode` has not run.
    """
    _refuse("differential_privacy", differential_privacy)
    for name, value in (("max_training_time", max_training_time), ("max_epochs", max_epochs)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            raise OptionError(f"{name} is {value!r}; expected a number above 0, or None for the default.")
    sizes = {
        "batch_size": batch_size, "gradient_accumulation_steps": gradient_accumulation_steps or 1,
        "max_sequence_window": max_sequence_window,
    }  # fmt: skip
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise OptionError(f"{name} is {size!r}; expected an integer from 1.")
    if model is not None and model not in SIZES:
        raise OptionError(f"model is {model!r}; expected one of {', '.join(SIZES)}.")
    strategy = str(getattr(model_state_strategy, "value", model_state_strategy))
    if strategy not in ("RESET", "REUSE", "RESUME"):
        raise OptionError(f"model_state_strategy is {model_state_strategy!r}; expected RESET, REUSE or RESUME.")
    with _reported(update_progress) as report:
        fit_workspace(
            Workspace(folder=Path(workspace_dir)),
            model_id=model or "MOSTLY_AI/Medium",
            minutes=DEFAULT_MINUTES if max_training_time is None else float(max_training_time),
            epochs=int(np.ceil(DEFAULT_EPOCHS if max_epochs is None else max_epochs)),
            batch_size=batch_size,
            accumulation=gradient_accumulation_steps or 1,
            any_order=enable_flexible_generation,
            window=DEFAULT_WINDOW if max_sequence_window is None else max_sequence_window,
            strategy=strategy,
            device=None if device is None else str(device),
            report=report,
            on_epoch=upload_model_data_callback,
        )


def generate(
    *,
    ctx_data: Any = None,
    seed_data: Any = None,
    sample_size: int | None = None,
    batch_size: int | None = None,
    sampling_temperature: float = 1.0,
    sampling_top_p: float = 1.0,
    device: Any = None,
    rare_category_replacement_method: str = "CONSTANT",
    rebalancing: Any = None,
    imputation: Any = None,
    fairness: Any = None,
    workspace_dir: str | Path = "engine-ws",
    update_progress: Progress | None = None,
) -> None:
    """Generate rows, into `SyntheticData`. The events of a subject are side by side and in order.

    Args:
        ctx_data: Contexts to generate for. Default: those of `split`.
        seed_data: First events of subjects, or rows, of which some columns are known. They come back as they are.
        sample_size: The number of subjects; with contexts the first of them. Default: all, or as many as were learned.
        batch_size: Has no effect: the result is the same for any number of subjects at once.
        sampling_temperature: Below 1 makes likely values likelier.
        sampling_top_p: Draw from the likeliest values that together have this probability.
        device: Default: a GPU if there is one.
        rare_category_replacement_method: "CONSTANT" generates rare categories as `_RARE_`, "SAMPLE" never.
        rebalancing: Shares that values of a column get: {"column": "segment", "probabilities": {"gold": 0.5}}.
        imputation: Columns without missing values: {"columns": ["score"]}.
        fairness: Not supported; expected None.
        workspace_dir: The workspace of `train`, or of mostlyai-engine.
        update_progress: Called with `total` and `completed`.

    Raises:
        OptionError: A parameter is invalid, there are fewer contexts than `sample_size`, or there is no trained model.
    """
    _refuse("fairness", fairness)
    shares, filled = (
        _fields("rebalancing", rebalancing, ("column", "probabilities")),
        _fields("imputation", imputation, ("columns",)),
    )
    method = str(getattr(rare_category_replacement_method, "value", rare_category_replacement_method))
    if method not in ("CONSTANT", "SAMPLE"):
        raise OptionError(f"rare_category_replacement_method is {method!r}; expected CONSTANT or SAMPLE.")
    with _reported(update_progress):
        workspace = Workspace(folder=Path(workspace_dir))
        trained, stats = load_workspace(workspace, device=None if device is None else str(device), rare=method == "CONSTANT")
        keys = {role: one["keys"] for role, one in stats.items()}
        contexts = None
        if "ctx" in stats:
            contexts = _contexts(workspace, ctx_data, keys, stats["ctx"]["columns"], sample_size)
            sample_size = len(contexts)
        elif ctx_data is not None:
            raise OptionError("ctx_data is given, but the model was trained without a context. Leave it out.")
        seeds = None if seed_data is None else _seeds(seed_data, keys["tgt"], stats["tgt"]["columns"], contexts)
        synthesizer = Synthesizer()
        synthesizer._trained = trained
        found: pa.Table = synthesizer.sample(
            sample_size if seeds is None or contexts is not None else None,
            context=contexts if trained.spec.context is not None else None,
            given=seeds,
            rebalance={shares["column"]: shares["probabilities"]} if shares else None,
            impute=list(filled["columns"]) if filled else False,
            temperature=sampling_temperature,
            top_p=sampling_top_p,
            seed=int(np.random.randint(2**31)),
        )
        found = _name_subjects(found, contexts, trained.spec.key, stats, seeds is not None)
        primary = keys["tgt"].get("primary_key")
        if primary is not None and primary not in found.column_names:
            found = found.append_column(primary, pa.array(_uuids(len(found)), pa.string()))
        empty_folder(workspace.synthetic)
        write_parquet(workspace.synthetic / "part.000000.000000.parquet", _nullable(found, keys["tgt"].get("context_key")))


def _contexts(
    workspace: Workspace, given: Any, keys: Mapping[Role, Mapping[str, str]], entries: Mapping[str, Any], count: int | None
) -> pa.Table:
    """Contexts in the types of their encodings, with the key named as the target names it."""
    primary, name = keys["ctx"]["primary_key"], keys["tgt"]["context_key"]
    if given is None:
        parts = workspace.parts(workspace.data("ctx"), "split")
        table = pa.concat_tables([read_parquet(path).replace_schema_metadata(None) for path in parts])
    else:
        table = read_table(given, "ctx_data")[0]
    own = key_column(table, primary, "ctx_data")
    _check_unique(own, "ctx_data", primary)
    missing = [one for one in entries if one not in table.column_names]
    if missing:
        raise OptionError(f"ctx_data lacks the columns {', '.join(map(repr, missing))}, which the model was trained with.")
    if count is not None and count > len(table):
        raise OptionError(f"sample_size is {count:,}, but there are {len(table):,} contexts. Give more of them: ctx_data=...")
    found = pa.table({name: own} | decode_types(table, entries))
    return found if count is None else found.slice(0, count)


def _seeds(given: Any, keys: Mapping[str, str], entries: Mapping[str, Any], contexts: pa.Table | None) -> pa.Table:
    table, key = read_table(given, "seed_data")[0], keys.get("context_key")
    known = {name: entry for name, entry in entries.items() if name in table.column_names}
    if key is None:
        return pa.table(decode_types(table, known))
    if key not in table.column_names and contexts is not None and len(table) == len(contexts):
        return pa.table({key: contexts[key]} | decode_types(table, known))  # one row per context
    return pa.table({key: key_column(table, key, "seed_data")} | decode_types(table, known))


def _name_subjects(
    found: pa.Table, contexts: pa.Table | None, key: str | None, stats: Mapping[Role, Any], has_seeds: bool
) -> pa.Table:
    """The keys of contexts, where they have nothing else: the model does not see them."""
    if contexts is None or key is None or contexts.num_columns > 1 or has_seeds:
        return found
    numbers = found[key].combine_chunks()
    codes = numbers.cast(pa.int64()) if not pa.types.is_integer(numbers.type) else numbers
    place = found.column_names.index(key)
    return found.set_column(place, key, contexts[key].take(codes))


def _nullable(table: pa.Table, key: str | None) -> pa.Table:
    """With a note for pandas that integers with missing values are integers."""
    try:
        import pandas as pd
    except ImportError:
        return table
    kinds = {pa.int64(): "Int64", pa.float64(): "Float64", pa.string(): "string", pa.timestamp("us"): "datetime64[us]"}
    own = {
        field.name: "int64" if field.name == key and pa.types.is_integer(field.type) else kinds.get(field.type)
        for field in table.schema
    }
    frame = pd.DataFrame({name: pd.Series(dtype=kind or "object") for name, kind in own.items()})
    return table.replace_schema_metadata(pa.Schema.from_pandas(frame, preserve_index=False).metadata)


def _uuids(count: int) -> list[str]:
    """Random keys."""
    import uuid

    return [str(uuid.UUID(bytes=np.random.bytes(16), version=4)) for _ in range(count)]


def _fields(name: str, value: Any, fields: Sequence[str]) -> dict[str, Any] | None:
    """The fields of a configuration, given as a dict or as an object of mostlyai-engine."""
    if value is None:
        return None
    found = dict(value) if isinstance(value, Mapping) else {one: getattr(value, one, None) for one in fields}
    if set(found) != set(fields):
        raise OptionError(f"{name} is {value!r}; expected a dict with {' and '.join(map(repr, fields))}.")
    return found


def _refuse(name: str, value: Any) -> None:
    if value is not None:
        raise OptionError(f"{name} is not supported here; expected None.")


@contextmanager
def _reported(update: Progress | None) -> Iterator[Progress]:
    """Call `update_progress`: 0 of 1 at the start, 1 of 1 at the end."""
    report: Progress = update or (lambda **values: None)
    report(completed=0, total=1)
    yield report
    report(completed=1, total=1)
