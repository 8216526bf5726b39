"""The model: a transformer over the DOMs of an event that predicts its direction, on packed rows.

1. A DOM token (256 numbers) goes through a linear map and an RMS norm; a learned CLS token comes first, without the norm: x0.
2. Layer i: x = a_i x + b_i x0; x += attention(norm(x)); x += ffn(norm(x)). Queries and keys are normed per head; the FFN has ReLU
   squared. The output matrices of both begin at zero.
3. The CLS row, normed, goes through a head: three von Mises-Fisher components, or one direction.

There is no position: an event is a set of DOMs. Norms have no parameters. There is no dropout. Only CLS rows are computed behind the
attention of the last layer, as nothing else is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.errors import OptionError
from stoker_recipes.icecube.losses import DirectionLoss, VmfLoss

TOKEN = 256  # numbers of a DOM token
HIDDEN = 1024  # of the head
COMPONENTS = 3


@dataclass(frozen=True, kw_only=True)
class IceCubeSize:
    """The size of a model.

    Args:
        layers: Number of layers.
        width: Numbers per token.
        heads: Heads of attention.
        ffn: Width of the FFN.
        input: `"linear"`: a learned map of tokens; `"none"`: tokens as they are, with zeros up to `width`.
        head: `"vmf"`: a mixture of von Mises-Fisher distributions; `"direction"`: one direction.

    Example:
        >>> IceCubeSize(layers=24).num_outputs  # three components of five numbers
        15
    """

    layers: int = 6
    width: int = 256
    heads: int = 8
    ffn: int = 1024
    input: Literal["linear", "none"] = "linear"
    head: Literal["vmf", "direction"] = "vmf"

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "ffn"):
            if (value := getattr(self, name)) < 1:
                raise OptionError.expected(name, value, "an integer of at least 1")
        if self.width % self.heads:
            raise OptionError(f"width is {self.width}, which {self.heads} heads do not divide.", parameter="width")
        if self.input == "none" and self.width < TOKEN:
            raise OptionError(
                f"width is {self.width}; with input='none' it is at least {TOKEN}, the numbers of a token.", parameter="width"
            )

    @property
    def num_outputs(self) -> int:
        """Numbers per event that the head gives: per component a direction, a concentration and a logit; or a direction."""
        return 5 * COMPONENTS if self.head == "vmf" else 3


SIZES: Mapping[str, IceCubeSize] = {
    "tiny": IceCubeSize(layers=2, width=64, heads=2, ffn=128),
    "5m": IceCubeSize(layers=6),
    "10m": IceCubeSize(layers=12),
    "19m": IceCubeSize(layers=24),
    "29m": IceCubeSize(layers=36),
}
"""Sizes by name; `5m` and `19m` are those of the published results."""


class AttentionWeights(nn.Module):
    """The matrices of attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(width, width, bias=False) for _ in range(4))


class FfnWeights(nn.Module):
    """The matrices of the FFN."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)


class LayerWeights(nn.Module):
    """The parameters of a layer; `plain_trunk` and `Trunk` compute it."""

    def __init__(self, size: IceCubeSize) -> None:
        super().__init__()
        self.attn, self.ffn = AttentionWeights(size.width), FfnWeights(size.width, size.ffn)

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """In the order of `Trunk`."""
        attn, ffn = self.attn, self.ffn
        return tuple(linear.weight for linear in (attn.c_q, attn.c_k, attn.c_v, attn.c_proj, ffn.c_fc, ffn.c_proj))


class OutputHead(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of the head, one row per event."""
        return self.net(x)  # type: ignore[no-any-return]


class IceCubeModel(nn.Module):
    """The transformer. Names of parameters are those of the authors' checkpoints.

    Args:
        size: Its size, or the name of one of `SIZES`.
        residual: The type of the residual on a GPU with bf16 autocast: float32, as the authors have it, or bfloat16, which is faster.
        loss: `VmfLoss` or `DirectionLoss`, which `model.loss` then is. Default: as fits the head, without a penalty on kappa.
        seed: Seed of the weights.

    Example:
        >>> model = IceCubeModel(SIZES["tiny"], seed=0)
        >>> tokens, dom_offsets = torch.randn(5, 256), torch.tensor([0, 2, 5], dtype=torch.int32)
        >>> model(tokens, dom_offsets).shape
        torch.Size([2, 15])
    """

    def __init__(
        self,
        size: IceCubeSize | str = "5m",
        *,
        residual: torch.dtype = torch.float32,
        loss: nn.Module | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(size, str):
            if size not in SIZES:
                raise OptionError.expected("size", size, f"one of {', '.join(SIZES)}, or an IceCubeSize")
            size = SIZES[size]
        self.size, self.residual = size, residual
        if seed is not None:
            torch.manual_seed(seed)
        d = size.width
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.resid_lambdas = nn.Parameter(torch.ones(size.layers))
        self.x0_lambdas = nn.Parameter(torch.full((size.layers,), 0.1))
        if size.input == "linear":
            self.input_proj = nn.Linear(TOKEN, d)
            nn.init.xavier_normal_(self.input_proj.weight)
            nn.init.zeros_(self.input_proj.bias)
        self.blocks = nn.ModuleList(LayerWeights(size) for _ in range(size.layers))
        bound = math.sqrt(3 / d)
        for name, weight in self.blocks.named_parameters():
            if "c_proj" in name:
                nn.init.zeros_(weight)
            else:
                nn.init.uniform_(weight, -bound, bound)
        head = OutputHead(d, size.num_outputs)
        last = cast(nn.Linear, head.net[2])
        if size.head == "vmf":
            self.vmf_head = head
        else:
            self.direction_head = head
            nn.init.xavier_normal_(last.weight)
        nn.init.zeros_(last.bias)
        self.loss = loss if loss is not None else VmfLoss() if size.head == "vmf" else DirectionLoss()

    def forward(self, tokens: Tensor, dom_offsets: Tensor) -> Tensor:
        """Numbers of the head for each event, in float32 or wider.

        Args:
            tokens: DOM tokens [D, 256].
            dom_offsets: Where the DOMs of each event begin, and the end of the last: integers [B + 1].
        """
        embedding = self.embed(tokens, dom_offsets)
        head = self.vmf_head if self.size.head == "vmf" else self.direction_head
        out: Tensor = head(embedding)
        return out if out.dtype == torch.float64 else out.float()

    def embed(self, tokens: Tensor, dom_offsets: Tensor) -> Tensor:
        """The normed last residual of CLS: `width` numbers per event."""
        packing = make_packing(dom_offsets, tokens.shape[0])
        d = self.size.width
        lin = self.input_proj(tokens) if self.size.input == "linear" else F.pad(tokens, (0, d - TOKEN))
        if lin.is_cuda and torch.is_autocast_enabled("cuda"):
            lin = lin.to(torch.get_autocast_dtype("cuda"))  # as a linear map would have done
        if lin.is_cuda and lin.dtype in (torch.bfloat16, torch.float32) and has_kernels(self.size):
            from stoker_recipes.icecube.trunk import Trunk

            residual = self.residual if lin.dtype == torch.bfloat16 else lin.dtype
            x = Trunk.apply(  # type: ignore[no-untyped-call]
                lin.contiguous(), self.cls_token.view(d), self.resid_lambdas, self.x0_lambdas, packing.source, packing.offsets,
                packing.order, self.size.heads, residual, torch.is_grad_enabled(), *self.matrices(),
            )  # fmt: skip
        else:
            x = plain_trunk(lin, self, packing)
        return norm(x)

    def layers(self) -> list[LayerWeights]:
        """The parameters of all layers, in order."""
        return [cast(LayerWeights, block) for block in self.blocks]

    def matrices(self) -> list[Tensor]:
        """The matrices of all layers, which Muon trains."""
        return [weight for block in self.layers() for weight in block.matrices]

    def others(self) -> list[Tensor]:
        """All other parameters, which AdamW trains."""
        known = {id(weight) for weight in self.matrices()}
        return [weight for weight in self.parameters() if id(weight) not in known]


def has_kernels(size: IceCubeSize) -> bool:
    """Whether the kernels can do a model of this size: they work on powers of two."""
    per_head = size.width // size.heads
    return size.width & (size.width - 1) == 0 and per_head & (per_head - 1) == 0 and 16 <= per_head <= 128


def plain_trunk(lin: Tensor, model: IceCubeModel, packing: Packing) -> Tensor:
    """All layers in plain torch: the last residual of CLS."""
    cls = model.cls_token.view(1, -1)
    x = torch.where(packing.source[:, None] >= 0, norm(lin)[packing.source.clamp(min=0)], cls)
    x0, rows, heads, last = x, packing.cls, model.size.heads, model.size.layers - 1
    for i, block in enumerate(model.layers()):
        attn, ffn = block.attn, block.ffn
        x = model.resid_lambdas[i] * x + model.x0_lambdas[i] * x0
        h = norm(x)
        here = h
        if i == last:
            x, here = x[rows], h[rows]
        x = x + attn.c_proj(attend(attn.c_q(here), attn.c_k(h), attn.c_v(h), packing.offsets, heads))
        x = x + ffn.c_proj(F.relu(ffn.c_fc(norm(x))).square())
    return x


# Packed rows: the CLS token and the DOM tokens of all events in one sequence without padding, and attention within events.
#
#     row      0    1    2    3    4    5    6    7    8    9
#     event    0    0    0    1    1    1    1    2    2    padding
#     token    CLS  DOM  DOM  CLS  DOM  DOM  DOM  CLS  DOM  DOM of no event
#
# A batch may have more DOM rows than its events have DOMs, so that batches have one shape. Rows behind the last event belong to none:
# nothing attends to them, and their gradient is zero.


EPS = 1.1920928955078125e-07
"""Of every RMS norm, whatever the type: float32's, as in torch since 2.7. With bfloat16's own the model would be another."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where the rows of a batch come from."""

    offsets: Tensor
    """Rows where events begin, and the end of the last: int32 [B + 1]."""
    source: Tensor
    """The DOM of each row; -1 - e for the CLS token of event e: int32 [R]."""

    order: Tensor
    """The events, longest first: int32 [B]. Kernels begin with what takes longest."""

    @property
    def cls(self) -> Tensor:
        """The rows of CLS tokens."""
        return self.offsets[:-1].long()


def make_packing(dom_offsets: Tensor, num_doms: int) -> Packing:
    """Place one CLS token before the DOMs of each event. Waits for nothing.

    Args:
        dom_offsets: Where the DOMs of each event begin, and the end of the last: [B + 1].
        num_doms: Rows of DOM tokens, those behind the last event included.
    """
    device, num_events = dom_offsets.device, dom_offsets.shape[0] - 1
    event = torch.arange(num_events + 1, device=device)
    offsets = dom_offsets + event
    dom = torch.arange(num_doms, device=device)
    place = dom + torch.searchsorted(dom_offsets[1:].contiguous(), dom.to(dom_offsets.dtype), right=True).add_(1).clamp_(
        max=num_events
    )
    source = torch.empty(num_doms + num_events, dtype=torch.int32, device=device)
    source[offsets[:-1].long()] = (-1 - event[:-1]).int()
    source[place] = dom.int()
    order = dom_offsets.diff().argsort(descending=True)
    return Packing(offsets=offsets.int(), source=source, order=order.int())


def norm(x: Tensor) -> Tensor:
    """RMS norm without parameters."""
    return F.rms_norm(x, (x.shape[-1],), eps=EPS)


def attend(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, heads: int) -> Tensor:
    """Attention within events with normed queries and keys: the plain form, for the CPU and for float64.

    Events of similar length are padded to the longest of them, with a mask.

    Args:
        q: Queries: one per row, or one per event (that of its CLS token).
        k: Keys, one per row.
        v: Values, one per row.
        offsets: As in `Packing`.
        heads: Number of heads.

    Returns:
        As many rows as there are queries; zeros for rows of no event.
    """
    num_rows, width = k.shape
    is_all = q.shape[0] == num_rows
    q, k, v = (x.view(x.shape[0], heads, width // heads) for x in (norm_heads(q, heads), norm_heads(k, heads), v))
    begins, lengths = offsets[:-1].long(), offsets.diff().long()
    outputs, places = [], []
    sizes = (lengths - 1).clamp(min=15).log2().floor()  # up to 16, 32, 64, … rows
    for size in sorted(set(sizes.tolist())):
        events = (sizes == size).nonzero().squeeze(1)
        most = int(lengths[events].max())
        inside = torch.arange(most, device=k.device) < lengths[events, None]
        rows = (begins[events, None] + torch.arange(most, device=k.device)).clamp(max=num_rows - 1)
        keys, values = (x[rows].transpose(1, 2) for x in (k, v))
        queries = q[rows].transpose(1, 2) if is_all else q[events].unsqueeze(2)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=inside[:, None, None, :])
        out = out.transpose(1, 2).flatten(2)
        outputs.append(out[inside] if is_all else out.squeeze(1))
        places.append(rows[inside] if is_all else events)
    whole = q.new_zeros(q.shape[0], width)
    return whole.index_copy(0, torch.cat(places), torch.cat(outputs)) if outputs else whole


def norm_heads(x: Tensor, heads: int) -> Tensor:
    """RMS norm of the channels of each head."""
    return norm(x.view(x.shape[0], heads, -1)).view_as(x)
