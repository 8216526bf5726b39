"""The model: embeddings, the history of events, and one head per sub-column, computed together.

    context     one linear layer over the embeddings of the context                                   (subjects, width)
    history     an LSTM over the embeddings of the events before [and the context]                    (subjects, steps, width)
    X           [context; history; embeddings of all sub-columns; compressed columns]
    Z           X times the first layers of all heads, masked by the order of columns: one matmul
    logits      a batched matmul and a cross-entropy per group of heads

It computes what TabularARGN does; `load_upstream` and `upstream_weights` convert weights. Dropout differs: heads share the mask of an input
instead of drawing one each, and the context has none. A layout with `feeds_context` is another function: its LSTM sees the context, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.tabular.layout import DROPOUT, ModelLayout

WEIGHTS = ("", "slen", "ridx", "first", "later")
"""The weights that the losses of sub-columns have: data, lengths, steps left, data of first events, data of later ones."""
WAVES = 10
"""Cosines that the last layer of a head begins with, where its classes are in order."""
CONTEXT_INPUT = "weight_context_l0"
"""The name of the weights by which the LSTM sees the context, which TabularARGN does not have."""
NEVER = -1e30
"""The logit of a class that a head does not have."""


class TabularModel(nn.Module):
    """Predicts every sub-column from those before it.

    Args:
        layout: Columns and widths.
        seed: Of the initial weights.
    """

    def __init__(self, layout: ModelLayout, *, seed: int = 0) -> None:
        super().__init__()
        self.layout = layout
        self.is_plain = False
        """Whether the LSTM is computed by plain operations, of which `torch.func` knows the gradients of single subjects."""
        self.context_offsets: torch.Tensor
        self.column_mask: torch.Tensor
        self.head_of_row: torch.Tensor
        self.source: torch.Tensor
        self.own: torch.Tensor
        self.others: torch.Tensor
        self.column_of: torch.Tensor
        self.weight_of: torch.Tensor
        self._groups, num_seen = layout.embedding_groups()
        self._head_groups = layout.head_groups()
        at, self.place = 0, {}
        """Where the embedding of a sub-column lies in the concatenated ones."""
        offsets = {}
        for group in self._groups:
            first = 0
            for number in group.members:
                self.place[number] = (at, at + layout.subs[number].width)
                offsets[number] = first
                first += layout.subs[number].num_classes
                at += group.width
        self.width = at
        self.seen_width = sum(len(group.members) * group.width for group in self._groups[:num_seen])
        """The part of the embeddings that the history sees."""
        self.column_at: dict[int, tuple[int, int]] = {}
        """Where a compressed column lies behind the embeddings."""
        for column, width in layout.compressed.items():
            self.column_at[column] = (at, at + width)
            at += width
        self.num_inputs = layout.context_width + layout.history_width + at
        rows = 0
        self.rows: dict[int, tuple[int, int]] = {}
        """Where the head of a sub-column lies among the outputs of the first layer."""
        for group in self._head_groups:
            for number in group.members:
                self.rows[number] = (rows, rows + layout.subs[number].hidden[0])
                rows += self._first_width(group.members)
        self.num_rows = rows
        self._make_parameters()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.load_upstream(_initial_weights(layout))
        members = [torch.tensor(group.members) for group in self._groups]
        self._register("members", members)
        self._register("offsets", [torch.tensor([offsets[number] for number in group.members]) for group in self._groups])
        self._register("heads", [torch.tensor(group.members) for group in self._head_groups])
        self._make_masks()

    def _first_width(self, members: Sequence[int]) -> int:
        return max(self.layout.subs[number].hidden[0] for number in members)

    def _register(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"{name}_{number}", tensor, persistent=False)

    def _make_parameters(self) -> None:
        layout = self.layout
        self.embeddings = nn.ParameterList(
            torch.zeros(sum(layout.subs[number].num_classes for number in group.members), group.width) for group in self._groups
        )
        if layout.context:
            offsets = np.cumsum([0] + [sub.num_classes for sub in layout.context])
            self.context_widest = max(sub.width for sub in layout.context)
            self.context_embedding = nn.Parameter(torch.zeros(int(offsets[-1]), self.context_widest))
            self.context_weight = nn.Parameter(torch.zeros(layout.context_width, len(layout.context) * self.context_widest))
            self.context_bias = nn.Parameter(torch.zeros(layout.context_width))
            self.register_buffer("context_offsets", torch.tensor(offsets[:-1]), persistent=False)
        if layout.history:
            layers = len(layout.history)
            width = self.seen_width + (layout.context_width if layout.feeds_context else 0)
            self.lstm = nn.LSTM(width, layout.history[-1], layers, dropout=DROPOUT if layers > 1 else 0.0, batch_first=True)
            nn.init.zeros_(self.lstm.get_parameter("weight_ih_l0"))  # where padding meets it, it must stay so
        if layout.compressed:
            self.column_weight = nn.Parameter(torch.zeros(sum(layout.compressed.values()), self.width))
            self.column_bias = nn.Parameter(torch.zeros(sum(layout.compressed.values())))
        self.first_weight = nn.Parameter(torch.zeros(self.num_rows, self.num_inputs))
        self.first_bias = nn.Parameter(torch.zeros(self.num_rows))
        self.second_weights = nn.ParameterList()
        self.second_biases = nn.ParameterList()
        self.out_weights = nn.ParameterList()
        self.out_biases = nn.ParameterList()
        for group in self._head_groups:
            if layout.size == "l":
                self.second_weights.append(torch.zeros(len(group.members), self._first_width(group.members), group.width))
                self.second_biases.append(torch.zeros(len(group.members), 1, group.width))
            self.out_weights.append(torch.zeros(len(group.members), group.width, group.classes))
            self.out_biases.append(torch.zeros(len(group.members), 1, group.classes))

    def _make_masks(self) -> None:
        """What never changes of the mask: which sub-column a row and an input belong to, and what heads see of their own column."""
        layout, subs = self.layout, self.layout.subs
        count = len(subs) + len(self.column_at)
        head_of_row = torch.zeros(self.num_rows, dtype=torch.long)
        for number, (begin, _) in self.rows.items():
            head_of_row[begin:] = number  # a head's rows, and the padding behind them
        # An input is part of a sub-column's embedding, or of a compressed column.
        source = torch.zeros(self.num_inputs - layout.context_width - layout.history_width, dtype=torch.long)
        for number, place in enumerate([*(self.place[number] for number in range(len(subs))), *self.column_at.values()]):
            source[slice(*place)] = number
        seen = torch.zeros(len(subs), count, dtype=torch.bool)
        for head in range(len(subs)):
            for other in range(len(subs)):
                seen[head, other] = layout.sees(head, other)
        others = [sub.position != "slen" and sub.column not in layout.compressed for sub in subs] + [True] * len(self.column_at)
        weight_of = [0 if sub.position == "sidx" else WEIGHTS.index(sub.position or sub.moment) for sub in subs]
        column_of = [sub.column for sub in subs] + list(self.column_at)
        buffers = {
            "head_of_row": head_of_row, "source": source, "own": seen, "others": torch.tensor(others),
            "column_of": torch.tensor(column_of), "weight_of": torch.tensor(weight_of),
        }  # fmt: skip
        if layout.compressed:
            buffers["column_mask"] = torch.zeros(sum(layout.compressed.values()), self.width)
            for column, (begin, end) in self.column_at.items():
                for number in layout.of_column(column):
                    if subs[number].position != "slen":
                        buffers["column_mask"][begin - self.width : end - self.width, slice(*self.place[number])] = 1
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)
        absent = []
        for group in self._head_groups:
            absent.append(torch.zeros(len(group.members), 1, group.classes))
            for member, number in enumerate(group.members):
                absent[-1][member, 0, subs[number].num_classes :] = NEVER
        self._register("absent", absent)

    # ---- parts ----

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """The embeddings of codes (..., sub-columns)."""
        embedded = []
        for number, table in enumerate(self.embeddings):
            members, offsets = getattr(self, f"members_{number}"), getattr(self, f"offsets_{number}")
            embedded.append(F.embedding(codes[..., members] + offsets, table).flatten(-2))
        return torch.cat(embedded, -1)

    def encode_context(self, codes: torch.Tensor) -> torch.Tensor:
        """The context of subjects, of codes (subjects, sub-columns)."""
        embedded = F.embedding(codes + self.context_offsets, self.context_embedding).flatten(-2)
        return F.linear(embedded, self.context_weight, self.context_bias)

    def compress(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Compressed columns, where there are some."""
        return F.linear(embeddings, self.column_weight * self.column_mask, self.column_bias)

    def first_mask(self, rank: torch.Tensor) -> torch.Tensor:
        """Which embeddings each row of the first layer sees, where columns come by rank."""
        before = rank[self.column_of][None, :] < rank[self.column_of[: len(self.own)]][:, None]
        visible = self.own | (before & self.others)
        return visible[self.head_of_row][:, self.source].to(self.first_weight.dtype)

    def hidden(self, codes: torch.Tensor, rank: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        """The outputs of the first layers of all heads, of codes (subjects, [steps,] sub-columns)."""
        return self.first_layers(self.first_inputs(codes, context), rank)

    def first_layers(self, inputs: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
        """The outputs of the first layers of all heads, of what `first_inputs` gives, where columns come by rank."""
        free = self.layout.context_width + self.layout.history_width
        seen = self.first_weight[:, free:] * self.first_mask(rank)
        weight = torch.cat([self.first_weight[:, :free], seen], 1) if free else seen
        return F.linear(inputs, weight, self.first_bias)

    def first_inputs(self, codes: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        """Context, history and embeddings, of codes (subjects, [steps,] sub-columns); after dropout in training."""
        layout = self.layout
        embeddings = self.embed(codes)
        encoded = None if context is None else self.encode_context(context)
        if encoded is not None and layout.is_sequence:
            encoded = encoded[:, None].expand(-1, codes.shape[1], -1)
        inputs = []
        if layout.is_sequence:
            before = F.pad(embeddings[:, :-1, : self.seen_width], (0, 0, 1, 0))
            before = F.dropout(before, DROPOUT, self.training)
            inputs.append(
                self.history(torch.cat([before, encoded], -1) if layout.feeds_context and encoded is not None else before)
            )
        inputs.append(embeddings)
        if layout.compressed:
            inputs.append(self.compress(embeddings))
        dropped = F.dropout(torch.cat(inputs, -1), DROPOUT, self.training)
        # A context has few values, which all its events depend on: without those that dropout takes they would not be learned.
        return dropped if encoded is None else torch.cat([encoded, dropped], -1)

    def history(self, before: torch.Tensor) -> torch.Tensor:
        """The outputs of the LSTM, of the events before each step, with the context where it sees it."""
        if not self.is_plain:
            result: torch.Tensor = self.lstm(before)[0]
            return result
        for layer in range(len(self.layout.history)):
            names = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
            weight, bias, again, again_bias = (getattr(self.lstm, f"{name}_l{layer}") for name in names)
            before = F.dropout(before, DROPOUT, self.training and layer > 0)
            of_inputs, outputs = F.linear(before, weight, bias + again_bias), []
            hidden = cell = before.new_zeros(len(before), again.shape[1])
            for step in of_inputs.unbind(1):
                take, keep, new, show = (step + F.linear(hidden, again)).chunk(4, -1)
                cell = torch.sigmoid(keep) * cell + torch.sigmoid(take) * torch.tanh(new)
                hidden = torch.sigmoid(show) * torch.tanh(cell)
                outputs.append(hidden)
            before = torch.stack(outputs, 1)
        return before

    def last_inputs(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """The inputs (heads, rows, width) of the last layers of each group, of outputs (rows, first layers)."""
        inputs, at = [], 0
        for number, group in enumerate(self._head_groups):
            width = self._first_width(group.members)
            end = at + width * len(group.members)
            hidden_of = hidden[:, at:end].reshape(len(hidden), len(group.members), width).transpose(0, 1)
            if self.layout.size == "l":
                hidden_of = F.dropout(hidden_of, DROPOUT, self.training)
                hidden_of = torch.baddbmm(self.second_biases[number], hidden_of, self.second_weights[number])
            inputs.append(torch.relu(hidden_of))
            at = end
        return inputs

    def last_layers(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Logits (heads, rows, classes) of each group, of the inputs of its last layers."""
        biases = [bias + getattr(self, f"absent_{number}") for number, bias in enumerate(self.out_biases)]
        return [torch.baddbmm(*parts) for parts in zip(biases, inputs, self.out_weights, strict=True)]

    def heads(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Logits (heads, rows, classes) of each group, of outputs (rows, first layers)."""
        return self.last_layers(self.last_inputs(hidden))

    def logits(self, codes: torch.Tensor, rank: torch.Tensor, context: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The logits of every sub-column by name, for codes (subjects, [steps,] sub-columns) and the ranks of columns."""
        hidden = self.hidden(codes, rank, context)
        logits = {}
        for group, many in zip(self._head_groups, self.heads(hidden.flatten(0, -2)), strict=True):
            for member, number in enumerate(group.members):
                sub = self.layout.subs[number]
                logits[sub.name] = many[member, :, : sub.num_classes].reshape(*codes.shape[:-1], sub.num_classes)
        return logits

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch: cross-entropies of all sub-columns times their `weights`, summed. See `batches.assemble`."""
        codes = batch["codes"].long()
        context = batch["context"].long() if "context" in batch else None
        hidden = self.hidden(codes, batch["rank"], context).flatten(0, -2)
        flat, weights = codes.flatten(0, -2), batch["weights"].flatten(0, -2)
        total = hidden.new_zeros(())
        for number, many in enumerate(self.heads(hidden)):
            members = getattr(self, f"heads_{number}")
            losses = F.cross_entropy(many.flatten(0, 1), flat[:, members].t().flatten(), reduction="none")
            total = total + (losses * self.weights_of(weights, members).flatten()).sum()
        return total

    def weights_of(self, weights: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
        """The weights (heads, rows) of a group: `weights` has one column, or for sequences those of `WEIGHTS`."""
        if not self.layout.is_sequence:
            return weights.t().expand(len(members), -1)
        return weights.t()[self.weight_of[members]]

    # ---- weights in the names of TabularARGN ----

    @torch.no_grad()
    def load_upstream(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take weights of TabularARGN, by its names.

        Raises:
            OptionError: A weight is missing, or has another shape.
        """
        for name, view in self._views():
            if name not in weights:
                raise OptionError(f"the weights have no {name!r}; expected those of a model with the same columns and size.")
            view.put(weights[name].to(self.first_weight), name)

    def upstream_weights(self) -> dict[str, torch.Tensor]:
        """The weights by the names of TabularARGN; what nothing reads is zero."""
        return {name: view.get() for name, view in self._views()}

    def _views(self) -> list[tuple[str, Any]]:
        """Where each weight of TabularARGN lies in the fused ones."""
        layout, views = self.layout, []
        for group, table in zip(self._groups, self.embeddings, strict=True):
            first = 0
            for number in group.members:
                sub = layout.subs[number]
                name = f"embedders.embedders.embedder@{sub.name}.weight"
                views.append((name, _View(table[first : first + sub.num_classes, : sub.width])))
                first += sub.num_classes
        if layout.context:
            base = "context_compressor.flat_context_compressor"
            first, columns = 0, []
            for number, sub in enumerate(layout.context):
                rows = self.context_embedding[first : first + sub.num_classes, : sub.width]
                views.append((f"{base}.embedders.embedders.embedder@{sub.name}.weight", _View(rows)))
                begin = number * self.context_widest
                columns.append((begin, begin + sub.width))
                first += sub.num_classes
            views.append((f"{base}.compressor_layers.flat_context@.0.weight", _View(self.context_weight, columns)))
            views.append((f"{base}.compressor_layers.flat_context@.0.bias", _View(self.context_bias)))
        if layout.history:
            base = "history_compressor.compressor_layers.history@"
            seen = [None if sub.position in ("slen", "ridx") else self.place[n] for n, sub in enumerate(layout.subs)]
            widths = [sub.width for sub in layout.subs]
            for name, weight in self.lstm.named_parameters():
                view = _View(weight, seen, widths) if name == "weight_ih_l0" else _View(weight)
                views.append((f"{base}.{name}", view))
            if layout.feeds_context:
                views.append((f"{base}.{CONTEXT_INPUT}", _View(self.lstm.get_parameter("weight_ih_l0")[:, self.seen_width :])))
        names = [f"column_embedder@{_column_name(layout, column)}" for column in layout.compressed]
        for name, column in zip(names, layout.compressed, strict=True):
            begin, end = (edge - self.width for edge in self.column_at[column])
            inside = [self.place[number] for number in layout.of_column(column)]
            base = f"column_embedders.column_embedders.{name}"
            views.append((f"{base}.weight", _View(self.column_weight[begin:end], inside)))
            views.append((f"{base}.bias", _View(self.column_bias[begin:end])))
        return views + self._head_views()

    def _head_views(self) -> list[tuple[str, Any]]:
        layout, views = self.layout, []
        free = layout.context_width + layout.history_width
        for group_number, group in enumerate(self._head_groups):
            for member, number in enumerate(group.members):
                sub = layout.subs[number]
                begin, end = self.rows[number]
                columns: list[tuple[int, int] | None] = [(0, free)] if free else []
                widths = [free] if free else []
                for column in range(layout.num_columns):
                    # A head never sees the finished column that it is part of.
                    if column in layout.compressed:
                        place = self.column_at[column]
                        columns.append(None if column == sub.column else (free + place[0], free + place[1]))
                        widths.append(place[1] - place[0])
                        continue
                    for other in layout.of_column(column):
                        place = self.place[other]
                        columns.append(None if column == sub.column else (free + place[0], free + place[1]))
                        widths.append(place[1] - place[0])
                for other in layout.of_column(sub.column):
                    if other < number:
                        columns.append((free + self.place[other][0], free + self.place[other][1]))
                        widths.append(layout.subs[other].width)
                base = f"regressors.regressors.regressor@{sub.name}"
                views.append((f"{base}.0.weight", _View(self.first_weight[begin:end], columns, widths)))
                views.append((f"{base}.0.bias", _View(self.first_bias[begin:end])))
                if layout.size == "l":
                    second = self.second_weights[group_number][member, : sub.hidden[0], : sub.hidden[1]].t()
                    views.append((f"{base}.1.weight", _View(second)))
                    views.append((f"{base}.1.bias", _View(self.second_biases[group_number][member, 0, : sub.hidden[1]])))
                out = self.out_weights[group_number][member, : sub.hidden[-1], : sub.num_classes].t()
                views.append((f"predictors.predictors.{sub.name}.weight", _View(out)))
                bias = self.out_biases[group_number][member, 0, : sub.num_classes]
                views.append((f"predictors.predictors.{sub.name}.bias", _View(bias)))
        return views


def _column_name(layout: ModelLayout, column: int) -> str:
    return layout.subs[layout.of_column(column)[0]].name.rpartition("__")[0]


class _View:
    """A weight of TabularARGN inside a fused one: all of it, or blocks of columns. A block without a place is zero and not read."""

    def __init__(
        self, weight: torch.Tensor, places: Sequence[tuple[int, int] | None] | None = None, widths: Sequence[int] | None = None
    ) -> None:
        self.weight, self.places = weight, places
        self.widths = list(widths or [place[1] - place[0] for place in places or () if place is not None])

    def put(self, values: torch.Tensor, name: str) -> None:
        """Write the weight."""
        shape = tuple(self.weight.shape) if self.places is None else (self.weight.shape[0], sum(self.widths))
        if tuple(values.shape) != shape:
            raise OptionError(f"the weight {name!r} has the shape {tuple(values.shape)}; expected {shape}.")
        if self.places is None:
            self.weight.copy_(values)
            return
        at = 0
        for place, width in zip(self.places, self.widths, strict=True):
            if place is not None:
                self.weight[:, slice(*place)].copy_(values[:, at : at + width])
            at += width

    def get(self) -> torch.Tensor:
        """Read the weight."""
        if self.places is None:
            return self.weight.detach().clone().contiguous()
        rows = self.weight.shape[0]
        parts = [
            self.weight.new_zeros(rows, width) if place is None else self.weight.detach()[:, slice(*place)]
            for place, width in zip(self.places, self.widths, strict=True)
        ]
        return torch.cat(parts, -1)


def _initial_weights(layout: ModelLayout) -> dict[str, torch.Tensor]:
    """The initial weights of TabularARGN: those of PyTorch's layers, and Xavier's for the last ones."""
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        layer = nn.Linear(inputs, outputs)
        weights[f"{name}.weight"], weights[f"{name}.bias"] = layer.weight.detach(), layer.bias.detach()

    flat = "context_compressor.flat_context_compressor"
    for sub in layout.context:
        weights[f"{flat}.embedders.embedders.embedder@{sub.name}.weight"] = torch.randn(sub.num_classes, sub.width)
    if layout.context:
        linear(f"{flat}.compressor_layers.flat_context@.0", sum(sub.width for sub in layout.context), layout.context_width)
    for sub in layout.subs:
        weights[f"embedders.embedders.embedder@{sub.name}.weight"] = torch.randn(sub.num_classes, sub.width)
    for column, width in layout.compressed.items():
        inputs = sum(layout.subs[number].width for number in layout.of_column(column))
        linear(f"column_embedders.column_embedders.column_embedder@{_column_name(layout, column)}", inputs, width)
    if layout.history:
        lstm = nn.LSTM(sum(sub.width for sub in layout.subs), layout.history[-1], len(layout.history))
        for name, weight in lstm.named_parameters():
            weights[f"history_compressor.compressor_layers.history@.{name}"] = weight.detach()
        if layout.feeds_context:
            weight = torch.randn(4 * layout.history[0], layout.context_width) * (0.3 / layout.context_width**0.5)
            weights[f"history_compressor.compressor_layers.history@.{CONTEXT_INPUT}"] = weight
    for sub in layout.subs:
        inputs = sub.inputs
        for number, width in enumerate(sub.hidden):
            linear(f"regressors.regressors.regressor@{sub.name}.{number}", inputs, width)
            inputs = width
        if sub.hidden:
            linear(f"predictors.predictors.{sub.name}", inputs, sub.num_classes)
            nn.init.xavier_uniform_(weights[f"predictors.predictors.{sub.name}.weight"])
    return weights


@torch.no_grad()
def set_order(model: TabularModel, ordered: Mapping[str, int]) -> None:
    """Let classes that are next to each other begin with similar weights, so that a model need not learn each of them on its own.

    Embeddings become the first cosines over the classes, and the weights of last layers random sums of these.

    Args:
        model: The model.
        ordered: The sub-columns whose classes are in the order of values, from this class on.
    """
    views, flat = dict(model._views()), "context_compressor.flat_context_compressor."
    for name, first in ordered.items():
        for view_name in (f"embedders.embedders.embedder@{name}.weight", f"predictors.predictors.{name}.weight"):
            view_name = view_name if view_name in views else flat + view_name
            if view_name not in views:
                continue
            weight = views[view_name].get()
            count, is_last = len(weight) - first, "predictors" in view_name
            waves = torch.arange(1, 1 + (min(count, WAVES) if is_last else weight.shape[1]), device=weight.device)
            places = (torch.arange(count, device=weight.device) + 0.5) / max(count, 1)
            cosines = 2**0.5 * torch.cos(torch.pi * places[:, None] * waves)
            mixed = cosines @ weight[first : first + len(waves)] / len(waves) ** 0.5 if is_last else cosines
            weight[first:] = mixed[:, : weight.shape[1]]
            views[view_name].put(weight, view_name)


@torch.no_grad()
def set_frequencies(model: TabularModel, counts: Mapping[int, Array]) -> None:
    """Let every head begin with the frequencies of its classes.

    Args:
        model: The model.
        counts: How often each class of a sub-column occurs, by the number of the sub-column. Equal parts of 1 are added. TabularARGN
            adds 1 to each, which is 11 % of 50 lengths of 400 sequences.
    """
    views = dict(model._views())
    for number, count_of in counts.items():
        name = f"predictors.predictors.{model.layout.subs[number].name}.bias"
        if name in views:
            smooth = count_of + 1.0 / len(count_of)
            views[name].put(torch.from_numpy(np.log(smooth / smooth.sum())).to(model.first_weight), name)
