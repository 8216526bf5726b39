"""The Time-MoE model in plain torch: points are embedded, pass layers of attention and experts, and become forecasts.

Given labels, the model returns its loss, so that a trainer can compile all of it. Weights may be float32 with matmuls in bfloat16:
the autocast around a call decides the type of matmuls; sums over layers stay in the type of the weights.

`TimeMoe.forecast` decodes: a forecast grows by the largest head that still fits, with a cache of keys and values per layer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.errors import OptionError, SourceInvalidError, SourceNotFoundError
from stoker.extend import disk, readable_bytes
from stoker_recipes.time_moe.layers import Attention, Cache, Experts, Heads, Load, Positions, Size, positions_of, runs_of


class TimeMoe(nn.Module):
    """Time-MoE with random weights.

    Args:
        size: Shape of the model, such as `SIZES["50m"]`.
        dtype: Type of the weights. Default: float32.

    Example:
        >>> import torch
        >>> from stoker_recipes.time_moe import SIZES
        >>> model = TimeMoe(SIZES["tiny"])
        >>> model.forecast(torch.zeros(2, 16), horizon=5).shape
        torch.Size([2, 5])
    """

    def __init__(self, size: Size, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.size = size
        self.embed = nn.Parameter(torch.empty(size.hidden, 1))
        self.embed_gate = nn.Parameter(torch.empty(size.hidden, 1))
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden, size.eps)
        self.heads = Heads(size)
        self.reset()
        if dtype is not None:
            self.to(dtype)

    @torch.no_grad()
    def reset(self) -> None:
        """Draw all weights again.

        Biases too, which the authors initialise with 0: a position that is 0 and sees only zeros (padding, a constant series) would
        stay 0 in every layer, where the norm multiplies its gradient by 170; after twelve layers it would be NaN.
        """
        for name, weight in self.named_parameters():
            if name.endswith("norm.weight"):
                weight.fill_(1.0)
            else:
                weight.normal_(0.0, self.size.spread)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile in place, layer by layer: all layers share one compilation, a twelfth of the time of the whole model."""
        for part in (*self.layers, self.heads):
            part.compile(*arguments, **options)

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The hidden states [b, l, hidden] of points [b, l]; with labels `y` [b, l], the loss (see `loss`)."""
        self._check_length(x.shape[1])
        runs = None if segments is None else runs_of(segments)
        positions = torch.arange(x.shape[1], device=x.device) if runs is None else runs.positions
        place = positions_of(positions, self.size, self.angle_dtype, runs)
        hidden, loads = self.through(x, place)
        if y is None:
            return hidden
        if mask is not None and mask.dim() == 1:
            mask = torch.arange(x.shape[1], device=x.device) < mask.unsqueeze(1)
        if segments is not None:
            inside = segments >= 0
            mask = inside if mask is None else (mask != 0) & inside
        loss: Tensor = self.heads(hidden, y, mask, None if runs is None else runs.begins)
        return loss + self.size.aux_factor * unevenness(loads, positions=x.numel())

    def loss(self, x: Tensor, y: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Huber loss, averaged over the heads by their `shares`, plus the load-balancing loss (0.04 if perfectly even).

        Args:
            x: Points [b, l].
            y: `x` one step later.
            mask: Labels that count: [b, l], or [b] for the number from the left.
            segments: The series of each position [b, l], for rows that hold several one after the other; below 0 for padding.
        """
        return self(x, y, mask, segments)  # type: ignore[no-any-return]

    def through(self, x: Tensor, place: Positions, caches: list[Cache] | None = None) -> tuple[Tensor, list[Load]]:
        """Points [b, l] through all layers: hidden states, and the load of the experts of each layer."""
        points = x.to(self.embed.dtype).unsqueeze(-1)
        hidden = F.silu(points * self.embed_gate[:, 0]) * (points * self.embed[:, 0])
        loads = []
        for number, layer in enumerate(self.layers):
            hidden, load = layer(hidden, place) if caches is None else layer(hidden, place, caches[number])
            loads.append(load)
        return self.norm(hidden).to(products_dtype(hidden)), loads

    @torch.no_grad()
    def forecast(self, context: Tensor, horizon: int) -> Tensor:
        """The next `horizon` points of each row of `context` [b, l], which the caller scales: one head after the other."""
        if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
            raise OptionError.expected("horizon", horizon, "an integer from 1")
        if context.dim() != 2 or not context.shape[1]:
            raise OptionError(
                f"context has shape {tuple(context.shape)}; expected [rows, points] with at least one point.", parameter="context"
            )
        end = context.shape[1] + horizon
        self._check_length(end)
        caches = [Cache(end) for _ in self.layers]
        parts: list[Tensor] = []
        begin, new = 0, context
        while remaining := horizon - sum(part.shape[1] for part in parts):
            positions = torch.arange(begin, begin + new.shape[1], device=context.device)
            within = None if begin == 0 else torch.arange(begin + new.shape[1], device=context.device) <= positions.unsqueeze(1)
            hidden, _ = self.through(new, positions_of(positions, self.size, self.angle_dtype, within), caches)
            begin += new.shape[1]
            head = max(head for head in self.size.horizons if head <= remaining)
            new = self.heads.predict(hidden[:, -1], head).to(context.dtype)
            parts.append(new)
        return torch.cat(parts, 1)

    @property
    def angle_dtype(self) -> torch.dtype:
        """The type in which rotary angles are computed."""
        return torch.promote_types(self.embed.dtype, torch.float32)

    def _check_length(self, length: int) -> None:
        if length > self.size.max_position:
            raise OptionError(
                f"a row has {length:,} positions, but the model has {self.size.max_position:,}. Use shorter rows.",
                parameter="length",
            )


class Layer(nn.Module):
    """Attention and experts, pre-norm and residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = Norm(size.hidden, size.eps)
        self.attention = Attention(size)
        self.experts_norm = Norm(size.hidden, size.eps)
        self.experts = Experts(size)

    def forward(self, x: Tensor, place: Positions, cache: Cache | None = None) -> tuple[Tensor, Load]:
        """Hidden states [b, l, hidden] after this layer, and the load of its experts."""
        dtype = products_dtype(x)
        x = x + self.attention(self.attention_norm(x).to(dtype), place, cache)
        fed, load = self.experts(self.experts_norm(x).to(dtype))
        return x + fed, load


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Computed in float32 at least."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def products_dtype(x: Tensor) -> torch.dtype:
    """The type of matmuls: that of autocast, or else of the hidden states."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def unevenness(loads: list[Load], *, positions: int) -> Tensor:
    """The load-balancing loss over all layers: `top_k` if all experts are used alike, more otherwise."""
    total = len(loads) * positions
    probabilities = torch.stack([load.probabilities for load in loads]).sum(0)
    counts = torch.stack([load.counts for load in loads]).sum(0).to(probabilities.dtype)
    return len(counts) * (counts / total * (probabilities / total)).sum()


def time_moe_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss of a batch, for `stoker.Trainer`.

    Args:
        model: A `TimeMoe`.
        batch: `x` and `y` [b, l]; optionally `mask` [b, l] or `length` [b], `segments` [b, l], and `valid` [b] rows.

    Returns:
        The loss.

    Example:
        >>> import torch
        >>> from stoker_recipes.time_moe import SIZES
        >>> x = torch.arange(8.0)[None]
        >>> time_moe_loss(TimeMoe(SIZES["tiny"]), {"x": x, "y": x + 1}).isfinite().item()
        True
    """
    mask = batch.get("mask", batch.get("length"))
    valid = batch.get("valid")
    if valid is not None:
        if mask is None:
            mask = valid.unsqueeze(1).expand(batch["x"].shape)
        else:
            mask = torch.where(valid if mask.dim() == 1 else valid.unsqueeze(1), mask, 0)
    return model(batch["x"], batch["y"], mask, batch.get("segments"))  # type: ignore[no-any-return]


# ---- checkpoints in the official form: names and shapes of tensors, and config.json ----
#
# The model holds some matrices concatenated (queries with keys and values, the experts of a layer, the heads); `to_official` splits and
# `from_official` joins them, without loss. A tensor that is missing, unknown or of another shape is an error.

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
KEYS = {
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_experts": "experts",
    "num_experts_per_tok": "top_k",
    "horizon_lengths": "horizons",
    "max_position_embeddings": "max_position",
    "rope_theta": "rope_theta",
    "router_aux_loss_factor": "aux_factor",
    "rms_norm_eps": "eps",
    "initializer_range": "spread",
}  # keys of config.json for the size of a model, and the fields of `Size`
OPTIONAL = ("router_aux_loss_factor", "rms_norm_eps", "rope_theta", "initializer_range")
"""Those that have the authors' default where they are missing."""
FIXED = {
    "model_type": "time_moe",
    "input_size": 1,
    "hidden_act": "silu",
    "use_dense": False,
    "apply_aux_loss": True,
    "attention_dropout": 0.0,
}  # keys of config.json that can have only one value


def load_weights(model: TimeMoe, path: str | Path) -> None:
    """Load an official checkpoint into a model.

    Args:
        model: The model. Tensors are converted to its type, so a bfloat16 checkpoint gives float32 weights exactly.
        path: A folder with config.json and safetensors files, or a safetensors file.

    Raises:
        SourceNotFoundError: There is no checkpoint.
        SourceInvalidError: A file is damaged, or of another size.
    """
    path = Path(path)
    if path.is_dir() and (path / CONFIG).exists():
        _check_size(model.size, read_size(path), path / CONFIG)
    official, weights = _read(path), dict(model.named_parameters())
    empty = {name: parameter.detach().to("meta") for name, parameter in weights.items()}
    _check_tensors(official, to_official(empty, model.size), path)
    tensors = from_official(official, model.size)
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(tensors[name].reshape(parameter.shape))


def check_free(folder: str | Path) -> None:
    """Raise an error for a folder that holds a checkpoint: it may be the one that a run started from."""
    taken = [name for name in (WEIGHTS, INDEX, CONFIG) if (Path(folder) / name).exists()]
    if taken:
        raise OptionError(f"{folder} holds {taken[0]} already. Choose another folder, or remove it first.", path=folder)


def save_weights(model: TimeMoe, folder: str | Path, *, overwrite: bool = False) -> None:
    """Write a model as an official checkpoint: config.json and model.safetensors.

    Args:
        model: The model.
        folder: The folder to write to.
        overwrite: Replace a checkpoint in `folder`.

    Raises:
        OptionError: The folder holds a checkpoint, and `overwrite` is False.

    Example:
        >>> import tempfile
        >>> from stoker_recipes.time_moe import SIZES, TimeMoe, read_size
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(TimeMoe(SIZES["tiny"]), folder)
        ...     read_size(folder) == SIZES["tiny"]
        True
    """
    from safetensors.torch import save

    folder = Path(folder)
    if not overwrite:
        check_free(folder)
    official = to_official(dict(model.named_parameters()), model.size)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in official.items()}
    config = {
        **FIXED,
        "architectures": ["TimeMoeForPrediction"],
        "num_key_value_heads": model.size.heads,
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": str(model.embed.dtype).removeprefix("torch."),
        **{key: getattr(model.size, name) for key, name in KEYS.items()},
    }
    disk.make_folder(folder)
    disk.write_file(folder / WEIGHTS, save(tensors, {"format": "pt"}))
    disk.write_file(folder / CONFIG, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())


def read_size(folder: str | Path) -> Size:
    """Read the size of a model from a config.json.

    Args:
        folder: The file, or a folder with it; weights are not needed.

    Returns:
        The size.

    Raises:
        SourceNotFoundError: There is no config.json.
        SourceInvalidError: It is not that of a Time-MoE, or the model does not fit into memory.
    """
    path = Path(folder) if Path(folder).suffix == ".json" else Path(folder) / CONFIG
    config = _read_json(path)
    for key, value in FIXED.items():
        if config.get(key, value) != value:
            raise SourceInvalidError(f"{path}: {key} is {repr(config[key])[:40]}; expected {value!r}. It is another kind of model.")
    missing = [key for key in KEYS if key not in config and key not in OPTIONAL]
    if missing:
        raise SourceInvalidError(f"{path} has no {missing[0]}. It is not the config of a Time-MoE.")
    horizons = config["horizon_lengths"]
    if not isinstance(horizons, list):
        horizons = [horizons]  # the authors' config also takes a single number
    numbers: dict[str, Any] = {name: config[key] for key, name in KEYS.items() if key in config}
    try:
        size = Size(**{**numbers, "horizons": tuple(horizons)})
    except OptionError as error:
        official = {name: key for key, name in KEYS.items()}
        name, _, rest = str(error).removeprefix("size: ").partition(" ")
        raise SourceInvalidError(f"{path}: {official.get(name, name)} {rest}") from error
    shared = config.get("num_key_value_heads")
    if shared is not None and shared != config["num_attention_heads"]:
        raise SourceInvalidError(f"{path}: num_key_value_heads is {repr(shared)[:40]}; expected {size.heads}, as many as heads.")
    free = psutil.virtual_memory().available
    if 4 * size.num_parameters > free:
        needed = f"{size.num_parameters:.3g} parameters, {readable_bytes(4 * size.num_parameters)} in float32"
        memory = f"{readable_bytes(free)} of memory are free"
        raise SourceInvalidError(f"{path}: a model of these sizes has {needed}, but {memory}. Use smaller sizes.")
    return size


def official_names(size: Size) -> dict[str, list[str]]:
    """The official tensors that each tensor of the model holds, concatenated along its first axes."""
    names = {"embed": ["model.embed_layer.emb_layer.weight"], "embed_gate": ["model.embed_layer.gate_layer.weight"]}
    for number in range(size.layers):
        here = f"layers.{number}"
        attention, experts = f"model.{here}.self_attn", f"model.{here}.ffn_layer"
        each = [f"{experts}.experts.{expert}" for expert in range(size.experts)]
        for kind in ("weight", "bias"):
            names[f"{here}.attention.qkv.{kind}"] = [f"{attention}.{part}_proj.{kind}" for part in "qkv"]
        names |= {
            f"{here}.attention.out.weight": [f"{attention}.o_proj.weight"],
            f"{here}.experts.router": [f"{experts}.gate.weight"],
            f"{here}.experts.gate_up": [f"{expert}.{part}_proj.weight" for expert in each for part in ("gate", "up")],
            f"{here}.experts.down": [f"{expert}.down_proj.weight" for expert in each],
            f"{here}.experts.shared_gate_up": [f"{experts}.shared_expert.{part}_proj.weight" for part in ("gate", "up")],
            f"{here}.experts.shared_down": [f"{experts}.shared_expert.down_proj.weight"],
            f"{here}.experts.shared_switch": [f"{experts}.shared_expert_gate.weight"],
            f"{here}.attention_norm.weight": [f"model.{here}.input_layernorm.weight"],
            f"{here}.experts_norm.weight": [f"model.{here}.post_attention_layernorm.weight"],
        }
    heads = [f"lm_heads.{number}.out_layer.weight" for number in range(len(size.horizons))]
    return {**names, "norm.weight": ["model.norm.weight"], "heads.weight": heads}


def to_official(tensors: Mapping[str, Tensor], size: Size) -> dict[str, Tensor]:
    """Tensors by the names of the model as tensors by official names (also gradients, which have the same shapes)."""
    official: dict[str, Tensor] = {}
    for name, parts in official_names(size).items():
        rows = tensors[name].flatten(0, -2) if tensors[name].dim() > 2 else tensors[name]
        each = list(size.horizons) if name == "heads.weight" else [len(rows) // len(parts)] * len(parts)
        official |= zip(parts, torch.split(rows, each), strict=True)
    return official


def from_official(official: Mapping[str, Tensor], size: Size) -> dict[str, Tensor]:
    """Tensors by official names as tensors by the names of the model, the first axes flattened into one."""
    return {name: torch.cat([official[part] for part in parts]) for name, parts in official_names(size).items()}


def _read(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, or of those of a folder."""
    if not path.exists():
        raise SourceNotFoundError(f"{path}: there is no checkpoint. Give a folder with {WEIGHTS}, or a safetensors file.")
    if path.is_file():
        return _read_file(path)
    if (path / WEIGHTS).exists():
        return _read_file(path / WEIGHTS)
    if not (path / INDEX).exists():
        raise SourceNotFoundError(f"{path} holds neither {WEIGHTS} nor {INDEX}. Only safetensors checkpoints are read.")
    places = _read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) and Path(name).name == name for name in places.values()):
        raise SourceInvalidError(f"{path / INDEX}: weight_map is not a map from tensors to files of the folder.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        part = _read_file(path / name)
        wrong = next((tensor for tensor in part if places.get(tensor) != name), None)
        if wrong is not None:
            raise SourceInvalidError(f"{path / name} holds {wrong}, which {INDEX} does not list for it.")
        tensors |= part
    missing = next((tensor for tensor in places if tensor not in tensors), None)
    if missing is not None:
        raise SourceInvalidError(f"{path / places[missing]} has no {missing}, which {INDEX} lists. The checkpoint is damaged.")
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise SourceNotFoundError(f"{path} is missing, but the checkpoint's index names it.") from None
    except (SafetensorError, OSError, KeyError) as error:
        raise SourceInvalidError(f"{path} is not a safetensors file: {str(error).splitlines()[0]}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceNotFoundError(f"{path} is missing. Pass a config.json, or a folder with one.") from None
    except (OSError, ValueError) as error:
        raise SourceInvalidError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise SourceInvalidError(f"{path} is a {type(content).__name__}; expected a JSON object.")
    return content


def _check_size(model: Size, file: Size, path: Path) -> None:
    for field in fields(Size):
        mine, other = getattr(model, field.name), getattr(file, field.name)
        if mine != other and field.name not in ("aux_factor", "max_position", "spread"):  # these change no tensor
            apart = f"{field.name} is {other}, but the model's is {mine}"
            raise SourceInvalidError(f"{path}: {apart}. Build the model with read_size(…).")


def _check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in expected.items():
        if name not in tensors:
            raise SourceInvalidError(f"{path} has no tensor {name}; expected {len(expected)} tensors, found {len(tensors)}.")
        if tensors[name].shape != tensor.shape:
            shape = f"{tuple(tensors[name].shape)}; expected {tuple(tensor.shape)}"
            raise SourceInvalidError(f"{path}: {name} has shape {shape}. It is another size.")
        if not tensors[name].is_floating_point():
            raise SourceInvalidError(f"{path}: {name} is {tensors[name].dtype}; expected floats.")
    strange = next((name for name in tensors if name not in expected), None)
    if strange is not None:
        raise SourceInvalidError(f"{path} holds {strange}, which is not a tensor of a Time-MoE of this size.")
