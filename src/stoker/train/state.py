"""State: a nested state dict as flat tensors and a skeleton of plain JSON, and back, bit for bit. No pickle.

What JSON has is written as itself, so that people can read it; the rest is an object whose key begins with "$":

    {"$tensor": name}  {"$tensor": name, "dtype": "complex128"}  {"$tuple": [...]}  {"$bytes": base64}
    {"$pairs": [[key, value], ...]}  a dict with keys that are numbers      {"$dict": {...}}  a dict with such a key itself
    {"$float": 16 hex digits}        nan and the infinities, with all bits  {"$int": "0x..."}  beyond 64 bits

The law: what cannot come back exactly as it was is refused, with its path.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from stoker.errors import CheckpointError, CheckpointInvalid
from stoker.train.layout import CARRIERS, NAMES

MAX_DEPTH = 64
_RESERVED_NAME = "__metadata__"
_HEX_INT = re.compile(r"-?0x[0-9a-f]{1,4096}")
_HEX_FLOAT = re.compile(r"[0-9a-f]{16}")


def _dtypes_without_name() -> dict[str, torch.dtype]:
    """Types of torch that the format lacks. Quantised ones are left out: their bits alone are not their values."""
    found = (dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and dtype not in NAMES)
    names = {str(dtype).removeprefix("torch."): dtype for dtype in found}
    return {name: dtype for name, dtype in names.items() if not name.startswith(("qint", "quint"))}


_OTHER_DTYPES = _dtypes_without_name()


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Take a tree apart. The tensors are those of the tree, not copies; one that occurs twice is there once.

    A tree consists of dicts with keys that are text or whole numbers, lists, tuples, None, bool, int, float, str, bytes and
    dense tensors on any device.
    """
    flattening = _Flattening()
    skeleton = flattening.encode(tree, "", 0)
    return flattening.tensors, skeleton


def unflatten(tensors: Mapping[str, Tensor], skeleton: Any) -> Any:
    """Put a tree together; anything that `flatten` does not make raises `CheckpointInvalid`."""
    joining = _Joining(tensors)
    tree = joining.decode(skeleton, "", 0)
    unused = sorted(set(tensors) - joining.used)
    if unused:
        raise CheckpointInvalid(f"tensor {unused[0]!r} is not part of the state it was saved with ({len(unused)} such in all).")
    return tree


class _Flattening:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, list[tuple[Tensor, dict[str, str]]]] = {}  # by address

    def encode(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            return self._encode_tensor(value if kind is Tensor else value.detach(), path)
        if value is None or kind is bool:
            return value
        if kind is str:
            return _checked_text(value, path)
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
        if kind is bytes:
            return {"$bytes": b64encode(value).decode()}
        if depth >= MAX_DEPTH:
            _refuse(path[:80], f"is nested deeper than {MAX_DEPTH} levels", "Does it contain itself?")
        if kind is list:
            return [self.encode(item, _join(path, i), depth + 1) for i, item in enumerate(value)]
        if kind is tuple:
            return {"$tuple": [self.encode(item, _join(path, i), depth + 1) for i, item in enumerate(value)]}
        if kind is dict or kind is OrderedDict:
            return self._encode_dict(value, path, depth)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return _refuse(path, f"is a {name}", "Make it a tensor, a dict, a list, a tuple, a number, text or None.")

    def _encode_dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        is_text, is_marked = True, False
        for key in value:
            if type(key) is str:
                is_marked |= _checked_text(key, path).startswith("$")
            elif type(key) is int:
                is_text = False
            else:
                _refuse(path, f"has the key {key!r}", "Keys are text or whole numbers.")
        if not is_text:
            pairs = value.items()
            return {
                "$pairs": [[self.encode(key, path, depth), self.encode(item, _join(path, key), depth + 1)] for key, item in pairs]
            }
        made = {key: self.encode(item, _join(path, key), depth + 1) for key, item in value.items()}
        return {"$dict": made} if is_marked else made

    def _encode_tensor(self, tensor: Tensor, path: str) -> dict[str, str]:
        if type(tensor) is not Tensor:
            _refuse(path, f"is a {type(tensor).__qualname__}", "Gather it into a plain tensor first.")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            _refuse(path, f"is a tensor on {tensor.device} with layout {tensor.layout} and type {tensor.dtype}", "Make it dense.")
        # Tied weights: the same elements in the same order are one tensor. Empty ones have no address to tell.
        others = self._seen.setdefault(tensor.data_ptr(), [])
        for other, reference in others:
            if _is_same_view(tensor, other):
                return reference
        name = self._free_name(path)
        reference = {"$tensor": name}
        if tensor.dtype not in NAMES:
            reference["dtype"] = str(tensor.dtype).removeprefix("torch.")
        self.tensors[name] = _storable(tensor)
        others.append((tensor, reference))
        return reference

    def _free_name(self, wished: str) -> str:
        name, number = wished, 2
        while name in self.tensors or name == _RESERVED_NAME:
            name, number = f"{wished}~{number}", number + 1
        return name


def _join(path: str, key: str | int) -> str:
    return f"{path}.{key}" if path else str(key)


def _is_same_view(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors at one address have the same elements in the same order."""
    return (
        (one.dtype, one.shape, one.stride(), one.device) == (other.dtype, other.shape, other.stride(), other.device)
        and (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
        and one.numel() > 0
    )


def _storable(tensor: Tensor) -> Tensor:
    """The same bits as a type that the format has: a view, unless torch has put off a sign."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype in NAMES:
        return tensor
    if tensor.dtype.itemsize == 16:
        return torch.view_as_real(tensor)
    return tensor.view(CARRIERS[tensor.dtype.itemsize])


def _checked_text(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            _refuse(path, f"has the text {text!r}, which is not Unicode", "Half of a surrogate pair cannot be written.")
    return text


def _refuse(path: str, found: str, advice: str) -> NoReturn:
    raise CheckpointError(f"{path or 'the state itself'} {found}, which a checkpoint cannot hold. {advice}")


class _Joining:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.used: set[str] = set()
        self._tensors = tensors
        self._made: dict[tuple[str, str | None], Tensor] = {}

    def decode(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            _invalid(path[:80], f"at most {MAX_DEPTH} levels", "more")
        if value is None or type(value) in (bool, str, int, float):
            return value
        if type(value) is list:
            return [self.decode(item, _join(path, i), depth + 1) for i, item in enumerate(value)]
        if type(value) is not dict:
            return _invalid(path, "JSON", type(value).__name__)
        if any(key.startswith("$") for key in value):
            return self._decode_mark(value, path, depth)
        return {key: self.decode(item, _join(path, key), depth + 1) for key, item in value.items()}

    def _decode_mark(self, value: dict[str, Any], path: str, depth: int) -> Any:
        match value:
            case {"$tensor": str(name), "dtype": str(dtype)} if len(value) == 2:
                return self._tensor(name, dtype, path)
            case {"$tensor": str(name)} if len(value) == 1:
                return self._tensor(name, None, path)
            case {"$tuple": list(items)} if len(value) == 1:
                return tuple(self.decode(item, _join(path, i), depth + 1) for i, item in enumerate(items))
            case {"$dict": dict(items)} if len(value) == 1:
                return {key: self.decode(item, _join(path, key), depth + 1) for key, item in items.items()}
            case {"$pairs": list(pairs)} if len(value) == 1:
                return self._decode_pairs(pairs, path, depth)
            case {"$float": str(digits)} if len(value) == 1 and _HEX_FLOAT.fullmatch(digits):
                return struct.unpack(">d", bytes.fromhex(digits))[0]
            case {"$int": str(digits)} if len(value) == 1 and _HEX_INT.fullmatch(digits):
                return int(digits, 16)
            case {"$bytes": str(text)} if len(value) == 1:
                return _bytes(text, path)
        return _invalid(path, "one of the marks of a state", ", ".join(map(repr, value)))

    def _decode_pairs(self, pairs: list[Any], path: str, depth: int) -> dict[str | int, Any]:
        made: dict[str | int, Any] = {}
        for pair in pairs:
            if type(pair) is not list or len(pair) != 2:
                _invalid(path, "pairs of key and value", repr(pair)[:40])
            key = self.decode(pair[0], path, depth + 1)
            if (type(key) is not str and type(key) is not int) or key in made:
                _invalid(path, "keys that differ, and are strings or integers", repr(key)[:40])
            made[key] = self.decode(pair[1], _join(path, key), depth + 1)
        return made

    def _tensor(self, name: str, dtype: str | None, path: str) -> Tensor:
        if name not in self._tensors:
            _invalid(path, f"a tensor of the name {name!r}", "none")
        self.used.add(name)
        if (name, dtype) not in self._made:
            self._made[name, dtype] = self._tensors[name] if dtype is None else _as_other(self._tensors[name], dtype, path)
        return self._made[name, dtype]


def _as_other(tensor: Tensor, name: str, path: str) -> Tensor:
    dtype = _OTHER_DTYPES.get(name)
    if dtype is None:
        return _invalid(path, "a type of torch", repr(name))
    if dtype.itemsize == 16:
        if tensor.dtype != torch.float64 or tensor.shape[-1:] != (2,):
            _invalid(path, f"pairs of float64 for {name}", f"{tensor.dtype} {list(tensor.shape)}")
        return torch.view_as_complex(tensor)
    if tensor.dtype != CARRIERS[dtype.itemsize]:
        _invalid(path, f"{CARRIERS[dtype.itemsize]} for {name}", str(tensor.dtype))
    return tensor.view(dtype)


def _bytes(text: str, path: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return _invalid(path, "base64", repr(text[:40]))


def _invalid(path: str, expected: str, found: str) -> NoReturn:
    line = " ".join(found.split())  # a tensor is printed in several lines
    raise CheckpointInvalid(f"{path or 'the state itself'}: expected {expected}, found {line}.")
