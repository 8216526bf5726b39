"""State dicts as files: layout of tensors, random number generators, facts, and nested states as JSON plus tensors.

Guarantee of the layout: wide elements come first, so that every tensor is aligned to its own element and any reader of the format
can map it. Within one width the tensors of one device stand together: they are copied from there at once.
"""

from __future__ import annotations

import difflib
import math
import random
import re
import struct
import warnings
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate, groupby
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import torch
import xxhash
from torch import Tensor

from stoker._text import printable
from stoker.errors import CheckpointError, CheckpointInvalidError, OptionError

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The types that every version of the format has; a state brings others in as integers of the same width."""

CARRIERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Copies are made as integers: bits are bits, and every device can copy them."""

_ALIGNMENT = 8

Signature = tuple[tuple[str, torch.dtype, torch.Size, torch.device], ...]


class Place(NamedTuple):
    """One tensor's range among the values of its file."""

    name: str
    shape: torch.Size
    begin: int
    end: int


class PlaceRun(NamedTuple):
    """Places of one width that are filled from one device, end to end."""

    device: torch.device
    carrier: torch.dtype
    places: list[Place]
    begin: int
    end: int


class Layout(NamedTuple):
    """All of one file: its header, and the runs behind it."""

    header: bytes
    runs: list[PlaceRun]
    num_bytes: int
    """Of the values, without the header."""


def signature(tensors: Mapping[str, Tensor]) -> Signature:
    """All that a layout depends on: equal signatures, equal layouts."""
    return tuple((name, tensor.dtype, tensor.shape, tensor.device) for name, tensor in tensors.items())


def lay_out(entries: Signature) -> Layout:
    """Place tensors of types that the format has."""
    ordered = sorted(entries, key=lambda entry: (-entry[1].itemsize, str(entry[3]), entry[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    runs, end = [], 0
    for (width, device), members in groupby(ordered, key=lambda entry: (entry[1].itemsize, entry[3])):
        places = []
        for name, dtype, shape, _ in members:
            begin, end = end, end + shape.numel() * width
            places.append(Place(name, shape, begin, end))
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        runs.append(PlaceRun(device, CARRIERS[width], places, places[0].begin, end))
    text = msgspec.json.encode(header)
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return Layout(len(text).to_bytes(8, "little") + text, runs, end)


# Random numbers: the state of every global generator, captured as plain values and put back.
#
# Covers torch on the CPU, every CUDA device in use, NumPy's global generator and Python's `random`. Orders of feeds need none
# of these; models (dropout) and users' code do. Guarantee: after `restore` they give the numbers they would have given.


def capture() -> dict[str, Any]:
    """The state of all generators, as values that `flatten` takes and JSON can hold."""
    version, numbers, gauss = random.getstate()
    # A program that has not used CUDA shall not be made to start it.
    cuda: list[Tensor] = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return {
        "python": {"version": version, "numbers": np.array(numbers, dtype="<u4").tobytes(), "gauss": gauss},
        "numpy": _packed(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state().numpy().tobytes(),
        "cuda": [state.numpy().tobytes() for state in cuda],
    }


def check(state: Any) -> None:
    """Refuse a state that has not the form of those of this process: generators do not check what they are given."""
    form = {**capture(), "cuda": []}
    form["python"]["gauss"] = None
    _check_form(state, form, "random")
    gauss, place = state["python"]["gauss"], state["numpy"].get("state", {}).get("pos", 0)
    if gauss is not None and type(gauss) is not float:
        _refuse("random.python.gauss", gauss)
    if state["numpy"]["bit_generator"] == "MT19937" and not 0 <= place <= 624:
        _refuse("random.numpy.state.pos", place)  # it is an index, which NumPy does not check
    for data in state["cuda"]:
        if type(data) is not bytes:
            _refuse("random.cuda", data)


def _check_form(state: Any, form: Any, place: str) -> None:
    """Types, keys, names of generators and lengths of bytes are those of `form`; None stands for anything."""
    if form is None:
        return
    if type(state) is not type(form) or (isinstance(form, str) and state != form):
        _refuse(place, state)
    if isinstance(form, bytes | tuple) and len(state) != len(form):
        _refuse(place, state)
    if isinstance(form, dict):
        if state.keys() != form.keys():
            _refuse(place, list(state))
        for name, part in form.items():
            _check_form(state[name], part, f"{place}.{name}")
    if isinstance(form, tuple):
        for entry, part in zip(state, form, strict=True):
            _check_form(entry, part, place)


def _refuse(place: str, found: Any) -> NoReturn:
    text = repr(found)
    raise CheckpointInvalidError(
        f"{place} is {text[:40]}{'…' * (len(text) > 40)}; expected the state of a generator of this process."
    )


def restore(state: dict[str, Any]) -> None:
    """Put captured states back; if one of them cannot be, none is changed."""
    before = capture()
    try:
        _restore(state)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        _restore(before)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointInvalidError(f"the saved state of random numbers cannot be put back ({reason}).") from error
    saved, present = len(state["cuda"]), torch.cuda.device_count()
    if saved > present:
        warnings.warn(
            f"the checkpoint has the random state of {saved} CUDA devices, but there are {present}: random numbers made on the "
            f"missing ones will differ from those of an uninterrupted run.",
            stacklevel=2,
        )


def derive(state: dict[str, Any], number: int) -> None:
    """Give this process random numbers of its own, that follow from the captured state of another one and a number."""
    restore(state)
    seed_all((int(torch.empty((), dtype=torch.int64).random_()) + number) % 2**63)


def seed_all(seed: int) -> None:
    """Seed every global generator: a model or loss of the user's own may draw from any of them."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_batch(seed: int, step: int, number: int) -> None:
    """Seed every global generator for one batch: a function of the seed of the run, the update, and the number of the batch in it.

    As `seed_all`, without what `torch.manual_seed` does for devices that are not used, which takes 90 of its 92 µs.
    """
    mixed = xxhash.xxh3_64_intdigest(f"{seed} {step} {number}".encode()) >> 1
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(mixed)
    np.random.seed(mixed % 2**32)
    random.seed(mixed)


def _restore(state: dict[str, Any]) -> None:
    python = state["python"]
    numbers = tuple(np.frombuffer(python["numbers"], dtype="<u4").tolist())
    random.setstate((python["version"], numbers, python["gauss"]))
    np.random.set_state(_unpacked(state["numpy"]))
    torch.set_rng_state(_as_tensor(state["torch"]))
    for i, data in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_as_tensor(data), i)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _packed(value: Any) -> Any:
    """NumPy's description of a bit generator, with its arrays as (type, bytes)."""
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.tobytes())
    return value.item() if isinstance(value, np.generic) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    if isinstance(value, tuple):
        dtype, data = value
        if dtype not in ("<u4", "<u8"):
            raise ValueError(f"an array of {dtype!r}")
        return np.frombuffer(data, dtype=dtype).copy()
    return value


# Facts: what a checkpoint says about the run it is of, compared with the run that would resume from it.
#
# A resumed run is exact only with the same configuration, data and versions. So each field that differs is named with both
# values, and is refused unless it is allowed by name.

_ABSENT = object()
_SHOWN = 60
_LISTED = 8


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], *, allow: Collection[str] = ()) -> list[str]:
    """One line a field that differs, like "config.batch_size: 256 saved, 512 now". `allow` names fields or groups of them.

    Only the groups that `now` has are compared, so a checkpoint may hold more than what has to be equal.
    """
    fields = dict(_compare({key: saved[key] for key in now if key in saved}, now, ""))
    # Each field with the groups it is in: a, a.b and a.b.c.
    groups = {field: list(accumulate(field.split("."), "{}.{}".format)) for field in fields}
    names = {name for group in groups.values() for name in group}
    allowed = [allow] if isinstance(allow, str) else allow
    for name in allowed:
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), n=1)
            raise OptionError(
                f"allow={name!r}: there is no such field" + (f". Did you mean {near[0]!r}?" if near else "."), parameter="allow"
            )
    return [
        f"{field}: {shown(old)} saved, {shown(new)} now"
        for field, (old, new) in fields.items()
        if not _same(old, new) and not any(name in allowed for name in groups[field])
    ]


def check_facts(saved: Mapping[str, Any], now: Mapping[str, Any], *, where: str, allow: Collection[str] = ()) -> None:
    """Refuse to resume where anything differs that is not allowed; `where` names the checkpoint."""
    lines = differences(saved, now, allow=allow)
    if lines:
        text = "; ".join(lines[:_LISTED]) + (f"; and {len(lines) - _LISTED:,} more" if len(lines) > _LISTED else "")
        raise CheckpointInvalidError(
            f"{where} is of another run: {printable(text)}. Make them equal, or allow each by name "
            f"({printable(lines[0].partition(':')[0])})."
        )


def _compare(saved: Any, now: Any, path: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """All leaves of both trees by their dotted names."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping) and (saved or now):
        for key in dict.fromkeys([*saved, *now]):
            name = f"{path}.{key}" if path else str(key)
            yield from _compare(saved.get(key, _ABSENT), now.get(key, _ABSENT), name)
    else:
        yield path, (saved, now)


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, bool) != isinstance(new, bool):
        return False  # True == 1, but not in a configuration
    return bool(old == new) or (old != old and new != new)


def shown(value: Any) -> str:
    """A value as an error shows it."""
    text = "absent" if value is _ABSENT else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# State: a nested state dict as flat tensors and a skeleton of plain JSON, and back, bit for bit. No pickle.
#
# What JSON has is written as itself, so that people can read it; the rest is an object whose key begins with "$":
#
#     {"$tensor": name}  {"$tensor": name, "dtype": "complex128"}  {"$tuple": [...]}  {"$bytes": base64}
#     {"$pairs": [[key, value], ...]}  a dict with keys that are numbers      {"$dict": {...}}  a dict with such a key itself
#     {"$float": 16 hex digits}        nan and the infinities, with all bits  {"$int": "0x..."}  beyond 64 bits
#
# Guarantee: what cannot come back exactly as it was is refused, with its path.

MAX_DEPTH = 64
_RESERVED_NAME = "__metadata__"
_HEX_INT = re.compile(r"-?0x[0-9a-f]{1,4096}")
_HEX_FLOAT = re.compile(r"[0-9a-f]{16}")


_OTHER_DTYPES = {
    name: dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
    and dtype not in NAMES
    and not (name := str(dtype).removeprefix("torch.")).startswith(("qint", "quint"))
}
"""Types of torch that the format lacks. Quantised ones are left out: their bits alone are not their values."""


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Take a tree apart. The tensors are those of the tree, not copies; one that occurs twice is there once.

    A tree consists of dicts with keys that are strings or integers, lists, tuples, None, bool, int, float, str, bytes and
    dense tensors on any device.
    """
    flattening = _Flattening()
    skeleton = flattening.encode(tree, "", 0)
    return flattening.tensors, skeleton


def unflatten(tensors: Mapping[str, Tensor], skeleton: Any) -> Any:
    """Put a tree together; anything that `flatten` does not make raises `CheckpointInvalidError`."""
    joining = _Joining(tensors)
    tree = joining.decode(skeleton, "", 0)
    unused = sorted(set(tensors) - joining.used)
    if unused:
        raise CheckpointInvalidError(
            f"tensor {unused[0]!r} is not part of the state it was saved with ({len(unused)} such in all)."
        )
    return tree


class _Flattening:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[tuple[Any, ...], dict[str, str]] = {}

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
            _refuse_state(path[:80], f"is nested deeper than {MAX_DEPTH} levels", "Does it contain itself?")
        if kind is list:
            return [self.encode(item, _join(path, i), depth + 1) for i, item in enumerate(value)]
        if kind is tuple:
            return {"$tuple": [self.encode(item, _join(path, i), depth + 1) for i, item in enumerate(value)]}
        if kind is dict or kind is OrderedDict:
            return self._encode_dict(value, path, depth)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return _refuse_state(path, f"is a {name}", "Make it a tensor, a dict, a list, a tuple, a number, text or None.")

    def _encode_dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        for key in value:
            if type(key) is str:
                _checked_text(key, path)
            elif type(key) is not int:
                _refuse_state(path, f"has the key {key!r}", "Keys are strings or integers.")
        made = {key: self.encode(item, _join(path, key), depth + 1) for key, item in value.items()}
        if any(type(key) is int for key in value):
            return {"$pairs": [[self.encode(key, path, depth), item] for key, item in made.items()]}
        return {"$dict": made} if any(key.startswith("$") for key in made) else made

    def _encode_tensor(self, tensor: Tensor, path: str) -> dict[str, str]:
        if type(tensor) is not Tensor:
            _refuse_state(path, f"is a {type(tensor).__qualname__}", "Gather it into a plain tensor first.")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            _refuse_state(
                path, f"is a tensor on {tensor.device} with layout {tensor.layout} and type {tensor.dtype}", "Make it dense."
            )
        # Tied weights: the same elements in the same order are one tensor. Empty ones have no address to tell.
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.is_conj(), tensor.is_neg())
        if tensor.numel() and view in self._seen:
            return self._seen[view]
        name, number = path, 2
        while name in self.tensors or name == _RESERVED_NAME:
            name, number = f"{path}~{number}", number + 1
        reference = self._seen[view] = {"$tensor": name}
        if tensor.dtype not in NAMES:
            reference["dtype"] = str(tensor.dtype).removeprefix("torch.")
        self.tensors[name] = _storable(tensor)
        return reference


def _join(path: str, key: str | int) -> str:
    return f"{path}.{key}" if path else str(key)


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
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse_state(path, f"has the text {text!r}, which is not Unicode", "Half of a surrogate pair cannot be written.")
    return text


def _refuse_state(path: str, found: str, advice: str) -> NoReturn:
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
        match list(value.items()):
            case [("$tensor", str(name)), ("dtype", str(dtype))] | [("dtype", str(dtype)), ("$tensor", str(name))]:
                return self._tensor(name, dtype, path)
            case [("$tensor", str(name))]:
                return self._tensor(name, None, path)
            case [("$tuple", list(items))]:
                return tuple(self.decode(item, _join(path, i), depth + 1) for i, item in enumerate(items))
            case [("$dict", dict(items))]:
                return {key: self.decode(item, _join(path, key), depth + 1) for key, item in items.items()}
            case [("$pairs", list(pairs))]:
                return self._decode_pairs(pairs, path, depth)
            case [("$float", str(digits))] if _HEX_FLOAT.fullmatch(digits):
                return struct.unpack(">d", bytes.fromhex(digits))[0]
            case [("$int", str(digits))] if _HEX_INT.fullmatch(digits):
                return int(digits, 16)
            case [("$bytes", str(text))]:
                try:
                    return b64decode(text, validate=True)
                except ValueError:
                    return _invalid(path, "base64", repr(text[:40]))
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


def _invalid(path: str, expected: str, found: str) -> NoReturn:
    line = " ".join(found.split())  # a tensor is printed in several lines
    raise CheckpointInvalidError(f"{path or 'the state itself'}: expected {expected}, found {line}.")
