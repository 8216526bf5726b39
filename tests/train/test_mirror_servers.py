"""Copies of checkpoints on servers of S3, Azure and GCS: a run continues from them, old ones are removed, and one of two writers fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.cli.training_folder import make_folder
from tests.harness.storage_servers import SERVERS

import stoker
from stoker.errors import CheckpointError, CheckpointInvalidError, OptionError
from stoker.store.object_storage import open_bucket
from stoker.train.checkpoint import CheckpointFolder
from stoker.train.mirror import Mirror, MirroredFolder

pytestmark = pytest.mark.scale

pytest.importorskip("obstore", reason="object storage needs obstore (pip install 'stoker[remote]')")


@pytest.fixture(scope="module", params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a bucket; the environment has the address of its server."""
    with SERVERS[request.param]() as url:
        yield url


def save(folder: Path, url: str, *steps: int, size: int = 3) -> None:
    """A run that saves at some steps."""
    folder.mkdir(exist_ok=True)
    with MirroredFolder(folder / "checkpoints", keep=2, mirror=Mirror(open_bucket(url), folder, keep=2)) as checkpoints:
        checkpoints.latest()
        (folder / "run.json").write_text("{}")
        for step in steps:
            checkpoints.save(step, {"model": {"weight": torch.arange(size) * float(step)}}, {}, wait=True)


def weights(folder: Path) -> bytes:
    with CheckpointFolder(folder / "checkpoints") as checkpoints:
        found = checkpoints.latest(strict=True)
    assert found is not None
    return (found.path / "model.safetensors").read_bytes()


def test_the_newest_copy_comes_back_and_old_ones_are_removed(bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/runs/kept"
    save(tmp_path / "a", url, 1, 2, 3, 4, 5, size=2_000_000)  # 8 MB: sent in parts, read in ranges
    copies = {one.name.partition(".")[0] for one in open_bucket(url).find("step-")}
    assert copies == {"step-000000004", "step-000000005"}
    assert Mirror(open_bucket(url), tmp_path / "b").fetch()
    assert weights(tmp_path / "b") == weights(tmp_path / "a")
    assert not Mirror(open_bucket(url), tmp_path / "b").fetch()  # it is here


@pytest.mark.promise("P31")
def test_of_two_writers_one_fails(bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/runs/contested"
    (tmp_path / "a").mkdir()
    slow = Mirror(open_bucket(url), tmp_path / "a")
    assert not slow.fetch()
    save(tmp_path / "b", url, 4)
    save(tmp_path / "a", f"{bucket}/runs/elsewhere", 5)
    with pytest.raises(CheckpointError, match="has checkpoints of another run, which was faster"):
        slow.upload(tmp_path / "a" / "checkpoints" / "step-000000005")
    assert Mirror(open_bucket(url), tmp_path / "c").fetch()
    assert weights(tmp_path / "c") == weights(tmp_path / "b")


@pytest.mark.promise("P31")
def test_a_copy_that_was_changed_is_refused(bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/runs/changed"
    save(tmp_path / "a", url, 1)
    place = open_bucket(url)
    name = next(one.name for one in place.find("step-") if one.name.endswith("model.safetensors"))
    data = bytearray(place.get(name, 1 << 20)[0])
    data[-1] ^= 1
    place.put(name, bytes(data))
    with pytest.raises(CheckpointInvalidError, match=r"model\.safetensors does not match its hash"):
        Mirror(open_bucket(url), tmp_path / "b").fetch()
    place.remove(name)
    with pytest.raises(Exception, match=r"model\.safetensors does not exist"):
        Mirror(open_bucket(url), tmp_path / "c").fetch()
    assert not (tmp_path / "c" / "run.json").exists()


@pytest.mark.promise("P31")
def test_a_run_continues_on_a_machine_without_its_folder(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are those of a run that was never stopped, and metrics.jsonl has every step once."""
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path)
    whole, stopped = (
        stoker.experiment.load("c.yaml", overrides=[f"train.checkpoints.copies={bucket}/runs/{name}", "train.epochs=2"])
        for name in ("whole", "stopped")
    )
    result = stoker.experiment.run(whole, folder="whole", progress=False)

    class Stopped(Exception):
        pass

    def stop(folder: Path, metrics: dict[str, float]) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        stoker.experiment.run(stopped, folder="first", progress=False, on_saved=stop)
    shutil.rmtree("first")
    with pytest.raises(OptionError, match=r"has checkpoints of a run already\. Continue it \(--continue"):
        stoker.experiment.run(stopped, folder="second", progress=False)
    assert stoker.experiment.run(stopped, folder="second", resume=True, progress=False).step == result.step
    assert weights(tmp_path / "second") == weights(tmp_path / "whole")
    one, other = (Path(name, "metrics.jsonl").read_text().splitlines() for name in ("whole", "second"))
    assert [json.loads(line)["step"] for line in one] == [json.loads(line)["step"] for line in other]
