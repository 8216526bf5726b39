"""Fingerprint: what the weights of a run follow from, as plain values that a later process compares field by field.

    optimizer   every hyperparameter of every group, and which weights a group has
    loss        the name of the function, and its plain arguments and attributes
    model       the type and the plain attributes of each module (dropout p, eps, ...), and the names and shapes of all parameters
    data        what a feed delivers: store, view, order, batch size, normalize, transform; of other loaders what they show
    valid       the same of the validation batches
    schedule    the name of a function, and the number of all updates where the schedule depends on it
    run         seed and early stopping

Two more things change results and are often changed on purpose, so a difference is a warning: the source files of the model and the
loss (`source_files`), and the number of threads, by which torch cuts its sums on a CPU (`threads`).
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
import sysconfig
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
import xxhash
from msgspec import Struct
from torch import nn

from stoker.errors import StokerError
from stoker.train.stream import Stream

GROUPS = ("optimizer", "loss", "model", "data", "valid", "schedule", "run")
MAX_DEPTH = 6
MAX_ITEMS = 64
_COMPARED_ELSEWHERE = {"params", "lr", "initial_lr", "weight_decay", "fused"}
"""Entries of a parameter group: lr and weight_decay are in the group `config` of a checkpoint, fused is part of the setup."""
_LIBRARIES = tuple(
    str(Path(path).resolve()) for path in (sysconfig.get_path("stdlib"), Path(__file__).parents[1], Path(torch.__file__).parent)
)
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, type(None))


# ---- the parts of a run ----


def of_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Describe all hyperparameters; one that differs between groups is a list."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [
        {name: describe(value) for name, value in group.items() if name not in _COMPARED_ELSEWHERE}
        | {"weights": _digest(repr([(names.get(id(weight)), tuple(weight.shape)) for weight in group["params"]]))}
        for group in optimizer.param_groups
    ]
    merged: dict[str, Any] = {"groups": len(groups)}
    for name in dict.fromkeys(name for group in groups for name in group):
        values = [group.get(name) for group in groups]
        merged[name] = values[0] if all(value == values[0] for value in values) else values
    return merged


def of_model(model: nn.Module) -> dict[str, Any]:
    """Describe every module by its type and plain attributes, and every parameter by its shape."""
    modules = {
        name or "(model)": {"type": _class_of(module).__qualname__, **_settings(module)} for name, module in model.named_modules()
    }
    return {"modules": modules, "parameters": {name: str(list(weight.shape)) for name, weight in model.named_parameters()}}


def of_batches(batches: Any, *, for_training: bool = True) -> dict[str, Any] | None:
    """Describe what an iterable says of its batches: a feed all of it, a DataLoader its settings, a list its first batch."""
    if batches is None:
        return None
    by_type = ("type", "dataset", "sampler")
    identity = Stream(batches).identity()
    described = {name: type(value).__qualname__ if name in by_type else describe(value) for name, value in identity.items()}
    if not for_training:
        described.pop("batch_size", None)  # a mean over all samples does not depend on it
    return described


def of_schedule(schedule: Any, total_updates: int | None) -> dict[str, Any]:
    """Describe a function by its name; and the number of all updates, unless the schedule needs none."""
    if schedule is None:
        return {}
    is_value = is_dataclass(schedule) or isinstance(schedule, Struct)
    described: dict[str, Any] = {} if is_value else {"function": describe(inspect.unwrap(schedule))}
    try:
        needs_total = not is_value
        if not needs_total:
            schedule(10**15, None)
    except StokerError:
        needs_total = True
    return {**described, "total_updates": total_updates} if needs_total else described


# ---- what is warned of ----


def source_files(model: nn.Module, loss: Any) -> dict[str, str]:
    """Hash the source files of the model, its modules and the loss; those of torch, stoker and installed packages are left out."""
    kinds: set[Any] = {_class_of(module) for module in model.modules()}
    while isinstance(loss, functools.partial | MethodType):
        loss = loss.func if isinstance(loss, functools.partial) else loss.__func__
    kinds.add(loss if isinstance(loss, FunctionType) else type(loss))
    hashes = {}
    for kind in kinds:
        try:
            path = Path(inspect.getfile(kind))
            if not _is_library_file(str(path)):
                hashes[path.name] = xxhash.xxh3_64_hexdigest(path.read_bytes())
        except (OSError, TypeError):  # written in a notebook or a shell, or built in
            continue
    return dict(sorted(hashes.items()))


def threads() -> dict[str, Any]:
    """The threads that torch computes with on a CPU; results depend on their number."""
    return {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}


# ---- any value ----


def describe(value: Any, depth: int = 0) -> Any:
    """Describe a value as JSON: equal for equal settings in another process, different for different ones as far as is visible."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, enum.Enum):  # before numbers and texts, which some are too, as JSON has none of them
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, str) and len(value) > 200:
        return f"{value[:40]}… {_digest(value)}"
    if isinstance(value, _PLAIN):
        return next((kind(value) for kind in (int, float, str) if isinstance(value, kind) and type(value) not in _PLAIN), value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        return f"{tensor.dtype} {list(tensor.shape)} {xxhash.xxh3_64_hexdigest(data)}"
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return value.__qualname__
    name = type(value).__qualname__
    if depth >= MAX_DEPTH:
        return name
    inner = functools.partial(describe, depth=depth + 1)
    if isinstance(value, Mapping):
        return _bounded({str(key): inner(item) for key, item in value.items()})
    if isinstance(value, tuple | list):
        return _bounded([inner(item) for item in value])
    if isinstance(value, set | frozenset):
        return sorted((inner(item) for item in value), key=repr)
    if isinstance(value, functools.partial):
        return {"function": inner(value.func), "arguments": inner(value.args), "keywords": inner(value.keywords)}
    if isinstance(value, MethodType):
        return {"function": inner(value.__func__), "self": inner(value.__self__)}
    if isinstance(value, nn.Module):  # the buffers of a criterion are settings; those of a model are in its checkpoint
        is_criterion = next(value.parameters(), None) is None
        return of_model(value) | ({"buffers": inner(dict(value.named_buffers()))} if is_criterion else {})
    if is_dataclass(value):
        return {"type": name, **{field.name: inner(getattr(value, field.name)) for field in fields(value)}}
    if isinstance(value, Struct):
        return {"type": name, **{field: inner(getattr(value, field)) for field in value.__struct_fields__}}
    return {"type": name, **_settings(value)} if callable(value) else name


def _settings(value: Any) -> dict[str, Any]:
    """The attributes of a module or another object that are plain values, tuples of them, or modules within an object."""
    own = {key: part for key, part in getattr(value, "__dict__", {}).items() if key not in _MODULE_ATTRIBUTES}
    if isinstance(value, nn.Module):  # private ones are also those that sharding adds
        own = {key: part for key, part in own.items() if not key.startswith("_")}
    return {key: describe(part, 1) for key, part in own.items() if isinstance(part, (*_PLAIN, tuple, nn.Module))}


def _bounded(described: Any) -> Any:
    """A description as it is, or its digest where it is long."""
    return described if len(described) <= MAX_ITEMS else _digest(repr(described))


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def _class_of(module: nn.Module) -> type:
    """The class as it was written: sharding puts one of torch's before it."""
    return next(kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed"))


@functools.cache
def _is_library_file(name: str) -> bool:
    path = str(Path(name).resolve())
    return any(part in ("site-packages", "dist-packages") for part in Path(path).parts) or path.startswith(_LIBRARIES)
