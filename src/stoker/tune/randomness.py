"""Random numbers of a member: functions of (seed, number of the draw, position in the tensor), so that a member draws the same
numbers alone as in a population of any size.

A generator of torch has one state for all members, and `vmap` draws from it for all of them at once. Here each number is a hash of
its coordinates instead. It needs no state but a counter, runs under `vmap` and in a CUDA graph, and the number at a position does
not depend on the size of the tensor: a member that is padded to a larger width draws what it draws unpadded.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_GOLDEN = -1640531527
"""0x9E3779B9 as a signed 32-bit number."""


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A bijective 32-bit hash (two rounds of shift, xor and multiply; int32 wraps around)."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


def _coordinates(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A 32-bit number for each position: the sum of the hashes of its indices, which does not depend on the sizes."""
    found = torch.zeros((), dtype=torch.int32, device=device)
    for number, size in enumerate(reversed(shape)):
        index = torch.arange(size, dtype=torch.int32, device=device)
        found = found + _mix(index + (number + 1) * 0x01234567).reshape(size, *[1] * number)
    return found


def random_bits(shape: tuple[int, ...], *, seed: torch.Tensor, counter: torch.Tensor, salt: int) -> torch.Tensor:
    """Uniform 32-bit integers: those of draw `counter` of the place `salt` of the member with this `seed`."""
    key = _mix(_mix(_mix(seed.to(torch.int32)) + salt) + counter.to(torch.int32) * _GOLDEN)
    return _mix(_coordinates(shape, seed.device) ^ key)


def _int32(value: int) -> int:
    """The low 32 bits of a number, as a signed one."""
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


def _drop(values: torch.Tensor, p: Any, bits: torch.Tensor) -> torch.Tensor:
    """Zero elements with probability `p` (a number, or a tensor under `vmap`) and scale the others."""
    threshold: Any
    scale: Any
    if isinstance(p, torch.Tensor):
        p = p.double()
        threshold = (p * 2**32 - 2**31).clamp(max=2**31 - 1).to(torch.int32)
        scale = torch.where(p < 1, 1 / (1 - p).clamp(min=2**-32), 0).to(values.dtype)
    else:  # numbers stay in Python: a copy to the GPU could not be part of a graph
        threshold = min(int(p * 2**32 - 2**31), 2**31 - 1)
        scale = 1 / (1 - p) if p < 1 else 0.0
    return torch.where(bits >= threshold, values * scale, torch.zeros((), dtype=values.dtype, device=values.device))


class MemberRandom(nn.Module):
    """Random numbers of one member, for a loss that augments its batch or samples.

    A loss with four arguments is given one: `loss(model, batch, hyper, random)`. Each call draws new numbers. A `MemberRandom` with
    the same seed draws the same numbers outside of a population.

    Args:
        seed: The seed of the member.

    Example:
        >>> random = MemberRandom(7)
        >>> noise = random.normal(4, 3)
        >>> noise.shape, bool((MemberRandom(7).normal(4, 3) == noise).all()), bool((random.normal(4, 3) == noise).any())
        (torch.Size([4, 3]), True, False)
    """

    seed: torch.Tensor
    counter: torch.Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        _add_counter(self, seed)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Numbers from [0, 1)."""
        self.counter.add_(1)
        bits = random_bits(shape, seed=self.seed, counter=self.counter, salt=0)
        return ((bits >> 8) & 0xFFFFFF).to(dtype) * 2.0**-24

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Numbers of the standard normal distribution."""
        radius = torch.sqrt(-2 * torch.log(1 - self.uniform(*shape, dtype=dtype)))
        return radius * torch.cos(2 * math.pi * self.uniform(*shape, dtype=dtype))


class SeededDropout(nn.Dropout):
    """Dropout whose mask is a function of the seed of the member, the place in the model and the number of the call."""

    seed: torch.Tensor
    counter: torch.Tensor
    salt: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Zero elements in training mode."""
        if not self.training or (isinstance(self.p, float | int) and self.p == 0):
            return input
        self.counter.add_(1)
        bits = random_bits(tuple(input.shape), seed=self.seed, counter=self.counter, salt=self.salt)
        return _drop(input, self.p, bits)


class SeededAttention(nn.MultiheadAttention):
    """Multi-head attention with seeded dropout, whose weights may be padded to more heads, wider heads and more features.

    Padded, `in_proj_weight` is [3, heads, head width, features], `in_proj_bias` [3, heads, head width] and `out_proj.weight`
    [features, heads, head width].
    """

    seed: torch.Tensor
    counter: torch.Tensor
    salt: int
    attention_scale: float

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As in `torch.nn.MultiheadAttention`."""
        unbatched, is_self_attention = query.dim() == 2, query is key and key is value
        if unbatched:
            query, key, value = (one.unsqueeze(0 if self.batch_first else 1) for one in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            query, key, value = (one.transpose(0, 1) for one in (query, key, value))
        weight: torch.Tensor = self.in_proj_weight
        out: torch.Tensor = self.out_proj.weight
        bias: torch.Tensor | None = self.in_proj_bias
        if weight.dim() == 4:
            heads, weight, out = weight.shape[1], weight.flatten(0, 2), out.flatten(1)
        else:
            heads = self.num_heads
        bias = None if bias is None else bias.reshape(-1)
        if is_self_attention:  # one matmul instead of three
            projected = functional.linear(query, weight, bias).chunk(3, -1)
        else:
            offsets: Any = (None, None, None) if bias is None else bias.view(3, -1).unbind(0)
            parts = zip((query, key, value), weight.view(3, -1, weight.shape[-1]).unbind(0), offsets, strict=True)
            projected = tuple(functional.linear(*part) for part in parts)
        q, k, v = (one.view(*one.shape[:-1], heads, -1).transpose(1, 2) for one in projected)
        mask = _additive(attn_mask, key_padding_mask, heads, q.dtype)
        drops = self.training and not (isinstance(self.dropout, float | int) and self.dropout == 0)
        weights = None
        if drops or need_weights:
            scores = (q * self.attention_scale) @ k.mT
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            if drops:
                self.counter.add_(1)
                bits = random_bits(tuple(weights.shape), seed=self.seed, counter=self.counter, salt=self.salt)
                weights = _drop(weights, self.dropout, bits)
            mixed = weights @ v
        else:
            scale: Any = self.attention_scale
            if isinstance(scale, torch.Tensor):  # of members with heads of different widths
                q, scale = q * scale, 1.0
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        found = functional.linear(mixed.transpose(1, 2).flatten(2), out, self.out_proj.bias)
        if not self.batch_first:
            found = found.transpose(0, 1)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if unbatched:
            found = found.squeeze(0 if self.batch_first else 1)
            weights = None if weights is None else weights.squeeze(0)
        return found, weights if need_weights else None


def _additive(attention: torch.Tensor | None, padding: torch.Tensor | None, heads: int, dtype: torch.dtype) -> torch.Tensor | None:
    """The masks of `nn.MultiheadAttention` as one that is added to the scores; None where there is none."""
    if attention is not None and attention.dim() == 3:
        attention = attention.view(-1, heads, *attention.shape[1:])
    given = [attention, None if padding is None else padding[:, None, None, :]]
    masks = [
        torch.zeros(one.shape, dtype=dtype, device=one.device).masked_fill(one, -math.inf) if one.dtype == torch.bool else one
        for one in given
        if one is not None
    ]
    return sum(masks[1:], masks[0]) if masks else None


def seed_model(model: nn.Module, seed: int) -> nn.Module:
    """Let the dropout of a model depend on a seed: its `nn.Dropout` and `nn.MultiheadAttention` modules become seeded ones, in place.

    Parameters and their names stay. Attention with `kdim`, `vdim`, `add_bias_kv` or `add_zero_attn` is left alone.

    Args:
        model: Any model.
        seed: The seed.

    Returns:
        The same model.
    """
    device = next((one.device for one in model.parameters()), None)
    for path, module in model.named_modules():
        if type(module) is nn.Dropout:
            module.__class__ = SeededDropout
            module.p = float(module.p)
        elif type(module) is nn.MultiheadAttention and module.in_proj_weight is not None and module.bias_k is None:
            if module.add_zero_attn:
                continue
            module.__class__ = SeededAttention
            module.dropout = float(module.dropout)
            module.__dict__["attention_scale"] = 1 / math.sqrt(module.head_dim)
        else:
            continue
        _add_counter(module, seed, device)
        module.__dict__["salt"] = _int32(zlib.crc32(path.encode()))
    return model


def _add_counter(module: nn.Module, seed: int, device: torch.device | None = None) -> None:
    """Register the state of draws; not part of a state_dict, which stays that of the user's model."""
    module.register_buffer("seed", torch.tensor(_int32(seed ^ (seed >> 32)), device=device), persistent=False)
    module.register_buffer("counter", torch.tensor(0, device=device), persistent=False)
