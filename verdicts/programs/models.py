"""The models of this project."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        sizes = [features] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x).squeeze(-1)


class Transformer(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.first = nn.Linear(features, width)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.encoder(self.first(x)).mean(1)).squeeze(-1)


class Gru(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        self.gru = nn.GRU(features, width, depth, batch_first=True)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.gru(x)[0][:, -1]).squeeze(-1)


class Convolution(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        sizes = [features] + [width] * depth
        self.layers = nn.ModuleList(nn.Conv1d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = x.transpose(1, 2)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x.mean(2)).squeeze(-1)


class Tabular(nn.Module):
    def __init__(self, columns, width, depth, categories=1000, size=16, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(categories, size, sparse=sparse)
        self.mlp = Mlp(columns * size, width, depth)

    def forward(self, x):
        return self.mlp(self.embedding(x).flatten(1))


class TokenTransformer(nn.Module):
    """Tokens in, a score for each word of the vocabulary out; the loss needs only one."""

    def __init__(self, width, depth, categories):
        super().__init__()
        self.embedding = nn.Embedding(categories, width)
        self.body = Transformer(width, width, depth)

    def forward(self, x):
        return self.body(self.embedding(x))


class SmoothMlp(nn.Module):
    """An MLP on inputs that are shaken, clipped and squashed, `rounds` times over."""

    def __init__(self, features, width, depth, rounds):
        super().__init__()
        self.rounds = rounds
        self.scale = nn.Parameter(torch.ones(features))
        self.mlp = Mlp(features, width, depth)

    def forward(self, x):
        for _ in range(self.rounds):
            x = x * self.scale
            x = x + 0.01
            x = x.clamp(-4.0, 4.0)
            x = x * 0.99
        return self.mlp(x)


class GatedTransformer(nn.Module):
    """A transformer whose input goes through hand-written gates and norms."""

    def __init__(self, features, width, depth, rounds):
        super().__init__()
        self.rounds = rounds
        self.first = nn.Linear(features, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.body = Transformer(width, 16, depth)

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.rounds):
            h = x * self.gain + self.shift
            h = h - 0.5 * x
            h = h.clamp(-3.0, 3.0)
            x = x + 0.1 * h
        return self.body(x[:, ::16])


class ShakenConvolution(nn.Module):
    """A small convolution after an augmentation of each series: scale, drift, clip and mix."""

    def __init__(self, features, width, depth, rounds):
        super().__init__()
        self.rounds = rounds
        self.gain = nn.Parameter(torch.ones(1, 1, features))
        self.convolution = Convolution(features, width, depth)

    def forward(self, x):
        for _ in range(self.rounds):
            other = x.neg()
            x = x * 0.9 + other * 0.1
            x = torch.minimum(x, x * self.gain + 0.1)
            x = x + 0.05
        return self.convolution(x[:, ::32])


class CrossedTabular(nn.Module):
    """Each pair of columns multiplied, before a small layer."""

    def __init__(self, columns, width, depth, categories, size, rounds):
        super().__init__()
        self.rounds = rounds
        self.embedding = nn.Embedding(categories, size)
        self.mlp = Mlp(size, width, depth)

    def forward(self, x):
        e = self.embedding(x)
        total = e.sum(1)
        for shift in range(1, self.rounds + 1):
            crossed = e * e.roll(shift, 1)
            crossed = crossed.clamp(-2.0, 2.0) + 0.1 * e
            total = total + crossed.sum(1)
        return self.mlp(total)


class DeepMlp(nn.Module):
    """Many narrow layers with a residual."""

    def __init__(self, features, width, depth):
        super().__init__()
        self.first = nn.Linear(features, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return self.last(x).squeeze(-1)


class Cells(nn.Module):
    """A recurrent cell written by hand, one step of time after the other."""

    def __init__(self, features, width, depth):
        super().__init__()
        self.width = width
        self.inside = nn.Linear(features, 3 * width)
        self.across = nn.Linear(width, 3 * width)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        state = x.new_zeros(len(x), self.width)
        for t in range(x.shape[1]):
            a, b, c = self.inside(x[:, t]).chunk(3, 1)
            d, e, f = self.across(state).chunk(3, 1)
            keep = torch.sigmoid(a + d)
            state = keep * state + (1 - keep) * torch.tanh(c + torch.sigmoid(b + e) * f)
        return self.last(state).squeeze(-1)


class Heads(nn.Module):
    """Attention with each head on its own."""

    def __init__(self, features, width, depth):
        super().__init__()
        self.first = nn.Linear(features, width)
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(width, 12) for _ in range(8)) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Linear(32, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for heads, mix in zip(self.heads, self.mix, strict=True):
            parts = []
            for head in heads:
                q, k, v = head(x).chunk(3, -1)
                parts.append(torch.softmax(q @ k.transpose(1, 2) / 2.0, -1) @ v)
            x = x + mix(torch.cat(parts, -1))
        return self.last(x.mean(1)).squeeze(-1)


class Columns(nn.Module):
    """Each column has its own embedding and its own layer."""

    def __init__(self, columns, width, depth, categories):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(categories, 4) for _ in range(columns))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(columns))
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        total = 0.0
        for i, (embedding, layer) in enumerate(zip(self.embeddings, self.layers, strict=True)):
            total = total + functional.silu(layer(embedding(x[:, i])))
        return self.last(total).squeeze(-1)


class Ranked(nn.Module):
    """A model behind the ranks of its inputs: sorted, summed along, and put back."""

    def __init__(self, body, rounds):
        super().__init__()
        self.rounds = rounds
        self.body = body

    def forward(self, x):
        for _ in range(self.rounds):
            values, places = x.sort(-1)
            x = torch.zeros_like(x).scatter_add(-1, places, values.cumsum(-1).flip(-1)) * 0.01
        return self.body(x)


def build(args):
    """The model that the arguments ask for."""
    f, w, d = args.features, args.width, args.depth
    makers = {
        "mlp": lambda: Mlp(f, w, d),
        "transformer": lambda: Transformer(f, w, d),
        "gru": lambda: Gru(f, w, d),
        "convolution": lambda: Convolution(f, w, d),
        "tabular": lambda: Tabular(f, w, d, args.categories, args.size, args.sparse),
        "tokens": lambda: TokenTransformer(w, d, args.categories),
        "smooth-mlp": lambda: SmoothMlp(f, w, d, args.rounds),
        "gated-transformer": lambda: GatedTransformer(f, w, d, args.rounds),
        "shaken-convolution": lambda: ShakenConvolution(f, w, d, args.rounds),
        "crossed-tabular": lambda: CrossedTabular(f, w, d, args.categories, args.size, args.rounds),
        "deep-mlp": lambda: DeepMlp(f, w, d),
        "cells": lambda: Cells(f, w, d),
        "heads": lambda: Heads(f, w, d),
        "columns": lambda: Columns(f, w, d, args.categories),
        "ranked-mlp": lambda: Ranked(Mlp(f, w, d), args.rounds),
        "ranked-transformer": lambda: Ranked(Transformer(f, w, d), args.rounds),
        "ranked-convolution": lambda: Ranked(Convolution(f, w, d), args.rounds),
        "ranked-gru": lambda: Ranked(Gru(f, w, d), args.rounds),
    }
    return makers[args.model]()


TAKES_CATEGORIES = {"tabular", "tokens", "crossed-tabular", "columns"}
TAKES_ROWS = {"mlp", "smooth-mlp", "deep-mlp", "ranked-mlp"}
