"""ModelLayout: the sub-columns of a model, its widths by size, and where everything lies in the fused matrices.

A model predicts sub-columns one after the other. The head of a sub-column sees the context, the history of events, the columns before
its own in the current order, and the sub-columns before it in its own column. Sizes "s", "m" and "l" are those of TabularARGN.

The first layers of all heads are one matrix: a row block per head, a column block per input. Heads and embeddings of similar widths
share a group and are padded to the widest of it; padding is zero and stays so, since neither side has a gradient there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.errors import OptionError
from stoker_recipes.tabular.encodings import Moment

Size = Literal["s", "m", "l"]
SIZES = ("s", "m", "l")
POSITION = "tgt:/"
MOST_CLASSES = 100
"""Lengths below this are one class each; longer ones are numbered by their decimal digits."""
COMPRESS_FROM = 50
"""With more sub-columns than this, columns of more than two are compressed for the heads of other columns."""
DROPOUT = 0.25
WIDTHS = (2, 4, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)
CLASSES = (4, 16, 64, 256)


def _log(value: float) -> int:
    return round(math.log(max(value, math.e)))


def embedding_width(num_classes: int, size: Size) -> int:
    """The width of the embedding of a sub-column."""
    factor, power = {"s": (2, 0.15), "m": (3, 0.25), "l": (4, 0.33)}[size]
    return min(num_classes, max(10, int(factor * math.ceil(num_classes**power))))


def hidden_widths(num_inputs: int, num_classes: int, size: Size) -> tuple[int, ...]:
    """The widths of the layers of a head."""
    last = {"s": 4, "m": 16, "l": 16}[size] * _log(num_classes)
    return (16 * _log(num_inputs), last) if size == "l" else (last,)


def position_sizes(max_length: int) -> dict[str, int]:
    """The sub-columns of positions: index, length, and steps that are left, each as a class or by digits."""
    if max_length < MOST_CLASSES:
        return {f"{name}_cat": max_length + 1 for name in ("sidx", "slen", "ridx")}
    digits = str(max_length)
    sizes = {f"E{len(digits) - 1 - place}": int(digit) + 1 if place == 0 else 10 for place, digit in enumerate(digits)}
    return {f"{name}_{place}": size for name in ("sidx", "slen", "ridx") for place, size in sizes.items()}


@dataclass(frozen=True, kw_only=True)
class SubColumn:
    """One class variable."""

    name: str
    """As TabularARGN has it, such as "tgt:t0/c0__cat"."""
    column: int
    num_classes: int
    width: int
    hidden: tuple[int, ...] = ()
    """Widths of its head; empty where nothing predicts it."""
    moment: Moment = ""
    """Whether only the first event of a subject has it, or only later ones."""
    inputs: int = 0
    """Values that its head takes in TabularARGN."""

    @property
    def position(self) -> str:
        """Which position it is part of: "sidx", "slen", "ridx", or "" for data."""
        return self.name.removeprefix(f"{POSITION}__")[:4] if self.name.startswith(POSITION) else ""


@dataclass(frozen=True, kw_only=True)
class SubColumnGroup:
    """Sub-columns that one kernel handles."""

    members: tuple[int, ...]
    width: int
    classes: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """The whole model in numbers."""

    size: Size
    subs: tuple[SubColumn, ...]
    context: tuple[SubColumn, ...]
    num_columns: int
    """Columns, that of positions included."""
    max_length: int | None
    """None for a table of single rows."""
    history: tuple[int, ...]
    """Widths of the layers of the LSTM."""
    context_width: int
    compressed: Mapping[int, int]
    """The width of each compressed column."""
    feeds_context: bool = False
    """Whether the LSTM sees the context at each step. In TabularARGN only heads see it."""

    @property
    def is_sequence(self) -> bool:
        """Whether a subject has events, not one row."""
        return self.max_length is not None

    @property
    def history_width(self) -> int:
        """Values that the history gives to each head."""
        return self.history[-1] if self.history else 0

    @property
    def num_positions(self) -> int:
        """Sub-columns of positions; they come first."""
        return sum(1 for sub in self.subs if sub.position)

    def of_column(self, column: int) -> list[int]:
        """The sub-columns of a column."""
        return [number for number, sub in enumerate(self.subs) if sub.column == column]

    def embedding_groups(self) -> tuple[list[SubColumnGroup], int]:
        """Sub-columns by width, and how many of these groups the history sees: lengths and steps left come after them."""
        hidden = [sub.position in ("slen", "ridx") for sub in self.subs]
        groups: list[SubColumnGroup] = []
        for is_hidden in (False, True):
            by_width: dict[int, list[int]] = {}
            for number, sub in enumerate(self.subs):
                if hidden[number] == is_hidden:
                    by_width.setdefault(_class_of(sub.width, WIDTHS), []).append(number)
            groups += [
                SubColumnGroup(members=tuple(members), width=max(self.subs[i].width for i in members))
                for _, members in sorted(by_width.items())
            ]
        return groups, sum(1 for group in groups if not hidden[group.members[0]])

    def head_groups(self) -> list[SubColumnGroup]:
        """Heads by their number of classes."""
        by_classes: dict[int, list[int]] = {}
        for number, sub in enumerate(self.subs):
            if sub.hidden:
                by_classes.setdefault(_class_of(sub.num_classes, CLASSES), []).append(number)
        return [
            SubColumnGroup(
                members=tuple(members),
                width=max(self.subs[i].hidden[-1] for i in members),
                classes=max(self.subs[i].num_classes for i in members),
            )
            for _, members in sorted(by_classes.items())
        ]

    def sees(self, head: int, other: int) -> bool:
        """Whether a head sees the embedding of another sub-column of its own column."""
        sub, seen = self.subs[head], self.subs[other]
        return sub.column == seen.column and other < head and not (sub.position == "ridx" and seen.position == "slen")


def _class_of(value: int, limits: Sequence[int]) -> int:
    return next((limit for limit in limits if value <= limit), value)


def make_layout(
    columns: Sequence[Mapping[str, int]],
    *,
    moments: Sequence[Mapping[str, Moment]] = (),
    context: Sequence[Mapping[str, int]] = (),
    max_length: int | None = None,
    median_length: float = 1,
    size: Size = "m",
    predicts_left: bool = True,
    feeds_context: bool = False,
) -> ModelLayout:
    """Lay out a model.

    Args:
        columns: The sub-columns of each column, with their numbers of classes.
        moments: Sub-columns of each column that only the first event of a subject has, or only later ones.
        context: The same of the context.
        max_length: The longest sequence; None for a table of single rows.
        median_length: The median length of sequences.
        size: "s", "m" or "l".
        predicts_left: Whether there is a head for the steps that are left, as TabularARGN has it. It can only recognize subjects by their
            history, so it learns those of training by heart.
        feeds_context: Whether the LSTM sees the context, where there is one. In TabularARGN only heads do, which have few hidden values to
            combine it with the history: what follows an event by context is hardly learned.

    Raises:
        OptionError: The size is unknown, or there is no column.

    Example:
        >>> layout = make_layout([{"cat": 5}, {"bin": 32, "fine": 33}], max_length=20, size="s")
        >>> [sub.name for sub in layout.subs][2:5], layout.num_columns
        (['tgt:/__ridx_cat', 'tgt:t0/c0__cat', 'tgt:t1/c1__bin'], 3)
    """
    if size not in SIZES:
        raise OptionError(f"size is {size!r}; expected one of {', '.join(SIZES)}.")
    if not any(columns):
        raise OptionError("there is no column to learn beside the key. Give a table with at least one more column.")
    named: list[tuple[str, int, int]] = []
    only: dict[str, Moment] = {}
    first = 0
    if max_length is not None:
        named += [(f"{POSITION}__{name}", 0, count) for name, count in position_sizes(max_length).items()]
        first = 1
    for number, sizes in enumerate(columns):
        named += [(f"tgt:t{number}/c{number}__{name}", first + number, count) for name, count in sizes.items()]
    for number, moments_of in enumerate(moments):
        only |= {f"tgt:t{number}/c{number}__{name}": moment for name, moment in moments_of.items()}
    widths = [embedding_width(count, size) for _, _, count in named]
    compressed: dict[int, int] = {}
    by_column: dict[int, list[int]] = {}
    for (_, column, _), width in zip(named, widths, strict=True):
        by_column.setdefault(column, []).append(width)
    if len(named) > COMPRESS_FROM:
        extra = {"s": 4, "m": 10, "l": 16}[size]
        compressed = {column: extra + len(w) for column, w in by_column.items() if len(w) > 2 and extra + len(w) < sum(w)}
    of_columns = sum(compressed.get(column, sum(column_widths)) for column, column_widths in by_column.items())
    flat = [
        SubColumn(name=f"ctxflt:t{number}/c{number}__{name}", column=number, num_classes=count, width=embedding_width(count, size))
        for number, sizes in enumerate(context)
        for name, count in sizes.items()
    ]
    context_width = {"s": 2, "m": 8, "l": 32}[size] * _log(sum(sub.width for sub in flat)) if flat else 0
    history: tuple[int, ...] = ()
    if max_length is not None:
        unit = {"s": (16,), "m": (64,), "l": (128, 128)}[size]
        history = tuple(width * _log(sum(widths) * median_length) for width in unit)
    subs: list[SubColumn] = []
    for (name, column, count), width in zip(named, widths, strict=True):
        before = sum(sub.width for sub in subs if sub.column == column)
        inputs = context_width + (history[-1] if history else 0) + of_columns + before
        unpredicted = ("sidx",) if predicts_left else ("sidx", "ridx")  # the index of an event is always given
        is_predicted = not name.startswith(tuple(f"{POSITION}__{position}" for position in unpredicted))
        hidden = hidden_widths(inputs, count, size) if is_predicted else ()
        subs.append(
            SubColumn(
                name=name, column=column, num_classes=count, width=width, hidden=hidden, inputs=inputs, moment=only.get(name, "")
            )
        )
    return ModelLayout(
        size=size,
        subs=tuple(subs),
        context=tuple(flat),
        num_columns=first + len(columns),
        max_length=max_length,
        history=history,
        context_width=context_width,
        compressed=compressed,
        feeds_context=feeds_context and bool(history) and bool(flat),
    )
