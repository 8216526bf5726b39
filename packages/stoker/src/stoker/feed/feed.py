"""Feed: a store, a view and an order become batches on a device, every sample exactly once per epoch, resumable anywhere.

The data path of a batch: `order` gives the indices of its samples (`stoker.sampling`), a producer gathers them (`gather.py` on the
CPU, `device.py` on a GPU), and `FeedIterator` (`prefetch.py`) hands the batch out and moves the cursor.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import torch
import xxhash
from msgspec import Meta
from torch.utils.data import BatchSampler, get_worker_info

from stoker._clock import Spans
from stoker._device import check_device
from stoker._text import html_text
from stoker._types import checked, converted
from stoker.errors import FeedError, LeakError, OptionError
from stoker.feed.adapters import OrderSampler, SampleDataset
from stoker.feed.categories import CategoryCodes, share_categories, shift_categories
from stoker.feed.columns import (
    check_batch_fits,
    check_columns,
    choose_columns,
    content_digest,
    identity_of,
    list_for,
    list_stores,
    mark_observed,
    samples_over,
)
from stoker.feed.device import Captured, DeviceGather, DeviceProducer
from stoker.feed.gather import HostGather, HostProducer, Ring
from stoker.feed.mixture import MixtureGather, StoreGroup, join_columns
from stoker.feed.padding import Assembler, Returns, check_names
from stoker.feed.prefetch import Cursor, Distributed, FeedIterator, FeedRanks, Prefetcher, Steps, check_state
from stoker.feed.read_ahead import ReadAhead
from stoker.feed.remote_blocks import make_hints
from stoker.feed.residency import Loading, choose_residency
from stoker.feed.scaling import Method, SeriesScales
from stoker.feed.summary import describe_samples, summarize
from stoker.feed.transform import AnyTransform, DeviceTransform, split_transforms
from stoker.sampling.mixture import JoinedSamples, Mixture
from stoker.sampling.orders import ByLength, Order, Sequential, Weighted
from stoker.sampling.subset import Subset
from stoker.sampling.views import AnyView, Lengths, Samples, Segments, Sequences, Windows, view_values
from stoker.store.remote import RemoteStore
from stoker.store.store import Store

LastBatch = Literal["pad", "short", "drop"]

HOST_THREADS, HOST_PREFETCH = 2, 4


class Feed:
    """Batches of samples as dicts of tensors, every sample exactly once per epoch.

    A batch has an entry per column, `[batch, steps]` (and the width of the column); with a target also `<column>_target`. Where
    samples are padded it has `lengths` and the masks `mask` and `target_mask`. A feed iterates like a DataLoader and can stand in
    for one: it has `dataset`, `batch_sampler`, `set_epoch`, `state_dict` and `load_state_dict`.

    Args:
        store: What `stoker.open`, `stoker.pack` or `Store.from_arrays` returns; or a list of these, whose samples are mixed.
        view: What a sample is: `Windows`, `Segments` or `Sequences`.
        batch_size: Samples per batch, on each rank.
        subset: A subset that `stoker.split` made; the feed then has its samples only, with indices from 0. For several stores a
            list with one per store, or None for all samples of a store.
        order: `Sequential()` (default), `Shuffle`, `BlockShuffle`, `Weighted` or `ByLength`; for several stores also
            `Mixture(order, weights)`. Several stores are mixed by their numbers of samples, so that an epoch has every sample once.
        device: Where batches are delivered: "cpu", "cuda" or "cuda:N".
        columns: Names of the columns; by default all columns of numbers.
        dtype: The type that columns of floats become: "float32" (default), "float16" or "float64". None leaves them as stored.
        normalize: "zero" subtracts the mean of the series and divides by its standard deviation; "max" divides by its largest
            absolute value. A `stoker.split.SeriesScaler` scales its columns, inputs and targets, by the training steps of each series.
        observed: Columns of floats whose missing values (NaN) become 0, after scaling; True for all of them per step. Each gets an
            entry `<column>_observed` that is True where there is a value, and `<column>_target_observed` beside a target.
        transform: A function from the arrays of a batch to those to deliver. It runs in the background threads. With a second
            parameter, or one named `rng`, it also gets a NumPy generator that is seeded by seed, epoch and position.
            `OnDevice(function)` runs on tensors, on the device; the two together are a list.
        last_batch: What becomes of a short last batch: "pad" adds zero rows that `valid` marks as False, "short" keeps it
            short, "drop" drops it.
        loading: Where the columns stay, and how batches are prefetched: `Loading(residency="stream", threads=4)`.
        distributed: Rank and number of processes, by default those of torchrun; samples per update over all of them.
        returns: Entries that a batch has in addition: `Returns(index=True, series=True)`.
        categories: What the codes of columns of categories mean: `CategoryCodes(texts=…, offset=1)`.

    Raises:
        OptionError: An option is invalid, or the store has no sample of the view.
        LeakError: `normalize` would use steps of other subsets, or the scaler was not fitted on the training subset of the split.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(6.0), np.arange(4.0)])
        >>> feed = stoker.Feed(store, stoker.Windows(4, tail="drop"), batch_size=2, order=stoker.Shuffle(seed=0))
        >>> len(feed), feed.num_samples
        (2, 4)
        >>> next(iter(feed))["x"].shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        store: Store | Sequence[Store],
        view: AnyView,
        *,
        batch_size: int,
        subset: Subset | Sequence[Subset | None] | None = None,
        order: Order | None = None,
        device: str | torch.device = "cpu",
        columns: Sequence[str] | None = None,
        dtype: str | None = "float32",
        normalize: Method | SeriesScales | None = None,
        observed: bool | str | Sequence[str] = False,
        transform: AnyTransform | Sequence[AnyTransform] | None = None,
        last_batch: LastBatch = "pad",
        loading: Loading = Loading(),
        distributed: Distributed = Distributed(),
        returns: Returns = Returns(),
        categories: CategoryCodes = CategoryCodes(),
    ) -> None:
        for name, value, kind in (
            ("loading", loading, Loading),
            ("distributed", distributed, Distributed),
            ("returns", returns, Returns),
            ("categories", categories, CategoryCodes),
        ):
            if not isinstance(value, kind):
                raise OptionError(f"{name} is {value!r}; expected {kind.__name__}(…).", parameter=name)
        loading = checked(loading, path="loading.")
        scaler = None if normalize is None or isinstance(normalize, str) else normalize
        method: Method | None = normalize if isinstance(normalize, str) else None
        self.stores = list_stores(store)
        """The store, or all stores."""
        spaces = [samples_over(store, view) for store in self.stores]
        self.store: Store | StoreGroup = self.stores[0] if len(self.stores) == 1 else StoreGroup(self.stores)
        self.view = view
        self.batch_size: int = converted("batch_size", batch_size, Annotated[int, Meta(ge=1, lt=2**31)])
        self.ranks = FeedRanks.find(distributed.rank, distributed.world_size)
        self.global_batch_size = distributed.global_batch_size
        self.micro_batches = _micro_batches(self.batch_size, self.global_batch_size, last_batch)
        """Batches per update, over all ranks; None without a global batch."""
        self._is_of_worker = distributed.rank is not None and get_worker_info() is not None
        """Whether a worker of a DataLoader made it with a rank of its own."""
        self.device = check_device(device)
        self.digest = self.store.digest
        """The digest of the store, or of all stores; None for one in memory."""
        self.drop_last = last_batch == "drop"
        """Whether a short last batch is dropped, as `DataLoader` has it."""
        self.is_packed = isinstance(view, Sequences) and view.layout == "packed"
        """Whether batches have all steps end to end."""
        self.last_batch: LastBatch = converted("last_batch", last_batch, LastBatch)
        self.waits = Spans()
        """Time that the caller waited for batches."""
        self.pacing = Spans(capacity=1)
        """Time that the caller waited for a GPU that had batches enough, with the next one ready."""
        if order is not None and (isinstance(order, type) or not callable(getattr(order, "over", None))):
            raise OptionError.expected("order", order, "Sequential(), Shuffle(…), BlockShuffle(…) or another order")
        self.transform, self.device_transform = split_transforms(transform)
        self.subsets: list[Subset | None] = list_for(self.stores, "subset", subset)
        """One per store."""
        for part, single in zip(self.subsets, self.stores, strict=True):
            if part is not None:
                _check_subset(part, single, view, method)
        self.subset = self.subsets[0] if len(self.stores) == 1 else subset
        if scaler is not None:
            if len(self.stores) > 1:
                raise OptionError(
                    f"a scaler is for one store, but the feed has {len(self.stores)}. Use normalize='zero', or begin the model with "
                    f"stoker.split.Scaler.fit(stores, subsets, …).",
                    parameter="normalize",
                )
            _check_scaler(scaler, self.stores[0], self.subsets[0])
        self.scaler = scaler
        chosen = [
            choose_columns(single, columns, dtype=dtype, normalize=method, lengths=lengths, scaler=scaler)
            for single, (lengths, _) in zip(self.stores, spaces, strict=True)
        ]
        check_columns(self.stores, chosen)
        chosen = [
            mark_observed(shift_categories(single, fed, categories.offset), observed)
            for single, fed in zip(self.stores, chosen, strict=True)
        ]
        chosen, self.categories = share_categories(self.stores, chosen, categories.texts)
        """The texts that the codes of each column of categories refer to."""
        self.columns = chosen[0] if len(chosen) == 1 else join_columns(self.stores, chosen)
        check_names(view, self.columns, returns)
        brief = [column.name for column in self.columns if column.torch_name == "bfloat16"]
        if self.transform is not None and brief:
            raise OptionError(
                f"transform gets NumPy arrays, which cannot hold bfloat16. Leave {', '.join(brief)} out of columns=.",
                parameter="columns",
            )
        parts: list[Samples] = [
            whole if part is None else part.over(whole) for part, (_, whole) in zip(self.subsets, spaces, strict=True)
        ]
        self.samples = parts[0] if len(parts) == 1 else self._joined(parts, [lengths for lengths, _ in spaces])
        self.column_bytes = sum(piece.values.nbytes for column in self.columns for piece in column.pieces)
        # As stored: windows share steps, padding is not read.
        self._sample_bytes = self.column_bytes / sum(whole.num_samples for _, whole in spaces)
        self.residency = choose_residency(
            loading.residency,
            self.column_bytes,
            self.device,
            needs_host="transform runs on the CPU" if self.transform is not None else None,
            on_disk=self.is_remote or any(store.path is not None for store in self.stores),
            max_fetched=min((store.max_whole_bytes for store in self.stores if isinstance(store, RemoteStore)), default=None),
        )
        if self.is_remote and self.residency.where != "stream":
            for single in self.stores:
                for column in self.columns:
                    single.column(column.name)  # fetched whole, and kept
        is_resident = self.residency.where == "device"
        if not is_resident:
            rows = batch_size if last_batch == "pad" else min(batch_size, self.samples.num_samples)
            least = min(view.buckets or (1,)) if isinstance(view, Sequences) else self.samples.row
            check_batch_fits(self.columns, rows, least)
        self.can_capture = is_resident and self.device_transform is None
        """Whether the columns are on the device and nothing else is done there, as `captured` needs."""
        threads = loading.threads
        if threads is None:
            # A CPU that trains has no core to spare, and a gather costs less than handing over a batch.
            ahead = self.device.type != "cpu" or self.transform is not None or self.residency.where == "stream"
            threads = 1 if is_resident else HOST_THREADS if ahead else 0
        self.threads = threads
        self.prefetch = loading.prefetch or max(HOST_PREFETCH, 2 * threads)
        self.returns = returns
        self._finish = DeviceTransform(self.device_transform, self.device) if self.device_transform is not None else None
        self.category_offset = categories.offset
        self.normalize = method
        self._dtype = dtype
        self._given_order = self._mixed(order if order is not None else Sequential())
        self._set_order(self._given_order)
        self._go_to(Cursor())
        self._live: weakref.WeakSet[FeedIterator] = weakref.WeakSet()
        self._latest: weakref.ref[FeedIterator] | None = None
        self._ahead: tuple[int, Prefetcher[Any]] | None = None
        """An epoch whose first batches are being made, though its pass has not begun."""
        self._producer = self._make_producer()

    def _joined(self, parts: list[Samples], lengths: list[Lengths]) -> JoinedSamples:
        for single, part in zip(self.stores, parts, strict=True):
            if not part.num_samples:
                raise OptionError(
                    f"the subset of {single.name} has no sample. Leave the store out, or give it another subset.",
                    parameter="subset",
                )
        return JoinedSamples(parts, lengths, self.view)

    def _mixed(self, order: Order) -> Order:
        """The order of all stores. One that depends on weights or lengths of samples takes the samples of all stores as one."""
        if isinstance(order, Mixture):
            return order.of(len(self.stores))
        return order if len(self.stores) == 1 or isinstance(order, Weighted | ByLength) else Mixture(order)

    def _set_order(self, order: Order) -> None:
        self.order = order
        global_batch = self.global_batch_size or self.batch_size * self.ranks.world_size
        self.plan = order.over(self.samples, batch_size=global_batch, sample_bytes=self._sample_bytes)

    def _make_producer(self) -> HostProducer | DeviceProducer:
        rows = self.batch_size if self.last_batch == "pad" else None
        assemble = self.assembler(marks_valid=rows is not None)
        if self.residency.where == "device":
            gather = DeviceGather(assemble, self.samples, self.device)
            return DeviceProducer(gather=gather, device=self.device, rows=rows, threads=self.threads)
        ring = Ring(pinned=self.device.type == "cuda", keep=self.prefetch + self.threads + 1)
        return HostProducer(
            gather=(HostGather if len(self.stores) == 1 else MixtureGather)(
                assemble, self.samples, ring, files=self.shards(), is_remote=self.is_remote
            ),
            device=self.device,
            transform=self.transform,
            rows=rows,
            hints=ReadAhead(self.columns, self.samples, make_hints) if self.residency.where == "stream" else None,
            threads=self.threads,
            prefetch=self.prefetch,
            pacing=self.pacing,
        )

    def assembler(self, *, marks_valid: bool) -> Assembler:
        """What makes batches of gathered parts; for the producer, and for a dataset."""
        store_ends: tuple[int, ...] | None = None
        if self.returns.store:
            store_ends = tuple(self.samples.firsts[1:-1].tolist()) if isinstance(self.samples, JoinedSamples) else ()
        return Assembler(
            view=self.view,
            columns=self.columns,
            padded=self.samples.padded,
            returns=self.returns,
            marks_valid=marks_valid,
            store_ends=store_ends,
        )

    @property
    def num_samples(self) -> int:
        """Samples per epoch, of all ranks together."""
        return self.plan.num_positions

    def shards(self) -> list[str]:
        """The files that hold the columns, for messages."""
        names, files = {column.name for column in self.columns}, []
        for store in self.stores:
            if store.manifest is None or store.path is None:
                files.append(store.name)
            else:
                shards = [column.values.file for column in store.manifest.columns if column.name in names and column.values]
                files += [str(store.path / shard) for shard in shards]
        return files

    @property
    def is_remote(self) -> bool:
        """Whether blocks of a store must be fetched before they can be read."""
        return any(store.is_remote for store in self.stores)

    @property
    def dataset(self) -> SampleDataset:
        """The samples as a map-style dataset, as `DataLoader` has it; a packed feed has none."""
        if self.is_packed:
            raise AttributeError("a packed feed has no dataset: its batches cannot be taken apart into samples.")
        return self.as_dataset()

    @property
    def batch_sampler(self) -> BatchSampler:
        """The indices of the samples, batch by batch, in the order of the next epoch, as `DataLoader` has it."""
        return BatchSampler(OrderSampler(self), self.batch_size, self.drop_last)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._cursor.epoch

    @property
    def is_resumed(self) -> bool:
        """Whether a loaded state puts the next batch in the middle of an epoch."""
        return bool(self._cursor.position) and not self._has_moved

    def _steps(self, epoch: int, start: int) -> Steps:
        return Steps(
            self.plan,
            epoch,
            start,
            batch_size=self.batch_size,
            ranks=self.ranks,
            drops_last=self.drop_last,
            seed=self.order.seed,
            is_random=isinstance(self.view, Sequences) and self.view.keep == "random",
            per_update=self.micro_batches,
        )

    @property
    def batches_per_update(self) -> int | None:
        """Batches that each rank takes per update, where there is a global batch."""
        return None if self.micro_batches is None else self._steps(0, 0).rounds

    def __len__(self) -> int:
        """Batches per epoch, for each rank."""
        return len(self._steps(0, 0))

    def __iter__(self) -> FeedIterator:
        """A pass over the rest of the epoch after a resume, otherwise over a new epoch, also after one that was left early."""
        steps, cursor = self.begin_pass()
        batches = FeedIterator(self._producer, steps, cursor, self.waits, self._finish, self._take_ahead(steps))
        self._live.add(batches)
        self._latest = weakref.ref(batches)
        return batches

    def prefetch_next_epoch(self) -> None:
        """Begin to make the first batches of the next epoch while the last ones of this epoch are used.

        The next `iter(feed)` hands them out. Call it near the end of an epoch that another one follows; `Trainer` does. Without
        threads, and where batches are gathered on the device, there is nothing to do ahead; a remote store fetches ahead by itself.
        """
        if self._ahead is None and self.threads and self.residency.where != "device" and not self.is_remote:
            epoch = self._cursor.epoch + (self._has_moved and bool(self._cursor.position))
            self._ahead = epoch, self._producer.start(self._steps(epoch, 0), self.waits)

    def _take_ahead(self, steps: Steps) -> Prefetcher[Any] | None:
        """The batches that were begun ahead, if they are those of these steps; others are given up."""
        if self._ahead is None:
            return None
        epoch, prefetcher = self._ahead
        if epoch != steps.epoch or steps.start or not prefetcher.is_of_this_process:
            self.drop_prefetched_epoch()
            return None
        self._ahead = None
        return prefetcher

    def drop_prefetched_epoch(self) -> None:
        """Give up what `prefetch_next_epoch` began, where the epoch does not come."""
        if self._ahead is not None:
            self._ahead[1].close()
            self._ahead = None

    def begin_pass(self) -> tuple[Steps, Cursor]:
        """The steps of the next pass, and the cursor that moves with each batch that is handed out."""
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1 and not self._is_of_worker:
            raise FeedError(
                f"the feed is iterated by worker {worker.id} of {worker.num_workers} of a DataLoader, and each of them would yield "
                f"every batch. Give the loader feed.as_dataset(), or num_workers=0: a feed has threads of its own."
            )
        was_left_early = self._has_moved and self._cursor.position
        # A new object: an earlier pass that is still used moves its own cursor, not this one.
        self._go_to(Cursor(self._cursor.epoch + 1, 0) if was_left_early else self._cursor.copy())
        return self._steps(self._cursor.epoch, self._cursor.position), self._cursor

    def _go_to(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._begun = cursor.copy()

    @property
    def _has_moved(self) -> bool:
        """Whether the latest pass has handed out batches; frameworks begin passes that they never use."""
        return self._cursor != self._begun

    def _move(self, cursor: Cursor) -> None:
        """Move the feed, and a pass that has not given its first batch: frameworks set the epoch after `iter()`."""
        latest = self._latest() if self._latest is not None else None
        waits = latest is not None and latest.cursor is self._cursor and not self._has_moved
        self._go_to(cursor)
        if latest is not None and waits:
            latest.begin_elsewhere(self._steps(cursor.epoch, cursor.position), cursor)

    def captured(self) -> Captured:
        """Batches at fixed addresses, gathered by a CUDA graph.

        Returns:
            A `Captured`: iterate over it, or capture `captured.enqueue()` in a graph of your own.

        Raises:
            OptionError: The residency is not "device", or batches have different shapes.
        """
        if not isinstance(self._producer, DeviceProducer):
            raise OptionError(
                f"captured() gathers on the device, but the residency is {self.residency.where}: {self.residency.reason}.",
                parameter="residency",
            )
        if self.device_transform is not None:
            raise OptionError(
                "captured() does not run OnDevice(…), whose generator a graph cannot seed. Leave one of them out.",
                parameter="transform",
            )
        return Captured(
            self._producer,
            batch_size=self.batch_size,
            last_batch=self.last_batch,
            begin_pass=self.begin_pass,
            waits=self.waits,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. A position in that epoch that was just loaded is kept."""
        epoch = converted("epoch", epoch, Annotated[int, Meta(ge=0)])
        if epoch != self._cursor.epoch or (self._has_moved and self._cursor.position):
            self._move(Cursor(epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """The position: a few integers. It is after the batches that were handed out, not those that were prefetched.

        Example:
            >>> import numpy as np, stoker
            >>> store = stoker.Store.from_arrays(x=[np.arange(6.0)])
            >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=2)
            >>> batches = iter(feed)
            >>> _ = next(batches)
            >>> state = feed.state_dict()
            >>> again = stoker.Feed(store, stoker.Segments(1), batch_size=2)
            >>> again.load_state_dict(state)
            >>> next(iter(again))["x"].flatten().tolist()
            [2.0, 3.0]
        """
        cursor = self._cursor
        return {
            "seed": self.order.seed,
            "epoch": cursor.epoch,
            "position": cursor.position,
            "samples": self.num_samples,
            "feed": self._fingerprint(),
            **self.plan.shape,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved. Ranks, batch size, device and threads may differ.

        Raises:
            FeedError: The state is damaged, or of other data, another view, subset or kind of order.
        """
        seed, cursor, shape = self._read(state)
        if shape.keys() != self.plan.shape.keys():
            saved, expected = (", ".join(names) or "nothing" for names in (shape, self.plan.shape))
            raise FeedError(f"the state of a feed has the choices {saved}; expected {expected} of {self.order.kind} samples.")
        self._set_order(self._given_order.adopt(seed, shape))
        self._move(cursor)

    def _read(self, state: Mapping[str, Any]) -> tuple[int, Cursor, dict[str, int]]:
        return check_state(state, num_positions=self.num_samples, fingerprint=self._fingerprint())

    def _steps_from(self, state: Mapping[str, Any]) -> Steps:
        _, cursor, _ = self._read(state)
        return self._steps(cursor.epoch, cursor.position)

    def state_after(self, state: Mapping[str, Any], batches: int) -> dict[str, Any]:
        """The state of a pass that began at `state` and has handed out `batches` batches."""
        after = self._steps_from(state).after(batches - 1)
        return {**state, **dict(zip(("epoch", "position"), after, strict=True))} if batches else dict(state)

    def origin(self, state: Mapping[str, Any], first: int, count: int = 1) -> str:
        """Where some batches of a pass that began at `state` come from, in words; samples with non-finite values come first."""
        steps = self._steps_from(state)
        numbers = np.concatenate([steps.numbers(step) for step in range(first, min(first + count, len(steps)))])
        told: list[tuple[bool, str]] = []
        for i, store in enumerate(self.stores):
            samples, columns, first, mine, draw = self.samples, self.columns, 0, numbers, steps.draw
            if isinstance(samples, JoinedSamples):
                first, end = int(samples.firsts[i]), int(samples.firsts[i + 1])
                draw = samples.draw_of(i, draw)
                samples, mine = samples.parts[i], numbers[(numbers >= first) & (numbers < end)] - first
                columns = [column.pieces[i] for column in columns]
            if len(mine):
                told.append(
                    describe_samples(samples, columns, mine, name=store.name, first_steps=store.offsets, first=first, draw=draw)
                )
        bad = [text for is_bad, text in told if is_bad]
        return "; ".join(bad or [text for _, text in told])

    def _fingerprint(self) -> str:
        """What must be equal for a position to mean the same sample: data, view, subset and kind of order."""
        data = " + ".join(map(identity_of, self.stores))
        what = f"{data} {type(self.view).__name__} {view_values(self.view)} {self.order.kind}"
        if any(subset is not None for subset in self.subsets):
            what += "".join(f" {subset.fingerprint if subset is not None else 'all'}" for subset in self.subsets)
        return xxhash.xxh3_64_hexdigest(what.encode())[:8]

    def identity(self) -> dict[str, Any]:
        """What the batches depend on besides the position in the order; a resumed run compares it with the saved one."""
        names = [column.name for column in self.columns]
        digests = [store.digest or content_digest(store, names) for store in self.stores]
        parts = [None if subset is None else subset.fingerprint for subset in self.subsets]
        return {
            "store": digests[0] if len(digests) == 1 else digests,
            "view": self.view,
            "subset": parts[0] if len(parts) == 1 else parts if any(parts) else None,
            "order": self._given_order,
            "batch_size": self.batch_size * (1 if self.micro_batches is not None else self.ranks.world_size),
            "last_batch": self.last_batch,
            "columns": {column.name: column.torch_name for column in self.columns},
            "normalize": self.normalize,
            "transform": self.transform,
            "device_transform": self.device_transform,
            "returns": self.returns,
            "observed": [column.name for column in self.columns if column.observed],
            "category_offset": self.category_offset,
            "scaler": None if self.scaler is None else self.scaler.describe(),
        }

    def settings(self) -> dict[str, Any]:
        """Return plain values from which `from_settings` makes the same feed over another store. A run keeps them as feed.json."""
        return {
            "view": {
                "name": type(self.view).__name__,
                **{field.name: getattr(self.view, field.name) for field in fields(self.view)},
            },
            "columns": [column.name for column in self.columns],
            "dtype": self._dtype,
            "normalize": self.normalize,
            "scaler": self.scaler is not None,
            "observed": [column.name for column in self.columns if column.observed],
            "categories": self.categories,
            "category_offset": self.category_offset,
        }

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], store: Store, *, scaler: SeriesScales | None = None, **options: Any
    ) -> Feed:
        """Make the feed of these settings over a store. `scaler` is for this store, where the feed had one; `options` replace settings."""
        values = dict(settings["view"])
        kinds: dict[str, Any] = {"Windows": Windows, "Segments": Segments, "Sequences": Sequences}
        view = kinds[values.pop("name")](**values)
        if settings["scaler"] and scaler is None:
            raise OptionError(
                "the feed scaled each series by a scaler, which is missing. Put scaler.safetensors back.", parameter="scaler"
            )
        given = {
            "columns": settings["columns"],
            "dtype": settings["dtype"],
            "normalize": scaler if settings["scaler"] else settings["normalize"],
            "observed": settings["observed"],
            "categories": CategoryCodes(texts=settings["categories"], offset=settings["category_offset"]),
        }
        return cls(store, view, **{**given, **options})

    def as_dataset(self) -> SampleDataset:
        """The samples as a map-style dataset, for `DataLoader` and everything built on it."""
        return SampleDataset(self)

    def __reduce__(self) -> NoReturn:
        raise FeedError(
            f"a feed cannot be pickled or copied: it has threads and memory of this process. Send feed.as_dataset(), or make the "
            f"feed of {self.store.name} in the other process and load feed.state_dict() there."
        )

    def close(self) -> None:
        """End the threads of all passes. They also end with their pass, or when it is garbage."""
        for batches in list(self._live):
            batches.close()
        self.drop_prefetched_epoch()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return summarize(self)

    def _repr_html_(self) -> str:
        return html_text(summarize(self))


def _micro_batches(batch_size: int, global_batch_size: int | None, last_batch: str) -> int | None:
    """Batches per update of a global batch."""
    if global_batch_size is None:
        return None
    if global_batch_size % batch_size:
        raise OptionError(
            f"global_batch_size is {global_batch_size:,}, which is not a multiple of batch_size={batch_size:,}. Change one of them.",
            parameter="global_batch_size",
        )
    if last_batch != "pad":
        raise OptionError(
            f"last_batch is {last_batch!r}, but with a global batch some ranks may have no sample in a step: expected 'pad'.",
            parameter="last_batch",
        )
    return global_batch_size // batch_size


def _check_subset(subset: Subset, store: Store, view: AnyView, normalize: Method | None) -> None:
    Subset.check_kind(subset)
    subset.check(view, identity_of(store))
    if normalize is not None and not subset.whole_series:
        raise LeakError(
            f"normalize={normalize!r} scales by whole series, so the {subset.name} subset would depend on steps of the others. "
            f"Leave it out, and begin the model with stoker.split.Scaler.fit(store, split.train, …)."
        )


def _check_scaler(scaler: SeriesScales, store: Store, subset: Subset | None) -> None:
    if not all(hasattr(scaler, name) for name in ("scales", "columns", "fitted_on", "data")):
        raise OptionError(
            f"normalize is {scaler!r}; expected 'zero', 'max', None, or what stoker.split.SeriesScaler.fit(store, split.train, …) returns.",
            parameter="normalize",
        )
    if scaler.data != identity_of(store):
        raise OptionError(
            f"the scaler was fitted on other data than {store.name}. Fit it on this store, or use scaler.for_store(store).",
            parameter="scaler",
        )
    # The subsets of whole series share no series, so the steps of one tell nothing of the others.
    if subset is None or subset.trained_on == scaler.fitted_on or (scaler.fitted_on == "all" and subset.whole_series):
        return
    where = "all steps of the store" if scaler.fitted_on == "all" else "another subset"
    raise LeakError(
        f"the scaler was fitted on {where}, not on the training subset of the split that the {subset.name} subset belongs to. "
        f"Use SeriesScaler.fit(store, split.train, …)."
    )
