"""Fingerprint: what the weights of a run follow from, as plain values that a later process compares field by field.

    optimizer   every hyper-parameter of every group, and which weights a group has
    loss        its name, the code of the user's own functions, and the values that they close over
    model       each module with its plain attributes (dropout p, eps, ...), and the code of the user's own classes
    data        what a feed delivers: store, view, order, batch size, normalize, transform; of other loaders what they show
    valid       the same of the validation batches
    schedule    the code of a function, and the number of all updates where the schedule depends on it
    run         seed and early stopping

Code is compared only where it is the user's: torch, stoker and installed packages are known by name, so that an upgrade does not
make a run refuse to resume. It is compared with what it uses (`uses`): helper functions, constants of modules and classes, defaults
of arguments. Variables that a function assigns or fills itself (a counter) are state, not settings, and are left out.
"""

from __future__ import annotations

import argparse
import dis
import enum
import functools
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import xxhash
from msgspec import Struct
from torch import nn

from stoker.errors import StokerError
from stoker.feed.protocol import as_batch_source

GROUPS = ("optimizer", "loss", "model", "data", "valid", "schedule", "run")
USES = "uses"
"""The key below which a description has the values that code works with; `uses_version` says how they were found."""
USES_VERSION = 1

MAX_DEPTH = 6
MAX_ITEMS = 64
_COMPARED_ELSEWHERE = {"params", "lr", "initial_lr", "weight_decay", "fused"}
"""Entries of a parameter group: lr and weight_decay are in the group `config` of a checkpoint, fused is part of the setup."""
_LIBRARIES = tuple(
    str(Path(path).resolve()) for path in (sysconfig.get_path("stdlib"), Path(__file__).parents[1], Path(torch.__file__).parent)
)
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, type(None))
_RECORDS = (torch.Tensor, np.ndarray, enum.Enum, SimpleNamespace, argparse.Namespace, set, frozenset)
_FILLS = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "clear"})
"""Methods that change a container: a function that calls one keeps state in it."""
_OWN_NAME = re.compile(r"^stoker\.(?:\w+\.)*(\w+)")


def python_version() -> str:
    """The version whose byte code is hashed: that of another one says nothing."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def aligned(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The part of two fingerprints that can be compared.

    A checkpoint of an earlier version of stoker has no fingerprint, code of another version of Python has other bytes, and a
    module of another version of a package may have attributes more or less. Classes and functions of stoker are compared by their
    names alone, because another version may have them in another module.
    """
    both = [{name: _without_modules(one.get(name)) for name in GROUPS if name in saved and name in now} for one in (saved, now)]
    if saved.get("python") != now.get("python"):
        both = [_without(_without(one, "code"), USES) for one in both]
    if saved.get("uses_version") != now.get("uses_version"):
        both = [_without(one, USES) for one in both]
    old, new = (_modules(one) for one in both)
    for name in old.keys() & new.keys():
        if old[name].get("type") == new[name].get("type") and str(old[name].get("type")).startswith(("torch.", "stoker.")):
            for key in old[name].keys() ^ new[name].keys():
                old[name].pop(key, None)
                new[name].pop(key, None)
    return both[0], both[1]


def _without_modules(value: Any) -> Any:
    """A part of a fingerprint in which `stoker.a.b.Name` is `stoker.Name`."""
    if isinstance(value, dict):
        return {key: _without_modules(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_modules(part) for part in value]
    return _OWN_NAME.sub(r"stoker.\1", value) if isinstance(value, str) else value


_FEED_NAMES = {"last": "last_batch", "part": "subset", "encode": "transform", "numbers": "return_index"}
PUBLIC_NAMES = {
    "config": {"accumulate": "grad_accum_steps", "clip": "max_grad_norm"},
    "data": _FEED_NAMES,
    "valid": _FEED_NAMES,
}
"""What checkpoints call an option, and how it is written now: stored names stay, messages have those of now."""


def public_name(name: str) -> str:
    """A dotted field with the name that its option has now: `config.clip` is `config.max_grad_norm`."""
    group, _, rest = name.partition(".")
    field, dot, inner = rest.partition(".")
    return f"{group}.{PUBLIC_NAMES[group].get(field, field)}{dot}{inner}" if rest and group in PUBLIC_NAMES else name


def with_public_names(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint with the names and values that options have now."""
    found = dict(facts)
    for group, names in PUBLIC_NAMES.items():
        if isinstance(found.get(group), dict):
            taken = found[group].keys()  # batches of somebody else may have any names
            found[group] = {name if names.get(name) in taken else names.get(name, name): found[group][name] for name in taken}
            if found[group].get("last_batch") == "mask":
                found[group]["last_batch"] = "pad"
    return found


def _without(tree: Any, key: str) -> Any:
    return {name: _without(part, key) for name, part in tree.items() if name != key} if isinstance(tree, dict) else tree


def _modules(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The modules of a fingerprint, copied into it so that they can be changed; what is forged has none."""
    model = one.get("model")
    modules = model.get("modules") if isinstance(model, dict) else None
    if not isinstance(modules, dict) or not all(isinstance(part, dict) for part in modules.values()):
        return {}
    copied = {name: dict(part) for name, part in modules.items()}
    one["model"] = {**one["model"], "modules": copied}
    return copied


# ---- the parts of a run ----


def of_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """All hyper-parameters; one that differs between groups is a list."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [
        {name: describe(value) for name, value in group.items() if name not in _COMPARED_ELSEWHERE}
        | {"weights": _digest(repr([(names.get(id(one)), tuple(one.shape)) for one in group["params"]]))}
        for group in optimizer.param_groups
    ]
    found: dict[str, Any] = {"groups": len(groups)}
    for name in dict.fromkeys(name for group in groups for name in group):
        values = [group.get(name) for group in groups]
        found[name] = values[0] if all(value == values[0] for value in values) else values
    return found


def of_model(model: nn.Module) -> dict[str, Any]:
    """Every module by its name with its type and plain attributes, and the code of the classes that are the user's."""
    modules, code, kinds = {}, {}, {}
    for name, module in model.named_modules():
        # The class as it was written: sharding puts one of torch's before it.
        kind = next(kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed"))
        modules[name or "(model)"] = {"type": _name_of(kind), **_attributes(module)}
        if not _is_library(kind):
            code[kind.__qualname__] = _class_code(kind)
            kinds[kind] = True
    return {"modules": modules, "code": code, **_uses_of_classes(kinds)}


def _attributes(module: nn.Module) -> dict[str, Any]:
    found, held = {}, {}
    for name, value in vars(module).items():
        if name in _MODULE_ATTRIBUTES or name in ("type", USES) or isinstance(value, nn.Module):
            continue
        if _is_plain(value) or isinstance(value, torch.Tensor | FunctionType | BuiltinFunctionType | functools.partial):
            found[name] = describe(value)
        elif _is_setting(value):
            held[name] = describe(value)
    return {**found, USES: held} if held else found


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) <= MAX_ITEMS and all(map(_is_plain, value))
    if isinstance(value, dict):
        return len(value) <= MAX_ITEMS and all(map(_is_plain, [*value, *value.values()]))
    return isinstance(value, (*_PLAIN, torch.dtype))


def _is_setting(value: Any) -> bool:
    """Whether a value of a module, a class or an object is one that a user sets, and not an object with a life of its own."""
    return _is_plain(value) or isinstance(value, _RECORDS) or (is_dataclass(value) and not isinstance(value, type | nn.Module))


def of_batches(batches: Any, *, for_training: bool = True) -> dict[str, Any] | None:
    """What an iterable says of its batches: a feed all of it, a DataLoader its settings, a list its first batch."""
    if batches is None:
        return None
    by_type = ("type", "dataset", "sampler")
    identity = as_batch_source(batches).identity()
    found = {name: _name_of(type(value)) if name in by_type else describe(value) for name, value in identity.items()}
    if not for_training:
        found.pop("batch_size", None)  # a mean over all samples does not depend on it
    return found


def of_schedule(schedule: Any, total_updates: int | None) -> dict[str, Any]:
    """The code of a function; and the number of all updates, unless the schedule needs none."""
    if schedule is None:
        return {}
    is_value = is_dataclass(schedule) or isinstance(schedule, Struct)
    found: dict[str, Any] = {} if is_value else {"function": describe(schedule)}
    try:
        needs_total = not is_value
        if not needs_total:
            schedule(10**15, None)
    except StokerError:
        needs_total = True
    return {**found, "total_updates": total_updates} if needs_total else found


# ---- any value ----


def describe(value: Any, depth: int = 0, seen: tuple[int, ...] = ()) -> Any:
    """A value as JSON has it: equal for equal settings in another process, different for different ones as far as is visible."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, enum.Enum):  # before numbers and texts, which some are too, as JSON has none of them
        return {"type": _name_of(type(value)), "name": value.name}
    if isinstance(value, str) and len(value) > 200:
        return f"{value[:40]}… {_digest(value)}"
    if isinstance(value, _PLAIN):
        return next((kind(value) for kind in (int, float, str) if isinstance(value, kind) and type(value) not in _PLAIN), value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return f"{value.dtype} {list(value.shape)}"
        value = torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        return f"{tensor.dtype} {list(tensor.shape)} {xxhash.xxh3_64_hexdigest(data)}"
    if isinstance(value, torch.dtype):
        return str(value)
    if depth >= MAX_DEPTH or id(value) in seen:
        return _name_of(type(value))
    inner = functools.partial(describe, depth=depth + 1, seen=(*seen, id(value)))
    if isinstance(value, Mapping):
        made = {str(key): inner(item) for key, item in value.items()}
        return made if len(made) <= MAX_ITEMS else _digest(repr(sorted(made.items())))
    if isinstance(value, tuple | list):
        parts = [inner(item) for item in value]
        return parts if len(parts) <= MAX_ITEMS else _digest(repr(parts))
    if isinstance(value, set | frozenset):
        return sorted((inner(item) for item in value), key=repr)
    if isinstance(value, functools.partial):
        return {"function": inner(value.func), "arguments": inner(value.args), "keywords": inner(value.keywords)}
    if isinstance(value, MethodType):
        return {"function": inner(value.__func__), "self": inner(value.__self__)}
    if isinstance(value, FunctionType):
        return _describe_function(value, inner)
    if isinstance(value, nn.Module):  # the buffers of a criterion are settings; those of a model are in its checkpoint
        is_criterion = next(value.parameters(), None) is None
        return of_model(value) | ({"buffers": inner(dict(value.named_buffers()))} if is_criterion else {})
    if isinstance(value, type):
        if _is_library(value):
            return _name_of(value)
        return {"name": value.__qualname__, "code": _class_code(value), **_uses_of_classes([value])}
    return _describe_object(value, inner)


def _describe_function(function: FunctionType, inner: Any) -> Any:
    """The name of a function; of the user's own also its code and the values that it works with."""
    if _is_library_file(function.__code__.co_filename):
        name, rest = f"{function.__module__}.{function.__qualname__}", _closure(function, inner)
        return {"name": name, **rest} if rest else name
    found = {"name": function.__qualname__, "code": _code_digest(function.__code__), **_closure(function, inner)}
    held = {}
    for name, value in _globals_of(function):
        if isinstance(value, FunctionType) or (isinstance(value, (*_PLAIN, tuple)) and _is_plain(value)):
            found[name] = inner(value)
        else:
            held[name] = inner(value)
    if held:
        found[USES] = held
    defaults = {"defaults": function.__defaults__, "keyword_defaults": function.__kwdefaults__}
    return found | {name: inner(value) for name, value in defaults.items() if value}


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Settings of its module that a function works with, and functions and classes of the user's own."""
    used = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in sorted(used - _assigned(function.__code__)):
        value = function.__globals__.get(name, ...)
        if isinstance(value, FunctionType):
            if value is not function and not _is_library_file(value.__code__.co_filename):
                yield name, value
        elif isinstance(value, type):
            if not _is_library(value):
                yield name, value
        elif _is_setting(value):
            yield name, value


def _uses_of_classes(kinds: Iterable[type]) -> dict[str, Any]:
    """What the methods of classes use, and what those functions use in turn, as one flat list: each is inspected once."""
    found: dict[str, Any] = {}
    todo: list[Any] = list(kinds)
    first = len(todo)
    for number, one in enumerate(todo):  # which grows meanwhile
        if isinstance(one, type):
            if number >= first:
                found[one.__qualname__] = _class_code(one)
            new = list(_own_members(one))
        else:
            defaults = [part for part in (one.__defaults__, one.__kwdefaults__) if part]
            if defaults:
                found[f"{one.__qualname__}.defaults"] = describe(defaults)
            new = [(f"{one.__qualname__}.{name}", part) for name, part in _closed_over(one) if _is_setting(part)]
            new += _globals_of(one)
        for name, value in new:
            if not isinstance(value, type | FunctionType):
                found[name] = describe(value)
            elif not any(value is known for known in todo):
                todo.append(value)
                if isinstance(value, FunctionType) and not isinstance(one, type):  # that of a method is in the code of its class
                    found[value.__qualname__] = _code_digest(value.__code__)
    return {USES: found} if found else {}


def _own_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and settings that a class and its bases of the user's own define; a property with its code, as no method has it."""
    for base in kind.__mro__:
        for name, member in sorted(vars(base).items()) if not _is_library(base) else ():
            place = f"{base.__qualname__}.{name}"
            if isinstance(member, property) and isinstance(member.fget, FunctionType):
                yield f"{place}.code", _code_digest(member.fget.__code__)
                yield place, member.fget
            elif isinstance(function := _function_of(member), FunctionType):
                if not _is_library_file(function.__code__.co_filename):  # that of an enum has some of the library
                    yield place, function
            elif not name.startswith("__") and _is_setting(member):
                yield place, member


def _function_of(member: Any) -> Any:
    """The function of a method, a class method or a wrapped function; other members as they are."""
    return inspect.unwrap(getattr(member, "__func__", member))


def _closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue


def _closure(function: FunctionType, inner: Any) -> dict[str, Any]:
    assigned = _assigned(function.__code__)
    return {name: inner(value) for name, value in _closed_over(function) if name not in assigned and value is not function}


def _describe_object(value: Any, inner: Any) -> Any:
    """An object: its type, and its attributes where the type is the user's or one of the plain records of stoker."""
    kind = type(value)
    if isinstance(value, ModuleType | BuiltinFunctionType):
        return f"{getattr(value, '__module__', None) or ''}.{value.__name__}".lstrip(".")
    found: dict[str, Any] = {"type": _name_of(kind)}
    if is_dataclass(value):
        values = {one: getattr(value, one.name) for one in fields(value)}
        # Fields that came later are left out at their default, so that checkpoints of earlier versions compare.
        return found | {
            one.name: inner(part) for one, part in values.items() if not one.metadata.get("later") or part != one.default
        }
    if isinstance(value, Struct):
        return found | {name: inner(getattr(value, name)) for name in value.__struct_fields__}
    is_ours = kind.__module__.startswith("stoker.") and callable(value)
    if isinstance(value, SimpleNamespace | argparse.Namespace):
        return {**found, **{name: inner(part) for name, part in vars(value).items()}}
    if _is_library(kind) and not is_ours:
        return found["type"]
    if not _is_library(kind):
        found |= {"code": _class_code(kind), **_uses_of_classes([kind])}
    attributes = getattr(value, "__dict__", {})
    return found | {str(name): inner(part) for name, part in list(attributes.items())[:MAX_ITEMS]}


# ---- code ----


def _class_code(kind: type) -> str:
    """Of all methods that a class and its bases of the user's own define."""
    functions = [
        (base.__qualname__, name, _code_digest(found.__code__))
        for base in kind.__mro__
        if not _is_library(base)
        for name, member in sorted(vars(base).items())
        if isinstance(found := _function_of(member), FunctionType)
    ]
    return _digest(repr(functions))


def _code_digest(code: CodeType) -> str:
    return _digest(repr(_code_parts(code)))


def _code_parts(code: CodeType) -> tuple[Any, ...]:
    """All that decides what code does; neither where it stands nor how its lines are numbered."""
    constants = [
        _code_parts(one) if isinstance(one, CodeType) else sorted(map(repr, one)) if isinstance(one, frozenset) else repr(one)
        for one in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _assigned(code: CodeType) -> set[str]:
    """Variables of the surroundings that a function assigns, and containers that it fills."""
    found: set[str] = set()
    for one in _codes(code):
        for line, after in pairwise(dis.get_instructions(one)):
            is_filled = line.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and after.opname in ("LOAD_METHOD", "LOAD_ATTR")
            if line.opname in ("STORE_DEREF", "STORE_GLOBAL", "DELETE_DEREF", "DELETE_GLOBAL") or (
                is_filled and after.argval in _FILLS
            ):
                found.add(str(line.argval))
    return found


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def _name_of(kind: type) -> str:
    """The name of a class; one of stoker that was renamed keeps its first name here, so that earlier checkpoints compare."""
    if not _is_library(kind):
        return kind.__qualname__
    return str(vars(kind).get("name_in_checkpoints", f"{kind.__module__}.{kind.__qualname__}"))


def _is_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    if kind.__module__.partition(".")[0] in ("builtins", "torch", "stoker", "numpy"):
        return True
    file = getattr(module, "__file__", None)
    return file is not None and _is_library_file(file)


@functools.cache
def _is_library_file(name: str) -> bool:
    if name.startswith("<frozen"):
        return True
    path = str(Path(name).resolve())
    return any(part in ("site-packages", "dist-packages") for part in Path(path).parts) or path.startswith(_LIBRARIES)
