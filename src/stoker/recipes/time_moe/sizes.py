"""Sizes: how large a Time-MoE is, and what follows from that - its parameters, those a position uses, and the work of a step.

The names are those of the published checkpoints. Every other file of the model takes its shapes from here.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields

from stoker.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Size:
    """The shape of a model."""

    hidden: int
    intermediate: int
    """Width of the shared expert; the others are `top_k` times narrower."""
    layers: int
    heads: int
    experts: int
    top_k: int
    horizons: tuple[int, ...] = (1, 8, 32, 64)
    """Points that each head predicts, rising from 1."""
    max_position: int = 4096
    rope_theta: float = 10000.0
    aux_factor: float = 0.02
    """Weight of the loss that keeps experts evenly used."""
    eps: float = 1e-6
    spread: float = 0.02
    """Standard deviation of weights at the beginning."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not _is_count(value):
                raise OptionError(f"size: {field.name} is {_short(value)}; expected an integer from 1.")
            if field.type == "float" and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise OptionError(f"size: {field.name} is {_short(value)}; expected a number.")
            least = 0.0 if field.name == "aux_factor" else math.ulp(0.0)
            if field.type == "float" and not least <= value <= sys.float_info.max:
                raise OptionError(
                    f"size: {field.name} is {_short(value)}; expected a finite number {'from' if not least else 'above'} 0."
                )
        if self.hidden % (2 * self.heads):
            raise OptionError(f"size: hidden is {self.hidden}; expected an even number for each of the {self.heads} heads.")
        if self.intermediate % self.top_k or self.top_k > self.experts:
            raise OptionError(
                f"size: top_k is {self.top_k}; expected a divisor of intermediate ({self.intermediate}), at most {self.experts}."
            )
        rising = all(map(_is_count, self.horizons)) and list(self.horizons) == sorted(set(self.horizons))
        if self.horizons[:1] != (1,) or not rising:
            raise OptionError(f"size: horizons are {_short(self.horizons)}; expected rising integers that begin with 1.")

    @property
    def head_width(self) -> int:
        """Numbers that a head of the attention looks at."""
        return self.hidden // self.heads

    @property
    def expert_width(self) -> int:
        """Width of one expert."""
        return self.intermediate // self.top_k

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        return self._parameters(self.experts)

    @property
    def num_active(self) -> int:
        """Parameters that one position uses."""
        return self._parameters(self.top_k)

    def _parameters(self, experts: int) -> int:
        attention = 4 * self.hidden**2 + 3 * self.hidden
        feeding = 3 * self.hidden * (experts * self.expert_width + self.intermediate) + (self.experts + 1) * self.hidden
        layer = attention + feeding + 2 * self.hidden
        return 2 * self.hidden + self.layers * layer + self.hidden + sum(self.horizons) * self.hidden

    def flops(self, batch: int, length: int) -> float:
        """Floating-point operations of one step, forward and backward, without any that is repeated."""
        products = 6 * self.num_active * batch * length
        attention = 3 * self.layers * 4 * batch * self.hidden * length**2 / 2  # a position looks at half of the others
        return products + attention


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


SIZES = {
    "50m": Size(hidden=384, intermediate=1536, layers=12, heads=12, experts=8, top_k=2),
    "200m": Size(hidden=768, intermediate=3072, layers=12, heads=12, experts=8, top_k=2),
    "tiny": Size(hidden=32, intermediate=64, layers=2, heads=4, experts=4, top_k=2, max_position=512),
}
"""The published sizes, and one for trying things out."""
