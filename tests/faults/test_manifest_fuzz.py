"""Mutated manifests: each is refused as `ManifestError`, or it is a manifest by every rule of the format.

The mutants are made and judged in a child with little memory, so that a crash, an endless loop or a hunger for memory
is the outcome of one test and not the end of all.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.faults.mutants import mutate, places_of
from tests.harness import Zygote, tiny_store

from stoker.errors import ManifestError, StoreDamagedError
from stoker.store import manifest as manifests
from stoker.store import open_store
from stoker.store.manifest import Manifest

ITEM_BYTES = {
    **{"|b1": 1, "|u1": 1, "|i1": 1, "<u2": 2, "<i2": 2, "<f2": 2},
    **{"<u4": 4, "<i4": 4, "<f4": 4, "<u8": 8, "<i8": 8, "<f8": 8},
}
dump = manifests.dump  # the real one, as a control may replace it


def broken_rules(manifest: Manifest) -> list[str]:
    """The rules of the format once more, in other words than those of the parser; what they say against a manifest."""
    tree: Any = msgspec.to_builtins(manifest)
    broken = []
    for container, key in places_of(tree):
        value = container[key]
        if isinstance(value, int) and not 0 <= value < 2**63:
            broken.append(f"number {value}")
        if isinstance(value, dict) and "file" in value:
            broken += broken_shard_rules(value)
    steps, series = tree["num_steps"], tree["num_series"]
    if tree["length"] is not None and tree["length"] * series != steps:
        broken.append("length")
    if (tree["length"] is None) != (tree["offsets"] is not None) or (tree["offsets"] and tree["offsets"]["shape"] != [series + 1]):
        broken.append("offsets")
    names = [unicodedata.normalize("NFC", column["name"]) for column in tree["columns"]]
    if len(set(names)) != len(names):
        broken.append("names")
    for column in tree["columns"]:
        if column["values"] is not None and column["values"]["shape"][0] != (steps if column["level"] == "step" else series):
            broken.append("rows")
    return broken


def broken_shard_rules(shard: dict[str, Any]) -> list[str]:
    if not re.fullmatch("[0-9a-f]{16}[.]npy", shard["file"]):
        return ["file"]
    if shard["dtype"] not in ITEM_BYTES:
        return ["dtype"]
    if len(shard["shape"]) not in (1, 2) or any(not 0 <= number < 2**63 for number in shard["shape"]):
        return ["shape"]
    num_bytes = ITEM_BYTES[shard["dtype"]]
    for number in shard["shape"]:
        num_bytes *= number
    return ["blocks"] if len(shard["blocks"]) != (num_bytes + (16 << 20) - 1) // (16 << 20) else []


def judge(data: bytes, folder: Path) -> str:
    """What became of a mutant; anything but the outcomes named here is a fault, also an exception."""
    try:
        manifest = manifests.load(data, "m")
    except ManifestError as error:
        place = re.search(r"(\$[^:`]*)", str(error))
        return "refused at " + re.sub(r"\d+", "i", place[1]) if place else "refused"
    broken = broken_rules(manifest)
    if broken:
        return f"fault: loaded although {broken[0]} breaks a rule"
    if dump(manifest) != data:
        return "fault: loaded although it is not what would be written"
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_bytes(data)
    try:
        store = open_store(folder)
    except StoreDamagedError:
        return "loaded, and its shards do not fit"
    for series in store:
        dict(series)
    repr(store)
    return f"opened: {store.lengths.sum() == store.num_steps}"


def remove_guard(guard: str) -> None:
    """Take one guard away from the parser, in this process."""

    def pass_all(*_: Any, **__: Any) -> None:
        return None

    if guard == "digest":
        manifests.dump = lambda _: type("Equal", (), {"__ne__": lambda *_: False})()  # type: ignore[assignment]
    elif guard == "dtypes":
        manifests.DTYPES |= {"|O", "|V0", "|V8", "<U4", "|S1", ">f8", "<c16", "<M8[ns]"}
        manifests._DTYPES_OF_KIND.update(dict.fromkeys(manifests._DTYPES_OF_KIND, manifests.DTYPES))
    elif guard == "file names":
        manifests.SHARD_NAME = re.compile(".*", re.DOTALL)  # type: ignore[attr-defined]
    else:
        setattr(manifests._Rules, guard, pass_all)


def fuzz(path: str, seed: int, count: int, guard: str | None = None) -> dict[str, int]:
    """Judge `count` mutants of two small stores and count the outcomes."""
    rng = np.random.default_rng(seed)
    stores = [tiny_store(Path(path, "ragged")), tiny_store(Path(path, "uniform"), lengths=(2, 2), uniform=True)]
    originals = [dump(store.manifest) for store in stores]
    if guard:
        remove_guard(guard)
    outcomes: Counter[str] = Counter()
    for i in range(count):
        data = mutate(originals[i % 2], rng)
        try:
            outcomes[judge(data, stores[i % 2].path)] += 1
        except Exception as error:
            outcomes[f"fault: {type(error).__name__}: {error} in mutant {i}"] += 1
        if guard and faults(outcomes):
            break
    return outcomes


def run(zygote: Zygote, path: Path, seed: int, count: int, guard: str | None = None) -> dict[str, int]:
    outcomes: dict[str, int] = zygote.run(
        fuzz, path=path, seed=seed, count=count, guard=guard, seconds=240, memory_bytes=256 << 20
    ).check()
    return outcomes


def faults(outcomes: Mapping[str, int]) -> list[str]:
    return [outcome for outcome in outcomes if outcome.startswith("fault") or outcome == "opened: False"]


@pytest.mark.promise("P2")
@pytest.mark.parametrize(("count", "corners"), [(2_000, 30), pytest.param(10_000, 45, marks=pytest.mark.slow)])
def test_mutants_are_refused_or_valid(zygote: Zygote, tmp_path: Path, seed: int, count: int, corners: int) -> None:
    outcomes = run(zygote, tmp_path, seed, count)
    assert not faults(outcomes)
    assert sum(outcomes.values()) == count
    assert outcomes["opened: True"] > count // 200, "some mutants are valid stores"
    assert outcomes["loaded, and its shards do not fit"] > count // 200, "the sizes of shards are checked behind the manifest"
    assert len([outcome for outcome in outcomes if outcome.startswith("refused at $")]) > corners, "all corners are reached"


@pytest.mark.soak
def test_a_million_mutants_are_refused_or_valid(zygote: Zygote, tmp_path: Path, seed: int) -> None:
    for i in range(100):
        (tmp_path / str(i)).mkdir()
        assert not faults(run(zygote, tmp_path / str(i), seed + i, 10_000))


@pytest.mark.promise("P2", control=True)
@pytest.mark.parametrize("guard", ["digest", "dtypes", "file names", "count", "equal", "shard"])
def test_negative_control_a_missing_guard_is_noticed(zygote: Zygote, tmp_path: Path, seed: int, guard: str) -> None:
    assert faults(run(zygote, tmp_path, seed, 2000, guard))
