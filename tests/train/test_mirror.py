"""Copies of checkpoints in object storage: another machine continues from them, one of two writers wins, and nothing is trusted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.cli.calling import Done
from tests.cli.training_folder import make_folder

from stoker import StokerError, experiment
from stoker.errors import CheckpointError, CheckpointInvalidError, OptionError, StorageError
from stoker.store.object_storage import Bucket, open_bucket
from stoker.train.checkpoint import CheckpointFolder
from stoker.train.mirror import Mirror, MirroredFolder

pytestmark = pytest.mark.scale

pytest.importorskip("obstore", reason="object storage needs obstore (pip install 'stoker[remote]')")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/runs/a"


def saved(folder: Path, url: str, *steps: int, bucket: Bucket | None = None) -> None:
    """A run that saves at some steps."""
    mirror = Mirror(bucket or open_bucket(url), folder, keep=2)
    with MirroredFolder(folder / "checkpoints", keep=2, mirror=mirror) as checkpoints:
        checkpoints.latest()
        (folder / "run.json").write_text(json.dumps({"steps": steps}))
        for step in steps:
            checkpoints.save(step, {"model": {"weight": torch.full((3,), float(step))}}, {}, wait=True)


def step_of(folder: Path) -> int | None:
    with CheckpointFolder(folder / "checkpoints") as checkpoints:
        found = checkpoints.latest(strict=True)
    return None if found is None else found.step


@pytest.mark.promise("P31")
def test_another_machine_gets_the_newest_copy(tmp_path: Path, url: str) -> None:
    (tmp_path / "a").mkdir()
    assert not Mirror(open_bucket(url), tmp_path / "b").fetch()
    saved(tmp_path / "a", url, 1, 2, 3, 4, 5, 6, 7)
    assert Mirror(open_bucket(url), tmp_path / "b").fetch()
    assert step_of(tmp_path / "b") == 7
    assert (tmp_path / "b" / "run.json").read_text() == '{"steps": [1, 2, 3, 4, 5, 6, 7]}'
    assert not Mirror(open_bucket(url), tmp_path / "b").fetch()  # it is here
    saved(tmp_path / "b", url, 8)
    assert Mirror(open_bucket(url), tmp_path / "a").fetch()
    assert step_of(tmp_path / "a") == 8


@pytest.mark.promise("P31")
def test_of_two_writers_one_fails(tmp_path: Path, url: str) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    bucket = open_bucket(url)
    slow, fast = (Mirror(bucket, tmp_path / name) for name in "ab")
    assert not slow.fetch()
    saved(tmp_path / "b", url, 4)
    saved(tmp_path / "a", f"{url}-other", 5)
    with pytest.raises(CheckpointError, match="has checkpoints of another run, which was faster"):
        slow.upload(tmp_path / "a" / "checkpoints" / "step-000000005")
    assert fast.fetch() is False  # its own is the newest still


@pytest.mark.promise("P31", control=True)
def test_negative_control_with_plain_puts_both_writers_would_win(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    slow = Mirror(open_bucket(url), tmp_path / "a")
    assert not slow.fetch()
    saved(tmp_path / "b", url, 4)
    saved(tmp_path / "a", f"{url}-other", 5)
    put = Bucket.put
    monkeypatch.setattr(Bucket, "put", lambda self, name, data, *, tag=None, is_new=False: put(self, name, data, tag=tag))
    assert slow.upload(tmp_path / "a" / "checkpoints" / "step-000000005") is None
    monkeypatch.undo()
    assert Mirror(open_bucket(url), tmp_path / "c").fetch()
    assert step_of(tmp_path / "c") == 5  # what the other one has saved is lost


class Faulty:
    """A bucket whose puts fail from some moment on."""

    def __init__(self, bucket: Bucket, is_refused: Callable[[str], bool]) -> None:
        self._bucket, self._is_refused, self.url = bucket, is_refused, bucket.url

    def put(self, name: str, data: Any, **options: Any) -> None:
        if self._is_refused(name):
            raise StorageError(f"{self.url}/{name} failed 7 times")
        self._bucket.put(name, data, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)


@pytest.mark.promise("P31")
@pytest.mark.parametrize("refused", ["commit-000000002", "step-000000002"])
def test_a_copy_that_fails_at_any_moment_leaves_the_one_before(refused: str, tmp_path: Path, url: str) -> None:
    (tmp_path / "a").mkdir()
    bucket: Any = Faulty(open_bucket(url), lambda name: name.startswith(refused))
    with pytest.warns(UserWarning, match=r"step-000000002 is written, but its copy in file://.* is not: .* failed 7 times"):
        saved(tmp_path / "a", url, 1, 2, bucket=bucket)
    assert step_of(tmp_path / "a") == 2  # training continues, and the disk has it
    assert Mirror(open_bucket(url), tmp_path / "b").fetch()
    assert step_of(tmp_path / "b") == 1


def forged(place: Path, change: Callable[[Any], None]) -> None:
    path = next(place.glob("commit-*"))
    commit = json.loads(path.read_bytes())
    change(commit)
    path.chmod(0o644)
    path.write_bytes(json.dumps(commit).encode())


def named(name: str) -> Callable[[Any], None]:
    return lambda commit: commit["checkpoint"].update({name: commit["checkpoint"]["model.safetensors"]})


FORGERIES: dict[str, Callable[[Any], None]] = {
    "traversal": named("../../evil.json"),
    "absolute": named("/etc/evil.json"),
    "other copy": lambda commit: commit.update(copy="../step-000000001.00000000"),
    "run file": lambda commit: commit["run"].update({"model.json": commit["run"]["run.json"]}),
    "no index": lambda commit: commit["checkpoint"].pop("checkpoint.json"),
    "negative size": lambda commit: commit["run"]["run.json"].update(num_bytes=-1),
    "other hash": lambda commit: commit["run"]["run.json"].update(xxh3="0" * 32),
    "shorter": lambda commit: commit["checkpoint"]["model.safetensors"].update(num_bytes=8),
}


@pytest.mark.promise("P31")
@pytest.mark.parametrize("name", FORGERIES)
def test_a_hostile_bucket_ends_in_a_clear_error(name: str, tmp_path: Path, url: str) -> None:
    (tmp_path / "a").mkdir()
    saved(tmp_path / "a", url, 1)
    forged(tmp_path / "bucket" / "runs" / "a", FORGERIES[name])
    with pytest.raises(CheckpointInvalidError) as error:
        Mirror(open_bucket(url), tmp_path / "b").fetch()
    assert url in str(error.value)
    assert not list(tmp_path.rglob("evil*"))
    assert not (tmp_path / "b" / "run.json").exists()


@pytest.mark.promise("P31")
def test_lying_sizes_and_swapped_objects(tmp_path: Path, url: str) -> None:
    (tmp_path / "a").mkdir()
    saved(tmp_path / "a", url, 1)
    place = tmp_path / "bucket" / "runs" / "a"
    forged(place, lambda commit: commit["checkpoint"]["model.safetensors"].update(num_bytes=1 << 40))
    with pytest.raises(CheckpointInvalidError, match=r"model\.safetensors is shorter than the 1,099,511,627,776 bytes"):
        Mirror(open_bucket(url), tmp_path / "b").fetch()
    saved(tmp_path / "a", url, 2)
    index = next(place.glob("step-000000002.*/checkpoint.json"))
    other = next(place.glob("step-000000001.*/checkpoint.json"))
    index.chmod(0o644)
    index.write_bytes(other.read_bytes())
    with pytest.raises(CheckpointInvalidError, match="does not match its hash"):
        Mirror(open_bucket(url), tmp_path / "c").fetch()


def test_old_copies_are_removed(tmp_path: Path, url: str) -> None:
    (tmp_path / "a").mkdir()
    removed: list[str] = []
    bucket: Any = Faulty(open_bucket(url), lambda name: False)
    bucket.remove = removed.append
    saved(tmp_path / "a", url, 1, 2, 3, bucket=bucket)
    assert {name.partition(".")[0] for name in removed} == {"step-000000001"}
    assert {name.rpartition("/")[2] for name in removed} == {"checkpoint.json", "run.json"} | {
        path.name for path in (tmp_path / "a" / "checkpoints" / "step-000000003").iterdir()
    }


# ---- runs ----


@pytest.mark.promise("P31")
def test_a_run_continues_on_a_machine_without_its_folder(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are those of a run that was never stopped, and metrics.jsonl has every step once."""
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path)
    config = experiment.load("c.yaml", overrides=[f"train.checkpoints.copies={url}", "train.epochs=2"])
    experiment.run(config, folder="whole", progress=False)
    shutil.rmtree(tmp_path / "bucket")

    class Stopped(Exception):
        pass

    def stop(folder: Path, metrics: dict[str, float]) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        experiment.run(config, folder="first", progress=False, on_saved=stop)
    shutil.rmtree("first")
    with pytest.raises(OptionError, match=r"has checkpoints of a run already\. Continue it \(--continue"):
        experiment.run(config, folder="second", progress=False)
    result = experiment.run(config, folder="second", resume=True, progress=False)
    assert result.stopped == "finished"
    one, other = (
        next((tmp_path / name / "checkpoints").glob(f"step-{result.step:09d}/model.safetensors")) for name in ("whole", "second")
    )
    assert one.read_bytes() == other.read_bytes()
    steps = [
        [json.loads(line)["step"] for line in Path(name, "metrics.jsonl").read_text().splitlines()] for name in ("whole", "second")
    ]
    assert steps[0] == steps[1]


SECRETS = ("AKIASECRETKEYID", "aws/secret+value", "p4ssw0rd", "signedtoken")


@pytest.mark.promise("P21")
def test_no_credentials_in_the_folder_of_a_run_its_copies_or_its_messages(
    stoker: Callable[..., Done], tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of the environment, passwords of URLs and signed URLs on the command line."""
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, secret in (("ACCESS_KEY_ID", SECRETS[0]), ("SECRET_ACCESS_KEY", SECRETS[1]), ("SESSION_TOKEN", SECRETS[3])):
        monkeypatch.setenv(f"AWS_{name}", secret)
    sets = {"epochs": "1", "train.folder": "run", "train.checkpoints.copies": url}
    done = stoker("train", "c.yaml", *(word for name, value in sets.items() for word in ("--set", f"{name}={value}")))
    assert done.code == 0, done.err
    told = done.out + done.err
    bad = {
        "train.checkpoints.copies": f"s3://me:{SECRETS[2]}@bucket/runs",
        "data.store": f"https://host/runs?X-Amz-Signature={SECRETS[3]}",
    }
    for name, url in bad.items():
        with pytest.raises(StokerError, match="which may be credentials") as refused:
            experiment.run("c.yaml", overrides=[f"{name}={url}", "epochs=1"], folder="bad", progress=False)
        told += str(refused.value)
    assert not [one for one in SECRETS if one in told]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name.startswith("commit-") for path in files)
    assert not [(path, one) for path in files for one in SECRETS if one.encode() in path.read_bytes()]


@pytest.mark.promise("P21")
def test_the_command_of_a_run_is_kept_without_credentials(tmp_path: Path) -> None:
    from stoker.train.run import Run, read_record

    command = [
        "train",
        f"--storage=postgresql://me:{SECRETS[2]}@host/db",
        f"https://host/a?sig={SECRETS[3]}&b=1",
        f"--token={SECRETS[3]}",
    ]
    Run(tmp_path, command=command).end("finished")
    kept = msgspec.json.encode(read_record(tmp_path)).decode()
    assert not [one for one in SECRETS if one in kept]
    assert "postgresql://me@host/db" in kept
