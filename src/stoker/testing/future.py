"""No future: the law that what is computed for a step does not change when later steps do.

Features, scalers and models that look ahead score well until they are used. Whether they do is seen by changing what comes after
a step and comparing, bit for bit, what was computed up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError
from stoker.testing.content import Content, content_of
from stoker.testing.lockstep import fail

Array = npt.NDArray[Any]

_NUM_CUTS = 5


def assert_no_future(
    function: Callable[[Any], Any],
    bars: Any,
    *,
    at: Iterable[int] | None = None,
    horizon: int = 0,
    first: int = 0,
    keep: Iterable[str] = (),
    seed: int = 0,
) -> None:
    """Assert that `function(bars)` gives the same bits up to step t, whatever the bars after t are.

    `bars` is an array with one row a step, or a mapping of such arrays; those named in `keep` (times) stay as they are. `function`
    returns arrays or tensors (or dicts, tuples and lists of them) with one row for each step from `first` on: features,
    predictions, or labels, which may look `horizon` steps ahead. `at` are the steps t, by default some over the whole length.
    The later bars are scaled, then mixed, then made not a number. A function that nothing changes is refused too: it would pass
    any test.
    """
    columns = {"bars": np.asarray(bars)} if not isinstance(bars, Mapping) else {name: np.asarray(one) for name, one in bars.items()}
    lengths = {len(one) if one.ndim else 0 for one in columns.values()}
    if len(lengths) != 1 or max(lengths) < 2:
        raise OptionError(f"bars have {sorted(lengths)} steps; expected arrays of one length from 2, with one row a step.")
    (size,) = lengths
    kept = set(keep)
    if not kept < set(columns):
        raise OptionError(
            f"keep is {sorted(kept)}, but the bars are {sorted(columns)}; expected some of them, and others to change."
        )
    cuts = np.unique(np.linspace(horizon, size - 2, _NUM_CUTS).astype(int)).tolist() if at is None else sorted(set(at))
    if not cuts or not all(0 <= cut < size - 1 for cut in cuts):
        raise OptionError(f"at has {cuts}; expected steps from 0 to {size - 2:,}, so that some come after each.")

    def run(given: Mapping[str, Array]) -> Content:
        copies = {name: one.copy() for name, one in given.items()}  # a function may write into what it is given
        return content_of(function(copies if isinstance(bars, Mapping) else copies["bars"]))

    whole = run(columns)
    for name, entry in whole.items():
        if not entry.shape or entry.shape[0] != size - first:
            raise OptionError(
                f"{name} has the shape {list(entry.shape)}; expected {size - first:,} rows, one for each step from {first:,} on."
            )
    if run(columns) != whole:
        fail("the function gives different values for the same bars, so nothing can be compared. Seed it")
    rng = np.random.default_rng(seed)
    reacted = False
    for cut in cuts:
        for how, change in _CHANGES.items():
            changed = {name: one if name in kept else _after(one, cut, change, rng) for name, one in columns.items()}
            found = run(changed)
            reacted |= found != whole
            _compare(found, whole, first, cut, cut - horizon, how)
    if not reacted:
        fail("the function gives the same values whatever the bars are: it looks at nothing that was changed")


def _compare(found: Content, whole: Content, first: int, cut: int, last: int, how: str) -> None:
    for name, entry in whole.items():
        rows = found[name].rows if name in found else []
        for row in range(max(0, last - first + 1)):
            if row >= len(rows) or rows[row] != entry.rows[row]:
                fail(
                    f"{name} looks into the future: its row of step {row + first:,} changes when only the bars after step {cut:,} "
                    f"are {how}. What is known at a step may depend on bars up to it"
                )


def _after(values: Array, cut: int, change: Callable[[Array, np.random.Generator], Array], rng: np.random.Generator) -> Array:
    changed = values.copy()
    changed[cut + 1 :] = change(values[cut + 1 :], rng)
    return changed


def _scale(later: Array, rng: np.random.Generator) -> Array:
    if later.dtype.kind == "b":
        return ~later
    factors = np.exp(rng.normal(size=later.shape))
    scaled: Array = (later * factors + (0 if later.dtype.kind == "f" else 1)).astype(later.dtype)
    return scaled


def _mix(later: Array, rng: np.random.Generator) -> Array:
    return rng.permutation(later)


def _lose(later: Array, rng: np.random.Generator) -> Array:
    return np.full_like(later, np.nan) if later.dtype.kind == "f" else np.zeros_like(later)


_CHANGES: dict[str, Callable[[Array, np.random.Generator], Array]] = {"scaled": _scale, "mixed": _mix, "made not a number": _lose}
