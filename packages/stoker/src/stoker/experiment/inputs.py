"""`inputs.json`: what a run keeps about its training store, so that predictions do not need the store.

It holds the task, the columns with their categories, and the options that new files are packed with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stoker.errors import CheckpointInvalidError
from stoker.experiment.models import Task
from stoker.store.pack.options import Time
from stoker.store.store import Store

INPUTS_NAME = "inputs.json"
MAX_BYTES = 64 << 20
MOST = 2**31
"""No width or length of a task is larger."""


PACK_OPTIONS = frozenset({"sql", "time", "freq", "wide", "series"})
"""What a run keeps of how its store was packed."""


class InputColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column that the model reads or predicts."""

    name: str
    level: str
    kind: str
    dtype: str | None
    width: int | None
    texts: list[str] | None
    """The categories, in the order of their codes."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `inputs.json`."""

    version: int = 1
    task: Task
    pack: dict[str, Any]
    """The options that new files are packed with."""
    freq: str | None
    columns: list[InputColumn]

    @classmethod
    def of(cls, store: Store, task: Task, categories: Mapping[str, list[str]] | None = None) -> Inputs:
        """What predictions need to know about the store that a task is trained on; `categories` are those of its feed."""
        names, known = dict.fromkeys([*task.inputs, *task.targets]), categories or {}
        columns = [
            InputColumn(
                name=name,
                level=column.level,
                kind=column.kind,
                dtype=None if column.dtype is None else column.dtype.name,
                width=column.width,
                texts=known.get(name, list(column.texts)) if column.texts is not None and column.kind == "category" else None,
            )
            for name in names
            for column in [store.schema[name]]
        ]
        return cls(task=task, pack=_pack_options(store), freq=frequency_of(store), columns=columns)

    def column(self, name: str) -> InputColumn:
        """A column by its name."""
        return next(column for column in self.columns if column.name == name)

    def check(self) -> None:
        """Raise a `ValueError` where the parts contradict each other, as those of a forged file may."""
        task, names = self.task, [column.name for column in self.columns]
        sizes = {"task.length": task.length, "task.outputs_each": task.outputs_each}
        sizes |= {f"task.inputs.{name}": width for name, width in task.inputs.items()}
        sizes |= {f"task.targets.{name}": width for name, width in task.targets.items()}
        sizes |= {f"columns.{column.name}.width": column.width for column in self.columns if column.width is not None}
        for name, size in sizes.items():
            if not 1 <= size < MOST:
                raise ValueError(f"{name} is {size}; expected an integer from 1 below 2**31")
        if not 0 <= task.horizon < MOST:
            raise ValueError(f"task.horizon is {task.horizon}; expected an integer from 0 below 2**31")
        if len(set(names)) < len(names):
            raise ValueError("columns has a name twice")
        for name in (*task.inputs, *task.targets):
            if name not in names:
                raise ValueError(f"the task has the column {name!r}, but columns has {', '.join(names) or 'none'}")
        odd = sorted(self.pack.keys() - PACK_OPTIONS)
        if odd:
            raise ValueError(f"pack has the option {odd[0]!r}; expected {', '.join(sorted(PACK_OPTIONS))}")

    def to_json(self) -> bytes:
        """As it is written."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def read_inputs(path: Path) -> Inputs:
    """Read what the run kept about its training store."""
    if path.exists() and not path.is_file():  # a pipe never ends
        raise CheckpointInvalidError(f"{path} is not a plain file. Put it back, or train the run again.", path=path)
    try:
        with path.open("rb") as file:
            inputs = msgspec.json.decode(file.read(MAX_BYTES), type=Inputs)
        inputs.check()
        return inputs
    except FileNotFoundError:
        raise CheckpointInvalidError(f"{path} is missing. Put it back, or train the run again.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CheckpointInvalidError(f"{path} is damaged: {error}. Put it back, or train the run again.") from None


def frequency_of(store: Store) -> str | None:
    """The frequency that a store was packed with, if its manifest has one."""
    found = getattr(store.manifest, "freq", None)
    return found if isinstance(found, str) else None


def _pack_options(store: Store) -> dict[str, Any]:
    """The options that new files need to become series like those of a store, as far as the store shows them."""
    manifest, key = store.manifest, store.key
    found: dict[str, Any] = {}
    if manifest is None:
        return found
    if manifest.sql is not None:
        found["sql"] = manifest.sql
    if manifest.time is not None:
        found["time"] = manifest.time
    if (freq := frequency_of(store)) is not None:
        found["freq"] = freq
    if key is None or not len(store):
        return found
    first = str(store[0][key])
    sources = {source.name for source in manifest.sources}
    values = [name for name, column in store.schema.items() if column.level == "step" and name != manifest.time]
    if first in sources:
        return found  # each file is a series, and the key its name
    if values == ["value"] and store.schema[key].kind == "text" and key.rstrip("_") == "series":
        return {**found, "wide": True}
    return {**found, "series": key}


def options_for(inputs: Inputs) -> dict[str, Any]:
    """The options that new files are packed with: only columns that are needed, floats in the types of training."""
    usual = dict(inputs.pack)
    if "time" in usual:
        usual["time"] = Time(usual["time"], freq=usual.pop("freq", None))
    if usual.get("wide"):
        return usual
    needed = [column for column in inputs.columns if column.name in inputs.task.inputs]
    dtypes = {one.name: one.dtype for one in needed if one.kind == "number" and one.dtype and one.dtype.startswith("float")}
    dtypes |= {one.name: "category" for one in needed if one.kind == "category"}
    columns = [one.name for one in needed]
    return {**usual, "columns": columns, "dtype": {name: kind for name, kind in dtypes.items() if kind}}
