"""Assertions for tests of your own data path.

    assert_exactly_once       every epoch has every sample once, on any number of ranks
    assert_resumes_exactly    a stopped and resumed feed gives the batches that were left
    assert_no_future          features do not depend on later steps

They take feeds of stoker and any other loader. Batches may be dicts, tuples, lists and dataclasses of tensors, arrays and plain
values. Batches are copied, so a loader that writes over its buffers is caught.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np

from stoker._batch import entries_of, is_tensor
from stoker._types import Array
from stoker.errors import OptionError
from stoker.feed.prefetch import Distributed

__all__ = ["assert_exactly_once", "assert_no_future", "assert_resumes_exactly"]

TellSamples = Callable[[Any], Sequence[Hashable]]
"""Which samples a batch has: one value for each, the same whenever and wherever the sample comes."""

MakeFeed = Callable[..., Any]
"""Makes a new feed each time; takes `rank` and `world_size` as keywords, or nothing if it is for one process."""

# Exactly once: every epoch has every sample once, in one order, whatever the number of ranks.


def assert_exactly_once(
    make_feed: MakeFeed,
    *,
    worlds: Sequence[int] = (1, 2, 3),
    epochs: int = 2,
    num_samples: int | None = None,
    samples: TellSamples | None = None,
    one_order: bool = True,
) -> None:
    """Assert that every epoch has every sample exactly once, and that the ranks of any world together have one order.

    Args:
        make_feed: Makes a new feed, of stoker or any other loader, each time. It is called with `rank` and `world_size` if it
            takes them (of `stoker.Feed` with `distributed`), so `functools.partial(stoker.Feed, store, view, batch_size=8)` works.
        worlds: Numbers of ranks to test.
        epochs: Epochs to read.
        num_samples: Samples per epoch; by default what the feed (or its `dataset`) says.
        samples: A function from a batch to one value per sample; by default the indices that stoker gives
            (`Returns(index=True)`), otherwise the content of each row.
        one_order: False lets the order depend on the number of ranks.

    Raises:
        AssertionError: A sample came twice or never, or in another order.

    Example:
        >>> import numpy as np, stoker
        >>> from functools import partial
        >>> store = stoker.Store.from_arrays(x=[np.arange(10.0)])
        >>> make = partial(stoker.Feed, store, stoker.Segments(1), batch_size=2, order=stoker.Shuffle())
        >>> stoker.testing.assert_exactly_once(make, worlds=(1, 2))
    """
    first: dict[int, list[Seen]] = {}
    for world in worlds:
        feeds = make_ranks(make_feed, world)
        expected = num_samples if num_samples is not None else getattr(feeds[0], "num_samples", None)
        if expected is None and hasattr(getattr(feeds[0], "dataset", None), "__len__"):
            expected = len(feeds[0].dataset)
        for epoch in range(epochs):
            seen = [sample for step in walk(feeds, epoch) for sample in step.seen(samples)]
            place = f"epoch {epoch} on {readable_ranks(world)}"
            _check_once(seen, expected, place)
            reference = first.setdefault(epoch, seen)
            _check_same_samples(seen, first[0], place, f"epoch 0 on {readable_ranks(worlds[0])}")
            for position, (sample, other) in enumerate(zip(seen, reference, strict=True) if one_order else ()):
                if sample.sample != other.sample:
                    fail(
                        f"the order depends on the number of ranks: at position {position:,} of {place} comes {sample}, "
                        f"but on {readable_ranks(worlds[0])} it is {other} (one_order=False allows it)"
                    )
        close(feeds)


def _check_once(seen: list[Seen], expected: int | None, place: str) -> None:
    places: dict[Hashable, str] = {}
    for came in seen:
        if came.sample in places:
            fail(
                f"in {place}, {came} came twice: as {places[came.sample]} and as {came.place}. "
                f"(If the data hold equal samples, number them: returns=Returns(index=True) for a feed of stoker, samples= for others)"
            )
        places[came.sample] = came.place
    if expected is not None and len(seen) != expected:
        numbered = all(isinstance(sample, int) for sample in places)
        absent = [number for number in range(expected) if number not in places] if numbered else []
        example = f"; sample {absent[0]:,} did not come" if absent else ""
        fail(f"{place} has {len(seen):,} samples; expected {expected:,}{example}")


def _check_same_samples(seen: list[Seen], reference: list[Seen], place: str, where: str) -> None:
    for some, others, here, there in ((reference, seen, where, place), (seen, reference, place, where)):
        known = {other.sample for other in others}
        for sample in some:
            if sample.sample not in known:
                fail(f"{sample} came in {here}, but not in {there}")


# Exact resume: a run that is stopped anywhere and resumed gets the batches of one that was not stopped.

_PATIENCE = 2  # passes without a batch, one after the other, after which there is nothing to wait for


def assert_resumes_exactly(
    make_feed: MakeFeed,
    *,
    cuts: Iterable[int] | None = None,
    worlds: Sequence[int] = (1,),
    epochs: int = 2,
    samples: TellSamples | None = None,
) -> None:
    """Assert that a feed that is stopped after any number of batches and resumed by a new one gives the batches that were left.

    Batches are compared bit for bit. With several `worlds`, each is also resumed by every other: the samples must then follow
    one another as if nothing had happened. Last, a feed that is stopped and resumed before every batch, twice each time, must
    give the same batches too.

    Args:
        make_feed: Makes a new feed (of stoker, or any loader with `state_dict` and `load_state_dict`) each time, as a new
            process would. It is called with `rank` and `world_size` if it takes them.
        cuts: Numbers of batches after which to stop, counted over all epochs; by default every one.
        worlds: Numbers of ranks to test.
        epochs: Epochs to read.
        samples: As in `assert_exactly_once`.

    Raises:
        AssertionError: A resumed feed gives another batch.
        OptionError: The feed has no state, no batches, or a cut is outside the run.

    Example:
        >>> import numpy as np, stoker
        >>> from functools import partial
        >>> store = stoker.Store.from_arrays(x=[np.arange(6.0)])
        >>> make = partial(stoker.Feed, store, stoker.Segments(1), batch_size=2, order=stoker.Shuffle())
        >>> stoker.testing.assert_resumes_exactly(make)
    """
    for world in worlds:
        whole = _record(make_feed, world, epochs, samples, tells=len(set(worlds)) > 1)
        chosen = range(len(whole.steps)) if cuts is None else sorted(set(cuts))
        for cut in chosen:
            if not 0 <= cut <= len(whole.steps):
                raise OptionError(f"cuts has {cut}, but {epochs} epochs have {len(whole.steps)} batches.", parameter="cuts")
            for state in whole.states[cut]:
                for other in worlds:
                    feeds = _resume(make_feed, other, state, same=other == world)
                    if other == world:
                        _compare_batches(feeds, whole, cut, f"resumed {state.when}")
                    else:
                        _compare_samples(feeds, whole, cut, f"resumed {state.when} on {readable_ranks(other)}", samples)
                    close(feeds)
        _compare_chain(make_feed, whole)


class _State(NamedTuple):
    """The states of all ranks, and when they were saved."""

    ranks: list[Any]
    when: str


class _Past(NamedTuple):
    """A step of the whole run: the content on each rank, and the samples of all ranks."""

    name: str
    contents: list[Content]
    seen: list[Seen]


@dataclass
class _Whole:
    """A run that was never stopped."""

    world: int
    steps: list[_Past] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The number of steps at the end of each epoch."""
    states: list[list[_State]] = field(default_factory=list)
    """For each number of steps, the states saved then."""

    def epochs_from(self, cut: int) -> Iterator[tuple[int, int]]:
        """The first step and the end of the rest of the epoch that a cut is in, and of each epoch after it."""
        ends = sorted({end for end in self.ends if end > cut})
        return zip([cut, *ends], ends, strict=False)


def _record(make_feed: MakeFeed, world: int, epochs: int, samples: TellSamples | None, *, tells: bool) -> _Whole:
    """A run over all epochs, with the states that could have been saved on the way."""
    feeds = make_ranks(make_feed, world)
    for name in ("state_dict", "load_state_dict"):
        if not callable(getattr(feeds[0], name, None)):
            raise OptionError(f"{type(feeds[0]).__name__} has no {name}(), so it cannot be resumed.", parameter="feed")
    whole = _Whole(world)
    whole.states.append([_save(feeds, "before the first batch")])
    for epoch in range(epochs):
        for step in walk(feeds, epoch):
            name = f"batch {step.number} of epoch {epoch}"
            seen = list(step.seen(samples)) if tells else []
            whole.steps.append(_Past(name, [content_of(batch) for batch in step.batches], seen))
            whole.states.append([_save(feeds, f"after {name}")])
        whole.states[-1].append(_save(feeds, f"at the end of epoch {epoch}"))
        whole.ends.append(len(whole.steps))
    close(feeds)
    if not whole.steps:
        raise OptionError("the feed has no batches, so there is nothing to resume.", parameter="feed")
    return whole


def _save(feeds: list[Any], when: str) -> _State:
    return _State([copy.deepcopy(feed.state_dict()) for feed in feeds], when)


def _resume(make_feed: MakeFeed, world: int, state: _State, *, same: bool) -> list[Any]:
    """New feeds that continue from a state; on another number of ranks all take that of the first."""
    feeds = make_ranks(make_feed, world)
    for rank, feed in enumerate(feeds):
        feed.load_state_dict(copy.deepcopy(state.ranks[rank if same else 0]))
    return feeds


def _next_pass(feeds: list[Any]) -> Iterator[Step]:
    """The next pass with a batch. One may be empty: a feed may take the end of an epoch for a pass of its own."""
    for _ in range(_PATIENCE):
        steps = walk(feeds, 0)
        for first in steps:
            return itertools.chain([first], steps)
    return iter(())


def _compare_batches(feeds: list[Any], whole: _Whole, cut: int, how: str) -> None:
    """Compare the remaining batches with the expected ones, batch by batch and epoch by epoch."""
    for done, end in whole.epochs_from(cut):
        left, found = end - done, 0
        for step in _next_pass(feeds):
            if found == left:
                fail(f"{how}, the epoch continues after the {left} batches that were left of it")
            _compare_step(step.batches, whole, done + found, how)
            found += 1
        if found < left:
            fail(f"{how}, the epoch ends after {found} batches; expected {left} to be left of it")


def _compare_step(batches: list[Any], whole: _Whole, number: int, how: str) -> None:
    past = whole.steps[number]
    for rank, (batch, expected) in enumerate(zip(batches, past.contents, strict=True)):
        content = content_of(batch)
        differing = difference(content, expected)
        if differing:
            where = f" on rank {rank} of {whole.world}" if whole.world > 1 else ""
            # Which batch of the whole run it is instead: the quickest way to see what went wrong.
            equal = next((f": it is {other.name}" for other in whole.steps if content == other.contents[rank]), "")
            fail(f"{how}, {past.name}{where} {differing}{equal}")


def _compare_samples(feeds: list[Any], whole: _Whole, cut: int, how: str, tell: TellSamples | None) -> None:
    """Compare the samples that are left, epoch by epoch, where batches cannot be equal."""
    for done, end in whole.epochs_from(cut):
        expected = [sample for past in whole.steps[done:end] for sample in past.seen]
        came = [sample for step in _next_pass(feeds) for sample in step.seen(tell)]
        for sample, other in zip(came, expected, strict=False):
            if sample.sample != other.sample:
                fail(f"{how}, {sample} comes as {sample.place} of the new run; expected {other}, which was {other.place}")
        if len(came) != len(expected):
            fail(f"{how}, the epoch ends after {len(came)} samples; expected {len(expected)} to be left of it")


def _compare_chain(make_feed: MakeFeed, whole: _Whole) -> None:
    """Stop and resume before every batch, and save once more right after the resume: errors of a resume must not add up."""
    state = whole.states[0][0]
    for number in range(len(whole.steps)):
        feeds = _resume(make_feed, whole.world, state, same=True)
        again = _save(feeds, "at once after it was resumed")
        close(feeds)
        feeds = _resume(make_feed, whole.world, again, same=True)
        steps = _next_pass(feeds)
        step = next(steps, None)
        how = f"resumed {number + 1} times, before every batch and twice each time"
        if step is None:
            fail(f"{how}, the feed ends after {number} batches; expected {len(whole.steps)}")
        _compare_step(step.batches, whole, number, how)
        state = _save(feeds, "of a resumed run")
        del steps  # kept up to here: a training loop holds the pass while saving
        close(feeds)


# No future: what is computed for a step does not change when later steps do.
#
# Features, scalers and models that look ahead score well until they are used. To find them, change what comes after a step and
# compare, bit for bit, what was computed up to it.

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

    The later bars are scaled, then permuted, then set to NaN. A function that no change affects is refused too, because it would
    pass any test.

    Args:
        function: Returns arrays or tensors (or dicts, tuples and lists of them) with one row for each step from `first` on:
            features, predictions or labels.
        bars: An array with one row per step, or a mapping of such arrays.
        at: The steps t; by default five over the whole length.
        horizon: Steps that `function` may look ahead, as labels do.
        first: The step of the first row that `function` returns.
        keep: Names of arrays that are not changed, such as times.
        seed: Of the changes.

    Raises:
        AssertionError: A row depends on later bars, or the function is not deterministic.
        OptionError: The shapes do not fit.

    Example:
        >>> import numpy as np, stoker
        >>> stoker.testing.assert_no_future(np.cumsum, np.arange(20.0))
        >>> stoker.testing.assert_no_future(lambda bars: bars - bars.mean(), np.arange(20.0))
        Traceback (most recent call last):
        AssertionError: batch looks into the future: ...
    """
    columns = {"bars": np.asarray(bars)} if not isinstance(bars, Mapping) else {name: np.asarray(bar) for name, bar in bars.items()}
    lengths = {len(column) if column.ndim else 0 for column in columns.values()}
    if len(lengths) != 1 or max(lengths) < 2:
        raise OptionError(
            f"bars have {sorted(lengths)} steps; expected arrays of one length from 2, with one row per step.", parameter="bars"
        )
    (size,) = lengths
    kept = set(keep)
    if not kept < set(columns):
        raise OptionError(
            f"keep is {sorted(kept)}, but the bars are {sorted(columns)}; expected some of them, and others to change.",
            parameter="keep",
        )
    cuts = np.unique(np.linspace(horizon, size - 2, _NUM_CUTS).astype(int)).tolist() if at is None else sorted(set(at))
    if not cuts or not all(0 <= cut < size - 1 for cut in cuts):
        raise OptionError(f"at has {cuts}; expected steps from 0 to {size - 2:,}, so that some come after each.", parameter="at")

    def run(given: Mapping[str, Array]) -> Content:
        copies = {name: column.copy() for name, column in given.items()}  # a function may write into what it is given
        return content_of(function(copies if isinstance(bars, Mapping) else copies["bars"]))

    whole = run(columns)
    for name, entry in whole.items():
        if not entry.shape or entry.shape[0] != size - first:
            raise OptionError(
                f"{name} has the shape {list(entry.shape)}; expected {size - first:,} rows, one for each step from {first:,} on.",
                parameter="feed",
            )
    if run(columns) != whole:
        fail("the function gives different values for the same bars, so nothing can be compared. Seed it")
    rng = np.random.default_rng(seed)
    reacted = False
    for cut in cuts:
        for how in ("scaled", "permuted", "set to NaN"):
            changed = {name: values if name in kept else _change_after(values, cut, how, rng) for name, values in columns.items()}
            after = run(changed)
            reacted |= after != whole
            for name, entry in whole.items():
                rows = after[name].rows if name in after else []
                for row in range(max(0, cut - horizon - first + 1)):
                    if row >= len(rows) or rows[row] != entry.rows[row]:
                        fail(
                            f"{name} looks into the future: its row of step {row + first:,} changes when only the bars after step "
                            f"{cut:,} are {how}. What is known at a step may depend on bars up to it"
                        )
    if not reacted:
        fail("the function gives the same values whatever the bars are: it uses nothing that was changed")


def _change_after(values: Array, cut: int, how: str, rng: np.random.Generator) -> Array:
    """The values with those after a step changed."""
    changed, later, kind = values.copy(), values[cut + 1 :], values.dtype.kind
    if how == "permuted":
        changed[cut + 1 :] = rng.permutation(later)
    elif how == "set to NaN":
        changed[cut + 1 :] = np.nan if kind == "f" else 0
    elif kind == "b":
        changed[cut + 1 :] = ~later
    else:
        factors = np.exp(rng.normal(size=later.shape))
        changed[cut + 1 :] = (later * factors + (0 if kind == "f" else 1)).astype(later.dtype)
    return changed


# Ranks: the feeds of all ranks of a training run, made as new processes would make them, and their batches step by step.


@dataclass(frozen=True)
class Seen:
    """A sample, and where it was seen."""

    sample: Hashable
    place: str

    def __str__(self) -> str:
        return f"sample {self.sample:,}" if isinstance(self.sample, int) else f"the sample of {self.place}"


@dataclass(frozen=True)
class Step:
    """What the ranks get at one step."""

    epoch: int
    number: int
    batches: list[Any]

    def seen(self, tell: TellSamples | None) -> Iterator[Seen]:
        """The samples of all ranks, one rank after the other."""
        for rank, batch in enumerate(self.batches):
            where = f"batch {self.number} of epoch {self.epoch}" + (f" on rank {rank}" if len(self.batches) > 1 else "")
            for row, sample in enumerate(samples_of(batch, tell)):
                yield Seen(sample, f"row {row} of {where}")


def make_ranks(make_feed: MakeFeed, world: int) -> list[Any]:
    """A new feed for each rank."""
    if world < 1:
        raise OptionError(f"worlds has {world}; expected numbers of ranks from 1.", parameter="worlds")
    try:
        parameters = dict(inspect.signature(make_feed).parameters)
    except (TypeError, ValueError):  # some callables hide what they take
        parameters = {}
    if "distributed" in parameters:  # a feed of stoker
        return [make_feed(distributed=Distributed(rank=rank, world_size=world)) for rank in range(world)]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if takes_any or {"rank", "world_size"} <= parameters.keys():
        return [make_feed(rank=rank, world_size=world) for rank in range(world)]
    if world != 1:
        raise OptionError(
            f"make_feed takes no rank and world_size, so it cannot be tested on {world} ranks. Give worlds=(1,).",
            parameter="worlds",
        )
    return [make_feed()]


def walk(feeds: list[Any], epoch: int) -> Iterator[Step]:
    """One pass of all ranks, step by step."""
    absent = object()
    for number, batches in enumerate(itertools.zip_longest(*feeds, fillvalue=absent)):
        ended = [rank for rank, batch in enumerate(batches) if batch is absent]
        if ended:
            going = next(rank for rank in range(len(feeds)) if rank not in ended)
            fail(
                f"in epoch {epoch}, rank {ended[0]} of {len(feeds)} ended after {number} batches, but rank {going} continues: "
                f"it would wait for the other for ever"
            )
        yield Step(epoch, number, list(batches))


def close(feeds: list[Any]) -> None:
    """Close the feeds that can be closed."""
    for feed in feeds:
        if callable(getattr(feed, "close", None)):
            feed.close()


def readable_ranks(world: int) -> str:
    """For a message."""
    return "1 rank" if world == 1 else f"{world} ranks"


def fail(message: str) -> NoReturn:
    """Raise AssertionError."""
    raise AssertionError(f"{message}.")


# Content: what is in a batch, bit for bit, whatever it is made of; and which samples a batch has.

SAMPLE, VALID = "sample", "valid"
"""The entries of a batch of stoker that number its samples, and that say which rows are samples at all."""


@dataclass(frozen=True)
class Entry:
    """One tensor, array or value of a batch."""

    kind: str
    shape: tuple[int, ...]
    rows: list[bytes]
    """One for each place along the first axis; a single one where there is no axis."""


Content = dict[str, Entry]


def content_of(batch: Any, name: str = "") -> Content:
    """All entries of a batch, by name."""
    plain = str | bytes | int | float | complex | None
    is_list_of_values = isinstance(batch, list | tuple) and len(batch) > 0 and all(isinstance(part, plain) for part in batch)
    entries = None if is_list_of_values else entries_of(batch)
    if entries is None:
        return {name or "batch": _entry(batch, name or "batch")}
    content: Content = {}
    for key, part in entries:
        content |= content_of(part, f"{name}.{key}" if name else str(key))
    return content


def difference(found: Content, expected: Content) -> str | None:
    """Where two contents differ first, in words; None where they are equal."""
    if found.keys() != expected.keys():
        return f"has the entries {', '.join(found) or '(none)'}; expected {', '.join(expected) or '(none)'}"
    for name, entry in expected.items():
        other = found[name]
        if (other.kind, other.shape) != (entry.kind, entry.shape):
            return f"has {name} as {other.kind}{list(other.shape)}; expected {entry.kind}{list(entry.shape)}"
        for row, (came, wanted) in enumerate(zip(other.rows, entry.rows, strict=True)):
            if came != wanted:
                return f"differs in {name}" + (f", row {row:,}" if entry.shape else "")
    return None


def samples_of(batch: Any, tell: TellSamples | None) -> list[Hashable]:
    """The samples of a batch: as `tell` says, by the numbers that stoker gives them, or by what is in each row.

    Zeros at the end of a row do not count: they may be padding, which differs from batch to batch.
    """
    if tell is not None:
        return list(tell(batch))
    content = content_of(batch)
    num_rows = _num_rows(content)
    valid = content.pop(VALID, None)
    kept = [row for row in range(num_rows) if valid is None or valid.rows[row] != b"\0"]
    if SAMPLE in content:
        return [int.from_bytes(content[SAMPLE].rows[row], sys.byteorder, signed=True) for row in kept]
    return [tuple(entry.rows[row].rstrip(b"\0") for entry in content.values()) for row in kept]


def _num_rows(content: Content) -> int:
    lengths = {name: entry.shape[0] for name, entry in content.items() if entry.shape}
    if not lengths or len(lengths) < len(content) or len(set(lengths.values())) > 1:
        if SAMPLE in lengths:
            return lengths[SAMPLE]
        shapes = ", ".join(f"{name} {list(entry.shape)}" for name, entry in content.items()) or "nothing"
        raise OptionError(
            f"the samples of a batch are unknown, because its entries have no common first axis: {shapes}. "
            f"Give samples=, a function from a batch to one value per sample (a feed of stoker: returns=Returns(index=True)).",
            parameter="samples",
        )
    return next(iter(lengths.values()))


def _entry(value: Any, name: str) -> Entry:
    if is_tensor(value):
        import torch

        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
        return _of_bytes(str(value.dtype).removeprefix("torch."), tuple(value.shape), data)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return Entry("object", (len(array),), [repr(entry).encode() for entry in array])
        return _of_bytes(str(array.dtype), array.shape, array.tobytes())
    if isinstance(value, list | tuple):
        return Entry("list", (len(value),), [repr(entry).encode() for entry in value])
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return Entry(type(value).__name__, (), [repr(value).encode()])
    raise OptionError(
        f"a batch has {name} of type {type(value).__name__}; expected tensors, arrays, values, or dicts and lists.",
        parameter="feed",
    )


def _of_bytes(kind: str, shape: tuple[int, ...], data: bytes) -> Entry:
    if not shape:
        return Entry(kind, shape, [data])
    size = len(data) // shape[0] if shape[0] else 0
    return Entry(kind, shape, [data[row * size : (row + 1) * size] for row in range(shape[0])])
