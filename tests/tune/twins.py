"""One trial alone, as a plain training loop has it: what each member of a population must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stoker.tune.randomness import MemberRandom, seed_model

Batch = dict[str, torch.Tensor]


class Transformer(nn.Module):
    """A small transformer on windows."""

    def __init__(self, width: int = 16, layers: int = 2, heads: int = 2, dropout: float = 0.0, norm_first: bool = True) -> None:
        super().__init__()
        self.inp = nn.Linear(4, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=dropout, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.encoder(self.inp(x))[:, -1])
        return out


class ResidualMlp(nn.Module):
    """Blocks of LayerNorm, Linear, GELU, Dropout and Linear beside a residual."""

    def __init__(self, width: int = 16, layers: int = 2, dropout: float = 0.0, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.inp = nn.Linear(4, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(width), nn.Linear(width, 3 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(3 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.head(x).mean(-2)
        return out


def make_batches(count: int, dtype: torch.dtype = torch.float32) -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 8, 6, 4, generator=generator, dtype=dtype)
    y = (x.mean((2, 3)) > 0).to(dtype)[..., None]
    return [{"x": one, "y": label} for one, label in zip(x, y, strict=True)]


def loss(model: nn.Module, batch: Batch, hyper: Mapping[str, Any]) -> torch.Tensor:
    """With a temperature."""
    return functional.binary_cross_entropy_with_logits(model(batch["x"]) / hyper.get("temperature", 1.0), batch["y"])


def optimizers_of(name: str, model: nn.Module, config: Mapping[str, Any]) -> list[torch.optim.Optimizer]:
    """Those of torch, with the settings of a configuration."""
    given = {key: config[key] for key in ("lr", "weight_decay", "momentum", "alpha", "eps", "betas", "nesterov") if key in config}
    if name != "muon":
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}[name]
        return [kind(model.parameters(), **given)]
    embeddings = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    matrices = [one for one in model.parameters() if one.dim() == 2 and id(one) not in embeddings]
    others = [one for one in model.parameters() if one.dim() != 2 or id(one) in embeddings]
    given.pop("betas", None)
    adamw = torch.optim.AdamW(others, lr=config.get("adamw_lr", config["lr"]), weight_decay=config.get("weight_decay", 0.1))
    return [torch.optim.Muon(matrices, **given), adamw]


def train_alone(
    make_model: Callable[[Mapping[str, Any]], nn.Module],
    config: Mapping[str, Any],
    seed: int,
    batches: Sequence[Batch],
    *,
    optimizer: str = "adamw",
    function: Callable[..., torch.Tensor] = loss,
    takes_random: bool = False,
) -> tuple[torch.Tensor, nn.Module]:
    """The losses of a plain loop with torch's optimizers, and the model after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = seed_model(make_model(config), seed)
    used = optimizers_of(optimizer, model, config)
    random = [MemberRandom(seed)] if takes_random else []
    losses = []
    for batch in batches:
        value = function(model, batch, config, *random)
        for one in used:
            one.zero_grad()
        value.backward()
        if "max_grad_norm" in config:
            nn.utils.clip_grad_norm_(model.parameters(), config["max_grad_norm"])
        for one in used:
            one.step()
        losses.append(value.detach())
    return torch.stack(losses), model
