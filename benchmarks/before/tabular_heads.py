"""The usual formulation of TabularARGN: an embedding, an input and two layers per sub-column, one sub-column after the other.

Written from the description of the model, without its package. Weights have the names of the package.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from stoker_recipes.tabular.layout import DROPOUT, ModelLayout
from stoker_recipes.tabular.model import WEIGHTS


class PlainModel(nn.Module):
    def __init__(self, layout: ModelLayout) -> None:
        super().__init__()
        self.layout = layout
        self.embed = nn.ModuleDict({sub.name: nn.Embedding(sub.num_classes, sub.width) for sub in layout.subs})
        self.context_embed = nn.ModuleDict({sub.name: nn.Embedding(sub.num_classes, sub.width) for sub in layout.context})
        if layout.context:
            self.context = nn.Linear(sum(sub.width for sub in layout.context), layout.context_width)
        if layout.history:
            inputs, layers = sum(sub.width for sub in layout.subs), len(layout.history)
            self.history = nn.LSTM(inputs, layout.history[-1], layers, dropout=DROPOUT * (layers > 1), batch_first=True)
        self.compress = nn.ModuleDict()
        for column, width in layout.compressed.items():
            self.compress[str(column)] = nn.Linear(sum(layout.subs[n].width for n in layout.of_column(column)), width)
        self.regress, self.predict = nn.ModuleDict(), nn.ModuleDict()
        for sub in layout.subs:
            if sub.hidden:
                widths = [sub.inputs, *sub.hidden]
                self.regress[sub.name] = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
                self.predict[sub.name] = nn.Linear(widths[-1], sub.num_classes)
        self.drop = nn.Dropout(DROPOUT)

    def load(self, weights: dict[str, torch.Tensor]) -> PlainModel:
        """Take weights by the names of the package."""
        flat = "context_compressor.flat_context_compressor"
        own = self.state_dict()
        for name in own:
            part, _, rest = name.partition(".")
            sub, _, kind = rest.rpartition(".")
            if part == "compress":
                first = self.layout.subs[self.layout.of_column(int(sub))[0]].name.rpartition("__")[0]
                theirs = f"column_embedders.column_embedders.column_embedder@{first}.{kind}"
            else:
                theirs = {
                    "embed": f"embedders.embedders.embedder@{rest}",
                    "context_embed": f"{flat}.embedders.embedders.embedder@{rest}",
                    "context": f"{flat}.compressor_layers.flat_context@.0.{rest}",
                    "history": f"history_compressor.compressor_layers.history@.{rest}",
                    "regress": f"regressors.regressors.regressor@{rest}",
                    "predict": f"predictors.predictors.{rest}",
                }[part]
            own[name] = weights[theirs]
        self.load_state_dict(own)
        return self

    def forward(self, codes: torch.Tensor, rank: torch.Tensor, context: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The logits of every sub-column."""
        layout = self.layout
        embedded = [self.embed[sub.name](codes[..., number]) for number, sub in enumerate(layout.subs)]
        inputs = []
        if context is not None:
            parts = [self.context_embed[sub.name](context[:, number]) for number, sub in enumerate(layout.context)]
            one = self.drop(self.context(torch.cat(parts, -1)))
            inputs.append(one[:, None].expand(-1, codes.shape[1], -1) if layout.is_sequence else one)
        if layout.is_sequence:
            seen = [e * (sub.position not in ("slen", "ridx")) for e, sub in zip(embedded, layout.subs, strict=True)]
            before = torch.cat(seen, -1)
            before = torch.cat([torch.zeros_like(before[:, :1]), before[:, :-1]], 1)
            inputs.append(self.history(self.drop(before))[0])
        columns = []
        for column in range(layout.num_columns):
            parts = [embedded[n] * (layout.subs[n].position != "slen") for n in layout.of_column(column)]
            whole = torch.cat(parts, -1)
            columns.append(self.compress[str(column)](whole) if str(column) in self.compress else whole)
        found = {}
        order = rank.tolist()
        for number, sub in enumerate(layout.subs):
            if not sub.hidden:
                continue
            masked = [one * (order[column] < order[sub.column]) for column, one in enumerate(columns)]
            own = []
            for other in layout.of_column(sub.column):
                if other < number:
                    hides = sub.position == "ridx" and layout.subs[other].position == "slen"
                    own.append(embedded[other] * (not hides))
            x = torch.cat([*inputs, *masked, *own], -1)
            for layer in self.regress[sub.name]:
                x = layer(self.drop(x))
            found[sub.name] = self.predict[sub.name](torch.relu(x))
        return found

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """The loss of an assembled batch: see `stoker_recipes.tabular.batches.assemble`."""
        codes = batch["codes"].long()
        logits = self(codes, batch["rank"], batch.get("context"))
        total = torch.zeros((), device=codes.device)
        for number, sub in enumerate(self.layout.subs):
            if not sub.hidden:
                continue
            weights = batch["weights"][..., WEIGHTS.index(sub.position or sub.moment) if self.layout.is_sequence else 0]
            losses = F.cross_entropy(logits[sub.name].flatten(0, -2), codes[..., number].flatten(), reduction="none")
            total = total + (losses * weights.flatten()).sum()
        return total
