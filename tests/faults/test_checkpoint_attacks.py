"""Checkpoints made to do harm: refused in one line, and nothing in them is run, followed or believed."""

from __future__ import annotations

import os
import pickle
import re
import resource
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from tests.faults.mutants import TREE_CHANGES, mutate_text, pick, pick_place, reseal
from tests.harness import NOT_JSON, Zygote, seal_manifest
from tests.train.trees import is_same, state

from stoker.errors import CheckpointInvalidError
from stoker.train import checkpoint
from stoker.train.checkpoint import INDEX_NAME, CheckpointFolder, read, write
from stoker.train.state_dict import flatten

pytestmark = pytest.mark.promise("P13")


class Payload:
    """Makes a file as soon as it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def folder(quick_path: Path) -> Path:
    write(quick_path / "step-000000001", state(1), {"step": 1})
    for path in (quick_path / "step-000000001").iterdir():
        path.chmod(0o644)
    return quick_path / "step-000000001"


def index_of(folder: Path) -> Any:
    return msgspec.json.decode((folder / INDEX_NAME).read_bytes())


def put_index(folder: Path, tree: Any) -> None:
    """Write an index whose own digest fits, as an attacker would."""
    (folder / INDEX_NAME).write_bytes(seal_manifest(tree))


def put_file(folder: Path, data: bytes, part: int = 0) -> None:
    """Write a part's file of which size and hash fit."""
    tree = index_of(folder)
    (folder / f"{tree['parts'][part]['name']}.safetensors").write_bytes(data)
    tree["parts"][part]["file"] = {"num_bytes": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)}
    put_index(folder, tree)


def check_refused(folder: Path, message: str = "") -> None:
    with pytest.raises(CheckpointInvalidError, match=message) as caught:
        read(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_the_tools_of_these_tests_make_valid_checkpoints(folder: Path) -> None:
    put_index(folder, index_of(folder))
    put_file(folder, (folder / "model.safetensors").read_bytes())
    assert is_same(state(1), read(folder)[0])


# ---- pickles ----


def pickles(mark: Path) -> list[bytes]:
    torch.save({"w": Payload(mark)}, mark.with_name("zip.pt"))
    torch.save({"w": Payload(mark)}, mark.with_name("old.pt"), _use_new_zipfile_serialization=False)
    return [pickle.dumps(Payload(mark)), mark.with_name("zip.pt").read_bytes(), mark.with_name("old.pt").read_bytes()]


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("place", ["part", "index", "beside", "latest", "folder"])
def test_a_pickle_is_refused_and_does_not_run(folder: Path, tmp_path: Path, kind: int, place: str) -> None:
    mark = tmp_path / "ran"
    data = pickles(mark)[kind]
    assert not mark.exists()
    if place == "part":
        put_file(folder, data)
        check_refused(folder, "not a safetensors file")
    elif place == "index":
        (folder / INDEX_NAME).write_bytes(data)
        check_refused(folder, "is not the index")
    elif place == "beside":
        (folder / "model.pt").write_bytes(data)
        check_refused(folder, r"holds 'model.pt', which is not part")
    elif place == "latest":
        (folder.parent / "LATEST").write_bytes(data)
        with pytest.raises(CheckpointInvalidError, match="LATEST"):
            CheckpointFolder(folder.parent).latest(strict=True)
    else:
        (folder.parent / "LATEST").write_bytes(b"step-000000002\n")
        (folder.parent / "step-000000002").write_bytes(data)
        with pytest.raises(CheckpointInvalidError, match="is missing"):
            CheckpointFolder(folder.parent).latest(strict=True)
    assert not mark.exists()


def test_negative_control_the_payload_works(tmp_path: Path) -> None:
    pickle.loads(pickles(tmp_path / "ran")[0])
    assert (tmp_path / "ran").exists()


# ---- an index whose digest fits, but nothing else ----


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "..", ".", "", "a/b", "A", "model\n", "model\0", "é", "a" * 33, "model.safetensors", "m\u043edel"],
)
def test_a_part_whose_name_leads_elsewhere_is_refused_before_anything_is_opened(folder: Path, name: str) -> None:
    tree = index_of(folder)
    (folder.parent / "secret.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    tree["parts"][0]["name"] = name
    put_index(folder, tree)
    check_refused(folder, r"\$.parts\[0\].name")


def test_negative_control_without_the_check_of_names_a_name_leads_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = index_of(folder)
    (folder / "model.safetensors").rename(folder.parent / "secret.safetensors")
    tree["parts"][0]["name"] = "../secret"
    put_index(folder, tree)
    monkeypatch.setattr(checkpoint, "_PART_NAME", re.compile(".*"))
    assert "../secret" in read(folder)[0]


def changed(tree: Any, path: str, value: Any) -> Any:
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    node = tree
    for key in way:
        node = node[key]
    node[last] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, "format version 2, but this stoker reads version 1"),
        ("version", 0, "format version 0"),
        ("version", True, "is not the index"),
        ("version", None, "is not the index"),
        ("format", "stoker", "is not the index"),
        ("extra", 1, "unknown field `extra`"),
        ("parts.0.extra", 1, "unknown field `extra`"),
        ("parts.0.file.extra", 1, "unknown field `extra`"),
        ("parts.0.file.num_bytes", 2**62, "bytes, but 4,611,686,018,427,387,904 are expected"),
        ("parts.0.file.num_bytes", -1, "expected a size"),
        ("parts.0.file.num_bytes", 2**70, "bytes, but 1,180,591,620,717,411,303,424 are expected"),
        ("parts.0.file.num_bytes", 1.0, "is not the index"),
        ("parts.0.file.xxh3", "0" * 31, "32 hex digits"),
        ("parts.0.file.xxh3", "0" * 32, "does not match its hash"),
        ("parts.0.file", None, "which is not part of the checkpoint"),
        ("parts.2.file", {"num_bytes": 3, "xxh3": "0" * 32}, "feed.safetensors is missing"),
        ("parts.1.name", "model", "a new name"),
        ("parts.0.skeleton", {}, "is not part of the state"),
        ("parts.0.skeleton", {"$tensor": "no"}, "expected a tensor of the name 'no'"),
        ("parts.0.skeleton", {"$import": "os"}, "expected one of the marks"),
        ("parts.2.skeleton", {"$tensor": "w"}, "expected a tensor of the name 'w'"),
        ("facts", [], "expected named values, found list"),
        ("facts", {"x": {"$tensor": "w"}}, "facts: x"),
        ("parts", {}, "is not the index"),
    ],
)
def test_an_index_that_breaks_a_rule_is_refused(folder: Path, path: str, value: Any, message: str) -> None:
    put_index(folder, changed(index_of(folder), path, value))
    check_refused(folder, message)


@pytest.mark.parametrize("kind", NOT_JSON)
def test_an_index_that_is_not_one_is_refused(folder: Path, kind: str) -> None:
    (folder / INDEX_NAME).write_bytes(NOT_JSON[kind])
    check_refused(folder, "is not the index")


def test_an_index_of_absurd_size_is_refused_unread(folder: Path) -> None:
    with (folder / INDEX_NAME).open("r+b") as file:
        file.truncate(1 << 40)
    check_refused(folder, "at most")


def tensors_of(tree: Any) -> set[bytes]:
    return {tensor.numpy().tobytes() for tensor in flatten(tree)[0].values()}


def test_mutants_of_an_index_are_valid_or_refused(folder: Path, rng: np.random.Generator) -> None:
    original = (folder / INDEX_NAME).read_bytes()
    parts, facts = read(folder)
    refused, lines = 0, 0
    for _ in range(1500):
        if rng.random() < 0.4:
            data = reseal(mutate_text(original, rng))
        else:
            tree = msgspec.json.decode(original)
            pick(rng, TREE_CHANGES)(tree, pick_place(tree, rng), rng)
            data = seal_manifest(tree)
        (folder / INDEX_NAME).write_bytes(data)
        try:
            found, told = read(folder)
        except CheckpointInvalidError as error:
            refused += 1
            lines += str(error).count("\n")
        else:  # what is no tensor may say anything, as its digest fits
            assert isinstance(told, dict)
            for name in ("model", "optimizer"):
                assert name not in found or tensors_of(found[name]) == tensors_of(parts[name])
    assert refused > 700
    assert lines == 0, "a message is one line"
    (folder / INDEX_NAME).write_bytes(original)
    assert is_same(facts, read(folder)[1])


# ---- tensors of which size and hash fit, but nothing else ----


def laid_out(header: Any, values: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else msgspec.json.encode(header)
    return struct.pack("<Q", len(text) if length is None else length) + text + values


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        laid_out({}, length=2**63),
        laid_out({}, length=2**64 - 1),
        laid_out(b"{", b""),
        laid_out(b"\x80\x04."),
        laid_out(entry()),
        laid_out(entry(), b"\0" * 8),
        laid_out(entry(offsets=(0, 2**62)), b"\0" * 4),
        laid_out(entry(offsets=(4, 0)), b"\0" * 4),
        laid_out(entry(shape=(2**62, 2**62)), b"\0" * 4),
        laid_out(entry(shape=(-1,)), b"\0" * 4),
        laid_out(entry(dtype="O"), b"\0" * 4),
        laid_out(entry(dtype="F33"), b"\0" * 4),
        laid_out({**entry(), "v": entry()["w"]}, b"\0" * 4),
        laid_out(b"[" * 100_000),
        laid_out(entry(), b"\0" * 4),
    ],
)
def test_a_file_of_tensors_that_breaks_a_rule_is_refused(folder: Path, data: bytes) -> None:
    put_file(folder, data)
    check_refused(folder, "model")


def read_in_little_memory(folder: str) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(Path(folder))
    except CheckpointInvalidError as error:
        return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000} {error}"
    return "read"


def test_absurd_sizes_take_no_memory(folder: Path, zygote: Zygote) -> None:
    length = 2**40
    put_file(folder, laid_out(entry(shape=(length // 4,), offsets=(0, length)), b"\0" * 64))
    assert zygote.run(read_in_little_memory, folder=folder).check().startswith("True ")
