"""Generation: new sequences of codes, one event and one sub-column after the other.

    1. The length of each sequence is drawn from its context, before its first event. Subjects are sorted by it, once per block: the
       only time that the host waits for the device.
    2. Each step draws the sub-columns of one event, given all before, passes it to the LSTM, and writes it where it belongs. On a GPU
       a step is one CUDA graph, whatever the table, replayed for `CHUNK` subjects of similar lengths.
    3. A head reads the embeddings that are known so far; those to come are zero. So no mask is needed, and any order of columns works:
       of each row, the given columns come first.

Random numbers are a hash of (seed, subject, step, sub-column), where a subject is its key if it has one: it gets the same events whatever
the batch, the device and the other subjects. A matmul of another size may round differently, so on a GPU the size is always `CHUNK`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from stoker.extend import Array
from stoker_recipes.tabular.batches import position_codes
from stoker_recipes.tabular.clock import CANDIDATES, Clock, DatedColumn
from stoker_recipes.tabular.ends import Ends
from stoker_recipes.tabular.model import NEVER, TabularModel

BLOCK = {"cpu": 65536, "cuda": 131072}
"""Subjects whose events are in the memory of the device together."""
CHUNK = {"cpu": 4096, "cuda": 16384}
"""Subjects that are generated together."""
LEAST_REPLAYS = 4
"""Steps for which a CUDA graph is captured; fewer run eagerly."""
BELOW_ONE = 1 - 2.0**-24
"""Times a random number from (0, 1], it is below 1."""
_GOLDEN = -7046029254386353131
"""2**64 divided by the golden ratio, as int64."""


@dataclass(frozen=True, kw_only=True)
class GeneratedCodes:
    """Codes of generated events, those of a subject side by side."""

    codes: Array
    """(events, sub-columns of data)"""
    lengths: Array
    uniform: Array
    """(events, columns): random numbers for what codes leave open."""


@dataclass(frozen=True, kw_only=True)
class GivenCodes:
    """Codes of first events that are given, or of some of their columns."""

    codes: Array
    """(subjects, steps, sub-columns of data)"""
    is_given: Array
    """(subjects, steps, columns of data): other codes are drawn."""
    lengths: Array
    """Given events of each subject."""
    limits: Array | None = None
    """(subjects, 2): the shortest and the longest sequence that may begin so. Default: not shorter than what is given."""
    times: Array | None = None
    """(subjects, steps, columns with a rhythm): given dates."""


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """How classes are drawn. Nothing of it acts on lengths."""

    temperature: float = 1.0
    """Below 1 makes likely classes likelier."""
    top_p: float = 1.0
    """Draw from the likeliest classes that together have this probability."""
    never: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Classes that are not generated, by sub-column."""
    ends: Mapping[int, Ends] = field(default_factory=dict)
    """Classes that first and last events do not have, by sub-column."""
    shares: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Probabilities that classes get, by sub-column; the others share the rest in proportion."""
    order: Sequence[int] | None = None
    """The columns of data, as they are drawn. Default: the order of the table."""
    dated: Sequence[DatedColumn] = ()
    """Columns whose dates have a rhythm."""


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Mix the bits of int64: the finalizer of SplitMix64, with logical shifts."""
    value = (value ^ ((value >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    value = (value ^ ((value >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return value ^ ((value >> 31) & 0x1FFFFFFFF)


def _wrap(value: int) -> int:
    """An integer as int64 holds it, modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63


def uniform(seed: int, subjects: torch.Tensor, step: int | torch.Tensor, count: int) -> torch.Tensor:
    """Random numbers from (0, 1], (subjects, count): a function of seed, subject, step and place alone."""
    places = torch.arange(count, device=subjects.device)
    of_step = _wrap((step + 2) * _GOLDEN) if isinstance(step, int) else (step + 2) * _GOLDEN
    base = _mix(_mix(subjects * _GOLDEN + _wrap(seed)) + of_step)
    bits = _mix(base[:, None] + (places + 1) * _GOLDEN)
    return (((bits >> 40) & 0xFFFFFF) + 1).to(torch.float32) * 2.0**-24


def spread(seed: int, subjects: torch.Tensor) -> torch.Tensor:
    """Numbers from (0, 1] that consecutive subjects share out evenly, so that the mean of what is drawn with them varies less."""
    bits = _mix(torch.zeros_like(subjects) + _wrap(seed)) + subjects * _GOLDEN
    return (((bits >> 40) & 0xFFFFFF) + 1).to(torch.float32) * 2.0**-24


def draw(
    logits: torch.Tensor,
    numbers: torch.Tensor,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    shares: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """A class for each row, by inversion: the first one whose cumulative probability reaches the number.

    Args:
        logits: (rows, classes)
        numbers: (rows,) or (rows, draws), from (0, 1].
        temperature: Below 1 makes likely classes likelier.
        top_p: Draw from the likeliest classes that together have this probability.
        shares: Whether a class has a fixed probability, and which.
    """
    if temperature != 1.0:
        logits = logits / max(temperature, 1e-3)
    chances = torch.softmax(logits, -1)
    if top_p < 1.0:
        ordered, places = chances.sort(-1, descending=True)
        is_kept = ordered.cumsum(-1) - ordered <= top_p
        chances = torch.zeros_like(chances).scatter(-1, places, ordered * is_kept)
    if shares is not None:
        free = chances.masked_fill(shares[0], 0.0)
        chances = shares[1] + free * ((1 - shares[1].sum()) / free.sum(-1, keepdim=True).clamp(min=1e-30))
    total = chances.cumsum(-1)
    classes = torch.searchsorted(total, numbers.view(len(numbers), -1) * total[:, -1:])
    return classes.view_as(numbers).clamp(max=logits.shape[-1] - 1)


class _Sampler:
    """The heads of a model, one by one."""

    def __init__(self, model: TabularModel, options: DrawOptions) -> None:
        layout = model.layout
        self.model, self.layout = model, layout
        self._temperature, self._top_p = options.temperature, options.top_p
        first = int(layout.is_sequence)
        columns = range(layout.num_columns - first) if options.order is None else options.order
        self.order = [(column, layout.of_column(column + first)) for column in columns]
        """The columns of data as they are drawn, each with its sub-columns."""
        free = layout.context_width + layout.history_width
        self.free_weight = model.first_weight[:, :free]
        self.of_history = self.free_weight[:, layout.context_width :].t().contiguous()
        seen = model.first_weight[:, free:]
        self.heads = {}
        for group_number, group in enumerate(model._head_groups):
            for member, number in enumerate(group.members):
                sub = layout.subs[number]
                begin, end = model.rows[number]
                bias = model.out_biases[group_number][member, 0, : sub.num_classes].clone()
                bias[list(options.never.get(number, ()))] = NEVER
                weight = model.out_weights[group_number][member, : sub.hidden[-1], : sub.num_classes].contiguous()
                second = None
                if layout.size == "l":
                    second = (
                        model.second_weights[group_number][member, : sub.hidden[0], : sub.hidden[1]],
                        model.second_biases[group_number][member, 0, : sub.hidden[1]],
                    )
                self.heads[number] = (slice(begin, end), seen[begin:end].t().contiguous(), second, weight, bias)
        self._ends = {number: self._at_ends(number, ends) for number, ends in options.ends.items()}
        device = self.free_weight.device
        self.clocks = {dated.column: Clock(dated, place, device) for place, dated in enumerate(options.dated)}
        self._shares = {}
        for number, own_shares in options.shares.items():
            share = self.free_weight.new_zeros(layout.subs[number].num_classes)
            share[list(own_shares)] = torch.tensor(list(own_shares.values()), dtype=share.dtype, device=share.device)
            is_fixed = torch.zeros_like(share, dtype=torch.bool)
            is_fixed[list(own_shares)] = True
            self._shares[number] = (is_fixed, share)
        self.tables = {}
        """The embedding of each sub-column, as a table of its own."""
        for group, table in zip(model._groups, model.embeddings, strict=True):
            first = 0
            for number in group.members:
                sub = layout.subs[number]
                self.tables[number] = table[first : first + sub.num_classes, : sub.width].contiguous()
                first += sub.num_classes

    def _at_ends(self, number: int, ends: Ends) -> torch.Tensor:
        """What is added to logits: (is later, is last, classes)."""
        bias = self.heads[number][4]
        added = torch.zeros(2, 2, len(bias), device=bias.device)
        for place, classes in (
            (added[:, 1], ends.last),
            (added[:, 0], ends.earlier),
            (added[0], ends.first),
            (added[1], ends.later),
        ):
            place[:, classes] = NEVER
        added[(added + bias <= NEVER / 2).all(-1)] = 0.0  # the only event of a subject may have nothing to choose from
        return added

    def new_inputs(self, count: int) -> torch.Tensor:
        """Embeddings and compressed columns of an event of which nothing is known."""
        width = self.model.num_inputs - self.free_weight.shape[1]
        return self.free_weight.new_zeros(count, width)

    def base(self, context: torch.Tensor | None, count: int) -> torch.Tensor:
        """The part of all first layers that the context gives."""
        bias = self.model.first_bias.expand(count, -1)
        if context is None:
            return bias
        return torch.addmm(bias, self.model.encode_context(context), self.free_weight[:, : self.layout.context_width].t())

    def start(self, context: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the LSTM sees of the context of subjects, and its state before their first event: without context one for all."""
        model = self.model
        feeds = context is not None and self.layout.feeds_context
        seen = model.encode_context(context) if context is not None and feeds else model.first_bias.new_zeros(1, 0)
        blank = model.first_bias.new_zeros(len(seen), model.seen_width)
        _, (hidden, cell) = model.lstm(torch.cat([blank, seen], -1)[:, None])
        return seen, hidden, cell

    def logits(self, number: int, base: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """The logits of a sub-column, given the context and history (`base`) and what is known so far (`inputs`)."""
        rows, seen, second, weight, bias = self.heads[number]
        hidden = torch.addmm(base[:, rows], inputs, seen)
        if second is not None:
            hidden = torch.addmm(second[1], hidden, second[0])
        return torch.addmm(bias, torch.relu_(hidden), weight)

    def sample(
        self, number: int, base: torch.Tensor, inputs: torch.Tensor, numbers: torch.Tensor, is_last: torch.Tensor | None, *, is_first: bool
    ) -> torch.Tensor:  # fmt: skip
        """Draw a sub-column."""
        logits = self.logits(number, base, inputs)
        if number in self._ends and is_last is not None:
            logits = logits + self._ends[number][int(not is_first)][is_last.long()]
        return draw(logits, numbers, temperature=self._temperature, top_p=self._top_p, shares=self._shares.get(number))

    def put(self, number: int, codes: torch.Tensor, inputs: torch.Tensor, is_known: torch.Tensor | None = None) -> None:
        """Write the embedding of a sub-column, where it is known."""
        embedded = F.embedding(codes, self.tables[number])
        inputs[:, slice(*self.model.place[number])] = embedded if is_known is None else embedded * is_known[:, None]

    def finish(self, column: int, inputs: torch.Tensor, is_known: torch.Tensor | None = None) -> None:
        """Compress a column that is complete, for the heads of others."""
        if column in self.model.column_at:
            begin, end = self.model.column_at[column]
            rows = slice(begin - self.model.width, end - self.model.width)
            weight = (self.model.column_weight * self.model.column_mask)[rows]
            compressed = F.linear(inputs[:, : self.model.width], weight, self.model.column_bias[rows])
            inputs[:, begin:end] = compressed if is_known is None else compressed * is_known[:, None]

    def event(
        self, base: torch.Tensor, inputs: torch.Tensor, numbers: torch.Tensor, given: _Given | None, chunk: _Chunk | None = None,
        *, is_first: bool,
    ) -> torch.Tensor:  # fmt: skip
        """Draw the data of one event: codes (subjects, sub-columns of data). Given columns of a row are known to all its heads.

        Where dates have a rhythm, the times of the chunk are those of the event afterwards, and so are its random numbers.
        """
        layout = self.layout
        first, skipped = int(layout.is_sequence), layout.num_positions
        codes = torch.zeros(len(base), len(layout.subs) - skipped, dtype=torch.long, device=base.device)
        is_last = None if chunk is None else chunk.step == chunk.length - 1
        if given is not None:
            for column, numbered in self.order:
                is_known = given.is_given[:, column]
                for number in numbered:
                    self.put(number, given.codes[:, number - skipped], inputs, is_known)
                self.finish(column + first, inputs, is_known)
        for column, numbered in self.order:
            clock = None if chunk is None else self.clocks.get(column)
            gap: tuple[dict[int, torch.Tensor], torch.Tensor] | None = None
            for number in numbered:
                place, moment = number - skipped, layout.subs[number].moment
                if moment == ("later" if is_first else "first"):
                    self.put(number, codes[:, place], inputs)  # which is 0
                    continue
                if clock is not None and chunk is not None and moment == "later":
                    gap = gap or self._draw_gap(clock, column, base, inputs, numbers, chunk)
                    drawn = gap[0][number]
                else:
                    drawn = self.sample(number, base, inputs, numbers[:, place], is_last, is_first=is_first)
                if given is not None:
                    drawn = torch.where(given.is_given[:, column], given.codes[:, place], drawn)
                codes[:, place] = drawn
                self.put(number, drawn, inputs)
            if clock is not None and chunk is not None:
                of_column = codes[:, numbered[0] - skipped : numbered[-1] + 1 - skipped]
                time = clock.first(of_column, self._inside(numbers, column), chunk.who) if gap is None else gap[1]
                if given is not None and given.times.shape[-1]:
                    time = torch.where(given.is_given[:, column], given.times[:, clock.place], time)
                chunk.time[:, clock.place] = time
            self.finish(column + first, inputs)
        return codes

    def _inside(self, numbers: torch.Tensor, column: int) -> torch.Tensor:
        """The random numbers of a column that say where in their intervals values are, as the decoder gets them."""
        return numbers[:, self._inside_place(column)] * BELOW_ONE

    def _inside_place(self, column: int) -> int:
        return len(self.layout.subs) + int(self.layout.is_sequence) + column

    def _draw_gap(
        self, clock: Clock, column: int, base: torch.Tensor, inputs: torch.Tensor, numbers: torch.Tensor, chunk: _Chunk
    ) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
        """Draw several gaps and choose one by the rhythm: its codes, and the time after it. Its random number is put among `numbers`."""
        coarse, *fines = (number for number in dict(self.order)[column] if self.layout.subs[number].moment == "later")
        count, skipped = CANDIDATES, self.layout.num_positions
        at = len(self.layout.subs) + self.layout.num_columns + clock.first_number
        inside, time = numbers[:, at + count : at + 2 * count], chunk.time[:, clock.place]
        options: dict[str, Any] = {"temperature": self._temperature, "top_p": self._top_p}
        candidates = {coarse: draw(self.logits(coarse, base, inputs), numbers[:, at : at + count], **options)}
        for fine in fines:
            several = []
            for candidate in candidates[coarse].unbind(1):
                self.put(coarse, candidate, inputs)
                several.append(draw(self.logits(fine, base, inputs), numbers[:, fine - skipped], **options))
            candidates[fine] = torch.stack(several, 1)
        gaps = clock.gaps(candidates[coarse], candidates[fines[0]] if fines else None, inside * BELOW_ONE)
        chances = clock.chances(time, gaps).cumsum(1)
        chosen = torch.searchsorted(chances, numbers[:, at + 2 * count, None] * chances[:, -1:]).clamp(max=count - 1)
        numbers[:, self._inside_place(column)] = inside.gather(1, chosen)[:, 0]
        return {number: codes.gather(1, chosen)[:, 0] for number, codes in candidates.items()}, time + gaps.gather(1, chosen)[:, 0]


@dataclass(frozen=True, kw_only=True)
class _Given:
    """Given events of a block, or one event of some of its subjects, on its device."""

    codes: torch.Tensor
    is_given: torch.Tensor
    limits: torch.Tensor
    times: torch.Tensor

    @staticmethod
    def of(given: GivenCodes, first: int, last: int, device: torch.device) -> _Given:
        limits = np.stack([given.lengths, np.full(len(given.lengths), 2**31)], 1) if given.limits is None else given.limits
        times = np.zeros((*given.is_given.shape[:2], 0), np.int64) if given.times is None else given.times
        codes, is_given, bounds, dates = (
            torch.from_numpy(np.ascontiguousarray(part[first:last])).to(device)
            for part in (given.codes, given.is_given, limits, times)
        )
        return _Given(codes=codes.long(), is_given=is_given, limits=bounds, times=dates)

    def event(self, subjects: torch.Tensor, step: int) -> _Given | None:
        """What is given of a step; None after the last given one."""
        if step >= self.codes.shape[1]:
            return None
        codes, is_given, times = (part[subjects, step] for part in (self.codes, self.is_given, self.times))
        return _Given(codes=codes, is_given=is_given, limits=self.limits, times=times)


def generate_codes(
    model: TabularModel,
    num_subjects: int,
    *,
    seed: int,
    subjects: Array | None = None,
    context: Array | None = None,
    given: GivenCodes | None = None,
    lengths: tuple[int, int] = (0, 2**31),
    **options: Any,
) -> GeneratedCodes:
    """Generate codes of new subjects.

    Args:
        model: A trained model.
        num_subjects: How many.
        seed: Of all random numbers.
        subjects: A number of each subject, which its random numbers follow from. Default: 0, 1, 2, ...
        context: Codes of the context, (subjects, sub-columns).
        given: First events that are given, or columns of them.
        lengths: The shortest and the longest sequence.
        **options: Fields of `DrawOptions`.
    """
    device = model.first_weight.device
    block, parts, drawing = BLOCK[device.type], [], DrawOptions(**options)
    subjects = np.arange(num_subjects) if subjects is None else subjects
    for first in range(0, num_subjects, block):
        last = min(first + block, num_subjects)
        of_block = None if context is None else torch.from_numpy(context[first:last]).to(device)
        generated = generate_tensors(
            model, torch.from_numpy(subjects[first:last]).to(device), seed=seed, context=of_block, lengths=lengths,
            options=replace(drawing, dated=[dated.part(first, last) for dated in drawing.dated]),
            given=None if given is None else _Given.of(given, first, last, device),
        )  # fmt: skip
        parts.append([to_host(arrays) for arrays in generated])
    codes, sizes, numbers = (np.concatenate(arrays) for arrays in zip(*parts, strict=True)) if parts else _nothing(model)
    return GeneratedCodes(codes=codes, lengths=sizes, uniform=numbers.astype(np.float64))


def to_host(tensor: torch.Tensor) -> Array:
    """A tensor as an array; from a GPU by way of pinned memory, which is several times as fast."""
    if tensor.device.type == "cpu":
        return np.asarray(tensor)
    return np.asarray(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor))


def _nothing(model: TabularModel) -> tuple[Array, Array, Array]:
    width = len(model.layout.subs) - model.layout.num_positions
    return np.zeros((0, width), np.int32), np.zeros(0, np.int64), np.zeros((0, model.layout.num_columns))


@torch.no_grad()
def generate_tensors(
    model: TabularModel,
    subjects: torch.Tensor,
    *,
    seed: int,
    context: torch.Tensor | None = None,
    given: _Given | None = None,
    lengths: tuple[int, int] = (0, 2**31),
    options: DrawOptions | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, lengths and random numbers of subjects, on the device of the model."""
    was_training = model.training
    model.eval()
    sampler = _Sampler(model, options or DrawOptions())
    generate = _generate_events if model.layout.is_sequence else _generate_rows
    codes, sizes, numbers = generate(sampler, subjects, seed=seed, context=context, given=given, limits=lengths)
    model.train(was_training)
    return codes, sizes, numbers * BELOW_ONE


def _chunks(count: int, device: torch.device) -> list[torch.Tensor]:
    """Numbers of subjects, a chunk after the other; on a GPU all have the same size, and the last one repeats a subject."""
    size, places = CHUNK[device.type], torch.arange(count, device=device)
    if device.type == "cpu":
        return list(torch.split(places, size))
    return [(first + torch.arange(size, device=device)).clamp(max=count - 1) for first in range(0, count, size)]


def _generate_rows(
    sampler: _Sampler, subjects: torch.Tensor, *, seed: int, context: torch.Tensor | None, given: _Given | None,
    limits: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """One row per subject."""
    layout, count = sampler.layout, len(subjects)
    parts = []
    for places in _chunks(count, subjects.device):
        numbers = uniform(seed, subjects[places], 0, len(layout.subs) + layout.num_columns)
        base = sampler.base(None if context is None else context[places], len(places))
        first = None if given is None else given.event(places, 0)
        codes = sampler.event(base, sampler.new_inputs(len(places)), numbers, first, is_first=True)
        parts.append((codes.to(torch.int32), numbers[:, len(layout.subs) :]))
    codes, numbers = (torch.cat(tensors)[:count] for tensors in zip(*parts, strict=True))
    return codes, torch.ones_like(subjects), numbers


def _draw_lengths(sampler: _Sampler, base: torch.Tensor, numbers: torch.Tensor, least: torch.Tensor, most: int) -> torch.Tensor:
    """The length of each sequence, from the heads of `slen`."""
    layout = sampler.layout
    inputs = sampler.new_inputs(len(base))
    length = zero = torch.zeros(len(base), dtype=torch.long, device=base.device)
    for number, sub in enumerate(layout.subs[: layout.num_positions]):
        if sub.position == "sidx":
            sampler.put(number, zero, inputs)
        elif sub.position == "slen":
            logits = sampler.logits(number, base, inputs)
            place = sub.name.rpartition("_")[2]
            if place == "cat":  # given events are a condition on the length
                classes = torch.arange(sub.num_classes, device=base.device)
                logits = torch.where(classes < least[:, None], NEVER, logits)
            drawn = draw(logits, numbers[:, number])
            sampler.put(number, drawn, inputs)
            length = length + drawn * (1 if place == "cat" else 10 ** int(place[1:]))
    return torch.maximum(length, least).clamp(max=most)


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """What a step reads and writes, in tensors that stay where they are."""

    subjects: torch.Tensor
    length: torch.Tensor
    start: torch.Tensor
    """Where the first event of each subject is written."""
    base: torch.Tensor
    hidden: torch.Tensor
    """(layers, subjects, width)"""
    cell: torch.Tensor
    step: torch.Tensor
    context: torch.Tensor
    """(subjects, width): what the LSTM sees of the context; width 0 where it does not."""
    who: torch.Tensor
    """The place of each subject in its block."""
    time: torch.Tensor
    """(subjects, columns with a rhythm): the date of the last event."""

    def first(self, count: int) -> _Chunk:
        """The first subjects of it."""
        many = {name: getattr(self, name)[:count] for name in ("subjects", "length", "start", "base", "context", "who", "time")}
        return _Chunk(**many, hidden=self.hidden[:, :count], cell=self.cell[:, :count], step=self.step)


def _advance(model: TabularModel, inputs: torch.Tensor, chunk: _Chunk) -> None:
    """Pass an event to the LSTM."""
    if chunk.context.shape[1]:
        inputs = torch.cat([inputs, chunk.context], -1)
    for layer, (hidden, cell) in enumerate(zip(chunk.hidden, chunk.cell, strict=True)):
        weights = [model.lstm.get_parameter(f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        inputs, state = torch.lstm_cell(inputs, (hidden, cell), *weights)
        hidden.copy_(inputs)
        cell.copy_(state)


def _make_event(
    sampler: _Sampler, chunk: _Chunk, codes: torch.Tensor, numbers: torch.Tensor, seed: int, given: _Given | None = None, *,
    is_first: bool,
) -> None:  # fmt: skip
    """Draw the next event of each subject, and write it to `codes` and `numbers`; the last row takes those beyond the lengths."""
    layout = sampler.layout
    extra = sum(clock.count_numbers for clock in sampler.clocks.values())
    drawn = uniform(seed, chunk.subjects, chunk.step, len(layout.subs) + layout.num_columns + extra)
    inputs = sampler.new_inputs(len(chunk.base))
    position = torch.zeros_like(chunk.length) + chunk.step
    for number, code in enumerate(position_codes(layout, position, chunk.length).unbind(-1)):
        if layout.subs[number].position != "slen":  # no head of data sees it
            sampler.put(number, code, inputs)
    sampler.finish(0, inputs)
    base = torch.addmm(chunk.base, chunk.hidden[-1], sampler.of_history)
    event = sampler.event(base, inputs, drawn, given, chunk, is_first=is_first)
    row = torch.where(position < chunk.length, chunk.start + position, len(codes) - 1)
    codes[row] = event.to(codes.dtype)
    numbers[row] = drawn[:, len(layout.subs) : len(layout.subs) + layout.num_columns]
    _advance(sampler.model, inputs[:, : sampler.model.seen_width], chunk)
    chunk.step.add_(1)


def _generate_events(
    sampler: _Sampler, subjects: torch.Tensor, *, seed: int, context: torch.Tensor | None, given: _Given | None,
    limits: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Sequences of events."""
    layout, count, device = sampler.layout, len(subjects), subjects.device
    least = torch.full_like(subjects, limits[0]) if given is None else given.limits[:, 0].clamp(min=limits[0])
    parts = []
    for places in _chunks(count, device):
        base = sampler.base(None if context is None else context[places], len(places))
        hidden = sampler.start(None if context is None else context[places])[1]
        base = torch.addmm(base, hidden[-1].expand(len(places), -1), sampler.of_history)
        drawn = uniform(seed, subjects[places], -1, len(layout.subs))
        first = next(number for number, sub in enumerate(layout.subs) if sub.position == "slen")
        drawn[:, first] = spread(seed, subjects[places])
        parts.append(_draw_lengths(sampler, base, drawn, least[places], min(limits[1], layout.max_length or 0)))
    lengths = torch.cat(parts)[:count]
    if given is not None:
        lengths = torch.minimum(lengths, given.limits[:, 1])
    starts = lengths.cumsum(0) - lengths
    ordered, order = lengths.sort(descending=True, stable=True)
    sizes = to_host(ordered)  # the only wait for the device
    codes = torch.empty(int(sizes.sum()) + 1, len(layout.subs) - layout.num_positions, dtype=torch.int32, device=device)
    numbers = torch.empty(len(codes), layout.num_columns, device=device)
    chunk, graph = None, None
    chunks = _chunks(count, device)
    longest = sizes[:: CHUNK[device.type]]
    for places, steps in zip(chunks, longest.tolist(), strict=True):
        if not steps:
            break
        who = order[places]
        seen, hidden, cell = sampler.start(None if context is None else context[who])
        made = _Chunk(
            subjects=subjects[who],
            # What fills the last chunk repeats a subject and writes nothing.
            length=lengths[who] * (torch.arange(len(places), device=device) < count - places[0]),
            start=starts[who],
            base=sampler.base(None if context is None else context[who], len(places)).contiguous(),
            hidden=hidden.expand(-1, len(places), -1).contiguous(),
            cell=cell.expand(-1, len(places), -1).contiguous(),
            step=torch.zeros((), dtype=torch.long, device=device),
            context=seen.expand(len(places), -1).contiguous(),
            who=who,
            time=torch.zeros(len(places), len(sampler.clocks), dtype=torch.long, device=device),
        )
        if chunk is None or device.type == "cpu":
            chunk = made
        else:
            for name in _Chunk.__dataclass_fields__:
                getattr(chunk, name).copy_(getattr(made, name))
        for step in range(steps):
            going = len(who)
            if device.type == "cpu":
                going = int(np.searchsorted(-sizes[places[0] : places[-1] + 1], -step, side="left"))
            event = None if given is None else given.event(who[:going], step)
            if device.type == "cpu":
                _make_event(sampler, chunk.first(going), codes, numbers, seed, event, is_first=step == 0)
            elif step == 0 or event is not None or longest.sum() < LEAST_REPLAYS:
                _make_event(sampler, chunk, codes, numbers, seed, event, is_first=step == 0)
            else:
                if graph is None:
                    graph = _capture(sampler, chunk, codes, numbers, seed)
                graph.replay()
    return codes[:-1], lengths, numbers[:-1]


def _capture(sampler: _Sampler, chunk: _Chunk, codes: torch.Tensor, numbers: torch.Tensor, seed: int) -> torch.cuda.CUDAGraph:
    """A later step, as a graph. Its warm-up is undone."""
    states = [state.clone() for state in (chunk.hidden, chunk.cell, chunk.step, chunk.time)]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        _make_event(sampler, chunk, codes, numbers, seed, is_first=False)
        for state, before in zip((chunk.hidden, chunk.cell, chunk.step, chunk.time), states, strict=True):
            state.copy_(before)
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            _make_event(sampler, chunk, codes, numbers, seed, is_first=False)
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph
