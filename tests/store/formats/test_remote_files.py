"""Raw files in object storage: found by patterns, read by ranges, packed like files on a disk."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.harness.object_folder import ObjectFolder
from tests.store.pack.cluster import pack_on_fake, small_tasks

import stoker
from stoker.errors import OptionError, SourceChangedError, SourceEmptyError, SourceInvalidError, SourceNotFoundError
from stoker.store import object_storage
from stoker.store.formats import remote_files
from stoker.store.formats.remote_files import RangedFile, RemotePath, find_remote
from stoker.store.object_storage import Bucket

pytestmark = pytest.mark.scale

pytest.importorskip("obstore", reason="needs stoker[remote]")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "bucket" / "raw"
    (folder / "more").mkdir(parents=True)
    for i, name in enumerate(("a", "b", "more/c")):
        table = pa.table({"user": rng.integers(0, 9, 500), "x": rng.standard_normal(500), "kind": rng.choice(list("uvw"), 500)})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=100)
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
        lines = "user,x,kind\n" + "".join(f"{row['user']},{row['x']!r},{row['kind']}\n" for row in table.to_pylist())
        (folder / f"{name}.csv").write_text(lines)
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress(lines.replace(",", "\t").encode(), mtime=i))
        (folder / f"{name}.jsonl").write_text(
            "".join(f'{{"user": {row["user"]}, "x": {row["x"]!r}}}\n' for row in table.to_pylist())
        )
        with pa.CompressedOutputStream(str(folder / f"{name}.txt.zst"), "zstd") as zipped:
            zipped.write(lines.encode())
    return folder


@pytest.mark.parametrize("pattern", ["*.parquet", "**/*.parquet", "*.arrow", "*.csv", "*.tsv.gz", "*.jsonl", "**/*.txt.zst"])
def test_a_pack_of_urls_has_the_values_of_a_pack_of_files(
    raw: Path, tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 4096)
    local = stoker.pack(f"{raw}/{pattern}", tmp_path / "local.stoker", series="user")
    remote = stoker.pack(f"file://{raw}/{pattern}", tmp_path / "remote.stoker", series="user")
    assert [one.file for one in stoker.store.manifest.shards(remote.manifest)] == [
        one.file for one in stoker.store.manifest.shards(local.manifest)
    ]
    names = [(one.name, one.num_rows, one.num_bytes) for one in remote.manifest.sources]
    assert names == [(one.name, one.num_rows, one.num_bytes) for one in local.manifest.sources]
    assert len(names) == (3 if "**" in pattern else 2)
    assert all(one.xxh3 is None for one in remote.manifest.sources)


@pytest.mark.promise("P3")
def test_tasks_of_urls_make_the_bytes_of_one_pack(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tasks(monkeypatch)
    source, target = f"file://{raw}/**/*.parquet", f"file://{tmp_path}/bucket/out.stoker"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    store = pack_on_fake(source, target, series="user")
    assert store.digest == stoker.pack(source, tmp_path / "one.stoker", series="user").digest


def test_a_url_names_an_object_a_folder_or_a_pattern(raw: Path) -> None:
    def found(url: str) -> list[str]:
        return [str(one).removeprefix(f"file://{raw}/") for one in find_remote(url)]

    assert found(f"file://{raw}/a.csv") == ["a.csv"]
    assert found(f"file://{raw}/[ab].csv") == ["a.csv", "b.csv"]
    assert found(f"file://{raw}/*/c.csv") == ["more/c.csv"]
    assert len(found(f"file://{raw}/more")) == 6
    assert len(found(f"file://{raw}")) == 18
    with pytest.raises(SourceNotFoundError, match=r"no object matches file:///.*/raw/\*\.npy"):
        found(f"file://{raw}/*.npy")
    with pytest.raises(SourceNotFoundError, match="there is no such object, and no folder"):
        found(f"file://{raw}/nothing")
    with pytest.raises(OptionError, match="names a whole bucket"):
        found("s3://bucket")
    with pytest.raises(OptionError, match="has a pattern in place of a bucket"):
        found("s3://buck*/a")


def test_bad_input_is_one_line(raw: Path, tmp_path: Path) -> None:
    (raw / "x.npz").write_bytes(b"PK")
    (raw / "empty.csv").write_bytes(b"")
    (raw / "cut.parquet").write_bytes((raw / "a.parquet").read_bytes()[:1000])
    for source, error, text in (
        ([f"file://{raw}/a.csv", str(raw / "b.csv")], OptionError, "some sources are URLs and others are paths"),
        (f"file://{raw}/x.npz", SourceInvalidError, "cannot be read from object storage"),
        (f"file://{raw}/empty.csv", SourceEmptyError, "is empty"),
        (f"file://{raw}/cut.parquet", SourceInvalidError, "is damaged or not Parquet"),
        ("s3://user:SECRET@bucket/a/*.csv", OptionError, "holds a user name"),
    ):
        with pytest.raises(error, match=text) as caught:
            stoker.pack(source, tmp_path / "a.stoker")
        assert "SECRET" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.stoker").exists()


def test_any_range_of_a_file_is_right(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(remote_files, "MAX_BLOCKS", 3)
    monkeypatch.setattr(object_storage, "BACKOFF_S", 0.0)
    data = rng.bytes(23_456)
    (tmp_path / "a").write_bytes(data)
    backend = ObjectFolder(tmp_path)
    twin = io.BytesIO(data)
    with RangedFile(RemotePath(Bucket("s3://bucket", backend), "a"), len(data)) as file:
        for _ in range(200):
            place, whence = int(rng.integers(-100, 25_000)), int(rng.integers(0, 2))
            place = max(place, -twin.tell()) if whence else max(place, 0)
            assert file.seek(place, whence) == twin.seek(place, whence)
            count = int(rng.integers(0, 3000))
            found = b""
            while (part := file.read(count - len(found))) and len(found) < count:
                found += part
            assert found == twin.read(count)
            assert len(file._blocks) <= 3
    assert backend.requests["range"] < 600


def test_an_object_that_changes_while_it_is_read(raw: Path, tmp_path: Path) -> None:
    path = find_remote(f"file://{raw}/a.csv")[0]
    before = path.stat()
    (raw / "a.csv").write_text("user,x\n1,2\n")
    assert path.stat() != before
    with pytest.raises(SourceChangedError, match=r"a\.csv changed while it was read"):
        RangedFile(path, before.st_size).read(10)
