"""Categories: the codes of columns of texts, which mean the same in all stores of a feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from stoker._types import CheckedFields
from stoker.errors import OptionError
from stoker.feed.columns import SHOWN, FedColumn
from stoker.store.store import Store


@dataclass(frozen=True, kw_only=True)
class CategoryCodes(CheckedFields):
    """What the codes of columns of categories mean.

    Args:
        texts: The texts that codes refer to, by column, such as `feed.categories` of another feed. By default those of the store, or of
            all stores.
        offset: What is added to the codes. 1 keeps code 0 for padding and missing categories, as an embedding with `padding_idx=0`
            expects, and makes the codes int64. 0 leaves codes as stored, missing ones being -1.

    Example:
        >>> CategoryCodes(offset=1).texts is None
        True
    """

    texts: Mapping[str, Sequence[str]] | None = None
    offset: Annotated[int, Meta(ge=0, le=2**31)] = 0


def shift_categories(store: Store, columns: list[FedColumn], offset: int) -> list[FedColumn]:
    """The columns, with codes of categories as int64 from `offset` on; an offset of 0 leaves them as stored."""
    if not offset:
        return columns
    shifted: dict[str, Any] = {"dtype": np.dtype(np.int64), "torch_name": "int64", "shift": int(offset)}
    return [replace(column, **shifted) if store.schema[column.name].kind == "category" else column for column in columns]


def share_categories(
    stores: Sequence[Store], columns: Sequence[list[FedColumn]], given: Mapping[str, Sequence[str]] | None
) -> tuple[list[list[FedColumn]], dict[str, list[str]]]:
    """The columns of each store with codes that mean the same in all, and the texts that codes refer to.

    Codes of a store number its texts as they first appear in its rows. They are kept where they mean what they should, and
    are mapped to others, in memory, where they do not.
    """
    names = [column.name for column in columns[0] if stores[0].schema[column.name].kind == "category"]
    shared: dict[str, list[str]] = {}
    for name in names:
        known: dict[str, int] = {text: i for i, text in enumerate((given or {}).get(name, ()))}
        for store in stores:
            new = [text for text in _texts(store, name) if text not in known]
            if given is not None and name in given and new:
                shown = ", ".join(map(repr, new[:SHOWN])) + (", …" if len(new) > SHOWN else "")
                raise OptionError(
                    f"column {name!r} of {store.name} holds {shown}; expected one of the {len(known):,} texts of categories=.",
                    parameter="categories",
                )
            known.update({text: len(known) + i for i, text in enumerate(new)})
        shared[name] = list(known)
    made = []
    for store, own in zip(stores, columns, strict=True):
        made.append([_recoded(store, column, shared.get(column.name)) for column in own])
    return made, shared


def _recoded(store: Store, column: FedColumn, shared: list[str] | None) -> FedColumn:
    texts = _texts(store, column.name)
    if shared is None or shared[: len(texts)] == texts:
        return column
    places = {text: i for i, text in enumerate(shared)}
    table = np.array([*(places[text] for text in texts), -1], dtype=column.values.dtype)  # the last one is for missing values, -1
    return replace(column, values=table[store.column(column.name)])


def _texts(store: Store, name: str) -> list[str]:
    column = store.schema.get(name)
    return [] if column is None or column.texts is None or column.kind != "category" else list(column.texts)
