"""Mutants of manifests: valid JSON that breaks rules, and text that is not quite JSON; most carry a digest that fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import xxhash
from tests.harness import seal_manifest

Rng = np.random.Generator

TEXTS = ["", "0", "x", "../x", "/etc/passwd", "\0", "\n", "<script>", "e\u0301", "\u00e9", "\u202e", "x" * 10_000]
SMALL_NUMBERS = [0, 1, -1, 2, 3, 4, 5, 9, 16, 127, 128, 4096, -128]
LARGE_NUMBERS = [2**31, 2**32, 2**53, 2**60, 2**62, 2**63 - 129, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30, -(10**30)]
SHARD = {"file": "0" * 16 + ".npy", "dtype": "<i8", "shape": [5], "blocks": ["0" * 16]}

FITTING_VALUES: dict[str, list[Any]] = {
    "dtype": "|O |V0 |V8 <U4 |S1 >f8 <c16 <M8[ns] |b1 |u1 |i1 <u2 <i2 <u4 <i4 <u8 <i8 <f2 <f4 <f8".split(),
    "file": ["0" * 16 + ".npy", "G" * 16 + ".npy", "0" * 15 + ".npy", "0" * 16 + ".npy/..", "../x", "manifest.json"],
    "shape": [[], [0], [-1], [4], [5], [9], [5, 1], [2, 1], [4, 1], [9, 0], [9, 3], [9, 2**62], [2**32, 2**32], [2**60], [1, 2, 3]],
    "blocks": [[], ["0" * 16], ["0" * 15], ["G" * 16], ["0" * 16] * 2],
    "kind": ["number", "text", "category", "timestamp", "duration", "bfloat16", "object"],
    "level": ["step", "series", "row"],
    "unit": [None, "s", "ms", "us", "ns", "us, UTC", "D", "ns, " + "x" * 100],
    "first": [None, [0, 0], [0], [0, -1], [2**63, 0], [1, 2, 3]],
    "length": [None, 0, 1, 2, 3, -1, 2**62],
    "offsets": [None, SHARD, {**SHARD, "shape": [3]}],
    "values": [None, SHARD],
    "texts": [None, {"utf8": {**SHARD, "dtype": "|u1"}, "offsets": SHARD}, {"utf8": SHARD, "offsets": SHARD}],
    "key": [None, "symbol", "price", "none"],
    "time": [None, "when", "label", "none"],
    "version": [0, 2, -1, 2**70],
}
SPARE_VALUES: list[Any] = [
    *(None, True, False, 1.0, 1.5, -0.0, 1e308, [], {}, [[]], [None], "stoker", SHARD),
    *SMALL_NUMBERS,
    *LARGE_NUMBERS,
    *TEXTS,
    *(value for values in FITTING_VALUES.values() for value in values),
]

Place = tuple[Any, Any]


def places_of(tree: Any) -> list[Place]:
    """Every node of a tree but its root, as its container and the key in it."""
    found: list[Place] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys: Any = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            waiting.append(node[key])
    return found


def pick_place(tree: Any, rng: Rng) -> Place:
    """A place whose field is as likely as any other, however often the field occurs: else columns would drown the rest."""
    fields: dict[Any, list[Place]] = {}
    for place in places_of(tree):
        siblings = ",".join(sorted(place[0])) if isinstance(place[0], dict) else "list"
        fields.setdefault((siblings, place[1] if isinstance(place[0], dict) else 0), []).append(place)
    picked: Place = pick(rng, pick(rng, list(fields.values())))
    return picked


def pick(rng: Rng, choices: list[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def copied(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def spare(rng: Rng) -> Any:
    """A value that fits nowhere in particular, or is even far too deep."""
    if rng.random() < 0.01:
        deep: Any = []
        for _ in range(200):
            deep = [deep] if rng.random() < 0.5 else {"x": deep}
        return deep
    return copied(pick(rng, SPARE_VALUES))


def replace(tree: Any, place: Place, rng: Rng) -> None:
    fitting = FITTING_VALUES.get(place[1])
    place[0][place[1]] = copied(pick(rng, fitting)) if fitting and rng.random() < 0.7 else spare(rng)


def nudge(tree: Any, place: Place, rng: Rng) -> None:
    value = place[0][place[1]]
    if isinstance(value, bool) or value is None:
        value = not value
    elif isinstance(value, int):
        value = pick(rng, [value + 1, value - 1, -value, value * 2, value + 2**32, value + 2**63, value // 2])
    elif isinstance(value, str):
        at = int(rng.integers(len(value) + 1))
        value = pick(rng, [value[:at], value[:at] + pick(rng, ["0", "/", "é", "\0"]) + value[at:], value.upper(), value[::-1]])
    elif isinstance(value, list):
        value = pick(rng, [value + value, value[:-1], value[::-1], [*value, spare(rng)], value * 30 if len(value) < 20 else value])
    place[0][place[1]] = value


def delete(tree: Any, place: Place, rng: Rng) -> None:
    del place[0][place[1]]


def add(tree: Any, place: Place, rng: Rng) -> None:
    if isinstance(place[0], dict):
        place[0][pick(rng, ["extra", "", "Version", "digest", "length", "values", "x" * 1000])] = spare(rng)
    else:
        place[0].insert(place[1], spare(rng))


def copy_from_elsewhere(tree: Any, place: Place, rng: Rng) -> None:
    other = pick(rng, places_of(tree))
    place[0][place[1]] = copied(other[0][other[1]])


def swap(tree: Any, place: Place, rng: Rng) -> None:
    """Two values of the same name change places: shards, shapes, names of two columns."""
    others = [other for other in places_of(tree) if other[1] == place[1] and other[0] is not place[0]]
    if others:
        other = pick(rng, others)
        # Copies, as one of the two may lie within the other.
        place[0][place[1]], other[0][other[1]] = copied(other[0][other[1]]), copied(place[0][place[1]])


TREE_CHANGES: list[Callable[[Any, Place, Rng], None]] = [replace, replace, nudge, nudge, delete, add, copy_from_elsewhere, swap]

TOKENS = [b"NaN", b"-Infinity", b"1e999", b"-1", b"1.0", b"01", b"0x10", b"9" * 30, b"9" * 5000, b"true", b"null"]
TOKENS += [b'"\\ud800"', b'"\\udc00x"', b'"\xff"']
FRAGMENTS = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\xef\xbb\xbf", b"/**/", b",", b"}", b'"', b"\\"]
FRAGMENTS += [b"[" * 100_000, b'{"a":' * 50_000, b" " * 1000]


def mutate_text(data: bytes, rng: Rng) -> bytes:
    """Change the text so that it may not even be JSON."""
    at = int(rng.integers(len(data) + 1))
    end = min(len(data), at + int(rng.integers(1, 40)))
    way = int(rng.integers(8))
    if way == 0:
        return data[:at]
    if way == 1 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]
    if way == 2:
        return data[:at] + data[end:]
    if way == 3:
        return data[:end] + data[at:end] + data[end:]
    if way == 4:
        return data[:at] + bytes(pick(rng, FRAGMENTS)) + data[at:]
    if way == 5:
        lines = data.split(b"\n")
        line = int(rng.integers(len(lines)))
        return b"\n".join([*lines[: line + 1], *lines[line:]])  # a key that is there twice
    if way == 6:
        return data[:at] + bytes(pick(rng, [b" ", b"\n", b"\t"])) + data[at:]
    numbers = [*re.finditer(rb"(?<=: )-?\d+|(?<=: )\"[^\"]*\"", data)]
    found = pick(rng, numbers)
    return data[: found.start()] + bytes(pick(rng, TOKENS)) + data[found.end() :]


def reseal(data: bytes) -> bytes:
    """Put the digest that fits into a text, where it has one."""
    found = re.search(rb'"digest": "([0-9a-f]{32})"', data)
    if found is None:
        return data
    zeroed = data[: found.start(1)] + b"0" * 32 + data[found.end(1) :]
    return data[: found.start(1)] + xxhash.xxh3_128_hexdigest(zeroed).encode() + data[found.end(1) :]


def mutate(data: bytes, rng: Rng) -> bytes:
    """One mutant of a valid manifest."""
    sealed = rng.random() < 0.7
    if rng.random() < 0.3:
        changed = mutate_text(data, rng)
        return reseal(changed) if sealed else changed
    tree = msgspec.json.decode(data)
    if rng.random() < 0.3:  # one rule broken, or none, and nothing else that could hide it
        field = pick(rng, list(FITTING_VALUES))
        container, key = pick(rng, [place for place in places_of(tree) if place[1] == field])
        container[key] = copied(pick(rng, FITTING_VALUES[field]))
        return seal_manifest(tree)
    for _ in range(pick(rng, [1, 1, 1, 2, 3])):
        if tree:
            pick(rng, TREE_CHANGES)(tree, pick_place(tree, rng), rng)
    if sealed:
        return seal_manifest(tree)
    return msgspec.json.format(msgspec.json.encode(tree), indent=1) + b"\n"
