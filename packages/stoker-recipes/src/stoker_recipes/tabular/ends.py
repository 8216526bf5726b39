"""First and last events: classes that are only first or only last in sequences, and classes that never are.

A stay begins with its admission and ends with a discharge or a death, in all of the training data: then all generated ones do, too. A
rule about a class must hold in every sequence, and not by chance: if the events of each sequence were in random order, it would hold with
a chance below one in e**20 (and below one in e**20 of the rules that are tried). Rare classes are compared together.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from stoker.extend import Array, kernel
from stoker_recipes.tabular.encodings import Categorical, Encoding, Numeric

LEAST_SURPRISE = 20.0


class Ends(Struct, frozen=True, kw_only=True):
    """Classes of the first sub-column of a column that some events never have."""

    first: list[int] = []
    later: list[int] = []
    """Not the first event: classes that are first only."""
    last: list[int] = []
    earlier: list[int] = []
    """Not the last event: classes that are last only."""


@kernel
def _count_ends(codes: Array, starts: Array, counts: Array, occurs: Array, surprises: Array) -> None:
    """Count where classes occur (first, later, last, earlier), and how unlikely it is that they are never, or only, at an end."""
    for subject in range(len(starts)):
        begin, end = starts[subject], starts[subject + 1] if subject + 1 < len(starts) else len(codes)
        length = end - begin
        for row in range(begin, end):
            code = codes[row]
            counts[code] += 1
            occurs[0 if row == begin else 1, code] += 1
            occurs[2 if row == end - 1 else 3, code] += 1
        for row in range(begin, end):
            count = counts[codes[row]]
            if count:
                counts[codes[row]] = 0
                if count < length:
                    surprises[0, codes[row]] -= np.log(1.0 - count / length)
                    surprises[1, codes[row]] += np.log(float(length))


def find_ends(encoding: Encoding, codes: Array, starts: Array, *, num_columns: int) -> Ends | None:
    """Find the rules of a column; None where it has none.

    Args:
        encoding: Of the column. Only categories, and numbers with a class of their own, are compared.
        codes: Of its first sub-column.
        starts: The first row of each subject.
        num_columns: How many columns are compared.
    """
    size = next(iter(encoding.sizes.values()), 0)
    if isinstance(encoding, Categorical):
        is_value = np.ones(size, bool)
    elif isinstance(encoding, Numeric):
        bins = np.array(encoding.bins or range(len(encoding.lows))) + encoding.has_null
        single = bins[np.array(encoding.lows) == np.array(encoding.highs)]
        is_value = (np.bincount(bins, minlength=size) == 1) & (np.bincount(single, minlength=size) == 1)
        is_value[: int(encoding.has_null)] = True
    else:
        return None
    occurs, surprises = np.zeros((4, size), np.int64), np.zeros((2, size))
    _count_ends(np.ascontiguousarray(codes), starts, np.zeros(size, np.int64), occurs, surprises)
    least = LEAST_SURPRISE + math.log(4 * size * num_columns)
    rules = []
    for count, surprise in zip(occurs, surprises[[0, 1, 0, 1]], strict=True):
        is_absent = is_value & (count == 0)
        # Classes together may be too unlikely where each of them is rare; there are 2**size sets of them.
        together = is_value.all() and surprise[is_absent].sum() > least + size * math.log(2)
        rules.append(np.flatnonzero(is_absent & (together | (surprise > least))))
    # Of classes that occur nowhere else, those that occur at all.
    rules[1], rules[3] = (np.intersect1d(rules[rule], np.flatnonzero(occurs[rule - 1])) for rule in (1, 3))
    classes_of = [classes.tolist() for classes in rules]
    return Ends(first=classes_of[0], later=classes_of[1], last=classes_of[2], earlier=classes_of[3]) if any(classes_of) else None
