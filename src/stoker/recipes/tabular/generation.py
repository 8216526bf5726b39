"""Generation: new sequences of codes, one event and one sub-column after the other.

    1. The length of each sequence is drawn from its context, before its first event. Subjects are sorted by it, once.
    2. Each step draws the sub-columns of one event, given all before, and passes it to the LSTM. Sequences that have ended are a
       suffix of the batch, so a step works on a prefix whose size is known: the host waits for the device once per batch.
    3. A head reads the embeddings that are drawn so far; those to come are zero. So no mask is needed, and any order of columns works.

Random numbers are a hash of (seed, subject, step, sub-column): a subject gets the same events whatever the batch and the device.
Subjects are computed in blocks of a fixed size, because a matmul of another size may round differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from stoker._types import Array
from stoker.recipes.tabular.batches import position_codes
from stoker.recipes.tabular.model import NEVER, TabularModel

BLOCK = {"cpu": 4096, "cuda": 65536}
"""Subjects that are generated together."""
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
    """Codes of first events that are given."""

    codes: Array
    """(subjects, steps, sub-columns of data)"""
    lengths: Array
    """Given events of each subject."""
    columns: Sequence[int]
    """The given columns, by number, without that of positions."""


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Mix the bits of int64: the finalizer of SplitMix64, with logical shifts."""
    value = (value ^ ((value >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    value = (value ^ ((value >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return value ^ ((value >> 31) & 0x1FFFFFFFF)


def _wrap(value: int) -> int:
    """An integer as int64 holds it, modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63


def uniform(seed: int, subjects: torch.Tensor, step: int, count: int) -> torch.Tensor:
    """Random numbers from (0, 1], (subjects, count): a function of seed, subject, step and place alone."""
    places = torch.arange(count, device=subjects.device)
    base = _mix(_mix(subjects * _GOLDEN + _wrap(seed)) + _wrap((step + 2) * _GOLDEN))
    bits = _mix(base[:, None] + (places + 1) * _GOLDEN)
    return (((bits >> 40) & 0xFFFFFF) + 1).to(torch.float32) * 2.0**-24


def draw(logits: torch.Tensor, numbers: torch.Tensor, *, temperature: float, top_p: float) -> torch.Tensor:
    """A class for each row, by inversion: the first one whose cumulative probability reaches the number."""
    if temperature != 1.0:
        logits = logits / max(temperature, 1e-3)
    chances = torch.softmax(logits, -1)
    if top_p < 1.0:
        ordered, places = chances.sort(-1, descending=True)
        is_kept = ordered.cumsum(-1) - ordered <= top_p
        chances = torch.zeros_like(chances).scatter(-1, places, ordered * is_kept)
    total = chances.cumsum(-1)
    return (total < numbers[:, None] * total[:, -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)


class _Sampler:
    """The heads of a model, one by one."""

    def __init__(self, model: TabularModel, never: Mapping[int, Sequence[int]], *, temperature: float, top_p: float) -> None:
        layout = model.layout
        self.model, self.layout = model, layout
        self._options = {"temperature": temperature, "top_p": top_p}
        free = layout.context_width + layout.history_width
        self.free_weight = model.first_weight[:, :free]
        seen = model.first_weight[:, free:]
        self.heads = {}
        for group_number, group in enumerate(model._head_groups):
            for member, number in enumerate(group.members):
                sub = layout.subs[number]
                begin, end = model.rows[number]
                bias = model.out_biases[group_number][member, 0, : sub.num_classes].clone()
                bias[list(never.get(number, ()))] = NEVER
                weight = model.out_weights[group_number][member, : sub.hidden[-1], : sub.num_classes]
                second = None
                if layout.size == "l":
                    second = (
                        model.second_weights[group_number][member, : sub.hidden[0], : sub.hidden[1]],
                        model.second_biases[group_number][member, 0, : sub.hidden[1]],
                    )
                self.heads[number] = (slice(begin, end), seen[begin:end].t().contiguous(), second, weight, bias)
        self.tables = {}
        """The embedding of each sub-column, as a table of its own."""
        for group, table in zip(model._groups, model.embeddings, strict=True):
            first = 0
            for number in group.members:
                sub = layout.subs[number]
                self.tables[number] = table[first : first + sub.num_classes, : sub.width].contiguous()
                first += sub.num_classes

    def new_inputs(self, count: int) -> torch.Tensor:
        """Embeddings and compressed columns of an event of which nothing is known."""
        width = self.model.num_inputs - self.free_weight.shape[1]
        return self.free_weight.new_zeros(count, width)

    def logits(self, number: int, base: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """The logits of a sub-column, given the context and history (`base`) and what is drawn so far (`inputs`)."""
        rows, seen, second, weight, bias = self.heads[number]
        hidden = torch.addmm(base[:, rows], inputs, seen)
        if second is not None:
            hidden = torch.addmm(second[1], hidden, second[0])
        return torch.addmm(bias, torch.relu(hidden), weight)

    def sample(self, number: int, base: torch.Tensor, inputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Draw a sub-column."""
        return draw(self.logits(number, base, inputs), numbers, **self._options)

    def put(self, number: int, codes: torch.Tensor, inputs: torch.Tensor) -> None:
        """Write the embedding of a drawn sub-column."""
        inputs[:, slice(*self.model.place[number])] = F.embedding(codes, self.tables[number])

    def finish(self, column: int, inputs: torch.Tensor) -> None:
        """Compress a column that is complete, for the heads of others."""
        if column in self.model.column_at:
            begin, end = self.model.column_at[column]
            rows = slice(begin - self.model.width, end - self.model.width)
            weight = (self.model.column_weight * self.model.column_mask)[rows]
            inputs[:, begin:end] = F.linear(inputs[:, : self.model.width], weight, self.model.column_bias[rows])


@torch.no_grad()
def generate_codes(
    model: TabularModel,
    num_subjects: int,
    *,
    seed: int,
    context: Array | None = None,
    never: Mapping[int, Sequence[int]] | None = None,
    given: GivenCodes | None = None,
    lengths: tuple[int, int] = (0, 2**31),
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> GeneratedCodes:
    """Generate codes of new subjects.

    Args:
        model: A trained model.
        num_subjects: How many.
        seed: Of all random numbers.
        context: Codes of the context, (subjects, sub-columns).
        never: Classes that are not generated, by sub-column.
        given: First events that are given, or columns of them.
        lengths: The shortest and the longest sequence.
        temperature: Below 1 makes likely classes likelier; it does not act on lengths.
        top_p: Draw from the likeliest classes that together have this probability; it does not act on lengths.
    """
    was_training = model.training
    model.eval()
    device = model.first_weight.device
    block = BLOCK[device.type]
    sampler = _Sampler(model, never or {}, temperature=temperature, top_p=top_p)
    plain = _Sampler(model, never or {}, temperature=1.0, top_p=1.0)  # for lengths
    parts = []
    for first in range(0, num_subjects, block):
        subjects = torch.arange(first, min(first + block, num_subjects), device=device)
        own = None if context is None else torch.from_numpy(context[first : first + block]).to(device)
        seeds = None if given is None else _part(given, first, first + block, device)
        generate = _generate_events if model.layout.is_sequence else _generate_rows
        parts.append(generate(sampler, plain, subjects, seed=seed, context=own, given=seeds, limits=lengths))
    model.train(was_training)
    codes, sizes, numbers = (np.concatenate(one) for one in zip(*parts, strict=True)) if parts else _nothing(model)
    return GeneratedCodes(codes=codes, lengths=sizes, uniform=numbers)


def _nothing(model: TabularModel) -> tuple[Array, Array, Array]:
    width = len(model.layout.subs) - model.layout.num_positions
    return np.zeros((0, width), np.int64), np.zeros(0, np.int64), np.zeros((0, model.layout.num_columns))


Given = tuple[torch.Tensor, torch.Tensor, Sequence[int]]


def _part(given: GivenCodes, first: int, last: int, device: torch.device) -> Given:
    codes, lengths = torch.from_numpy(given.codes[first:last]), torch.from_numpy(given.lengths[first:last])
    return codes.to(device), lengths.to(device), given.columns


def _base(sampler: _Sampler, context: torch.Tensor | None, count: int) -> torch.Tensor:
    """The part of all first layers that the context gives."""
    bias = sampler.model.first_bias.expand(count, -1)
    if context is None:
        return bias
    width = sampler.layout.context_width
    return torch.addmm(bias, sampler.model.encode_context(context), sampler.free_weight[:, :width].t())


def _draw_event(
    sampler: _Sampler, base: torch.Tensor, inputs: torch.Tensor, numbers: torch.Tensor, given: Given | None, step: int
) -> torch.Tensor:
    """Draw the data of one event; the given columns come first. Returns codes (subjects, sub-columns of data)."""
    layout = sampler.layout
    first, skipped = int(layout.is_sequence), layout.num_positions
    columns = list(range(first, layout.num_columns))
    known: list[int] = [] if given is None else [one + first for one in given[2]]
    columns.sort(key=lambda one: one not in known)  # stable: otherwise the order of the table
    codes = torch.zeros(len(base), len(layout.subs) - skipped, dtype=torch.long, device=base.device)
    for column in columns:
        for number in layout.of_column(column):
            if layout.subs[number].moment == ("later" if step == 0 else "first"):
                sampler.put(number, codes[:, number - skipped], inputs)  # which is 0
                continue
            found = sampler.sample(number, base, inputs, numbers[:, number - skipped])
            if given is not None and column in known and step < given[0].shape[1]:
                found = torch.where(given[1] > step, given[0][:, step, number - skipped], found)
            codes[:, number - skipped] = found
            sampler.put(number, found, inputs)
        sampler.finish(column, inputs)
    return codes


def _generate_rows(
    sampler: _Sampler, plain: _Sampler, subjects: torch.Tensor, *, seed: int, context: torch.Tensor | None, given: Given | None,
    limits: tuple[int, int],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """One row per subject."""
    layout, count = sampler.layout, len(subjects)
    numbers = uniform(seed, subjects, 0, len(layout.subs) + layout.num_columns)
    codes = _draw_event(sampler, _base(sampler, context, count), sampler.new_inputs(count), numbers, given, 0)
    open_numbers = numbers[:, len(layout.subs) :] * (1 - 2.0**-24)
    return codes.cpu().numpy(), np.ones(count, np.int64), open_numbers.double().cpu().numpy()


def _draw_lengths(
    plain: _Sampler, base: torch.Tensor, numbers: torch.Tensor, least: torch.Tensor, limits: tuple[int, int]
) -> torch.Tensor:
    """The length of each sequence, from the heads of `slen`."""
    layout = plain.layout
    inputs = plain.new_inputs(len(base))
    zero = torch.zeros(len(base), dtype=torch.long, device=base.device)
    length = zero
    for number, sub in enumerate(layout.subs[: layout.num_positions]):
        if sub.position == "sidx":
            plain.put(number, zero, inputs)
        elif sub.position == "slen":
            logits = plain.logits(number, base, inputs)
            place = sub.name.rpartition("_")[2]
            if place == "cat":  # given events are a condition on the length
                classes = torch.arange(sub.num_classes, device=base.device)
                logits = torch.where(classes < least[:, None], NEVER, logits)
            found = draw(logits, numbers[:, number], temperature=1.0, top_p=1.0)
            plain.put(number, found, inputs)
            length = length + found * (1 if place == "cat" else 10 ** int(place[1:]))
    return torch.maximum(length, least).clamp(max=min(limits[1], layout.max_length or 0))


def _generate_events(
    sampler: _Sampler, plain: _Sampler, subjects: torch.Tensor, *, seed: int, context: torch.Tensor | None, given: Given | None,
    limits: tuple[int, int],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Sequences of events."""
    model, layout, count = sampler.model, sampler.layout, len(subjects)
    skipped, of_history = layout.num_positions, sampler.free_weight[:, layout.context_width :].t().contiguous()
    base = _base(sampler, context, count)
    blank = base.new_zeros(count, 1, model.seen_width)
    output, state = model.lstm(blank)
    least = torch.full_like(subjects, limits[0]) if given is None else given[1].clamp(min=limits[0])
    first_base = torch.addmm(base, output[:, 0], of_history)
    length = _draw_lengths(plain, first_base, uniform(seed, subjects, -1, len(layout.subs)), least, limits)
    length, order = length.sort(descending=True, stable=True)
    subjects, base = subjects[order], base[order]
    if given is not None:
        given = (given[0][order], given[1][order], given[2])
    sizes = length.cpu().numpy()  # the only wait for the device
    active = np.searchsorted(-sizes, -np.arange(int(sizes.max(initial=0))), side="left")  # of each step, those that continue
    output, (hidden, cell) = output[order], (state[0][:, order], state[1][:, order])
    codes, numbers = [], []
    for step, going in enumerate(active.tolist()):
        hidden, cell = hidden[:, :going].contiguous(), cell[:, :going].contiguous()
        drawn = uniform(seed, subjects[:going], step, len(layout.subs) + layout.num_columns)
        inputs = sampler.new_inputs(going)
        position = torch.full_like(length[:going], step)
        for number, code in enumerate(position_codes(layout, position, length[:going]).unbind(-1)):
            if layout.subs[number].position != "slen":  # no head of data sees it
                sampler.put(number, code, inputs)
        sampler.finish(0, inputs)
        now = torch.addmm(base[:going], output[:going, 0], of_history)
        own = None if given is None else (given[0][:going], given[1][:going], given[2])
        found = _draw_event(sampler, now, inputs, drawn, own, step)
        codes.append(found)
        numbers.append(drawn[:, len(layout.subs) :])
        output, (hidden, cell) = model.lstm(inputs[:, None, : model.seen_width], (hidden, cell))
    return _in_order(codes, numbers, sizes, order.cpu().numpy(), active, layout.num_columns, len(layout.subs) - skipped)


def _in_order(
    codes: list[torch.Tensor], numbers: list[torch.Tensor], sizes: Array, order: Array, active: Array, columns: int, width: int
) -> tuple[Array, Array, Array]:
    """Events step by step, of subjects by length, as events subject by subject."""
    lengths = np.zeros_like(sizes)
    lengths[order] = sizes
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    if not total:
        return np.zeros((0, width), np.int64), lengths, np.zeros((0, columns))
    place = np.concatenate([starts[order[:going]] + step for step, going in enumerate(active.tolist())])
    found = np.empty((total, width), np.int32)
    found[place] = torch.cat(codes).to(torch.int32).cpu().numpy()
    drawn = np.empty((total, columns))
    drawn[place] = torch.cat(numbers).cpu().numpy() * (1 - 2.0**-24)
    return found, lengths, drawn
