"""`stoker.ray.fit`: real workers of Ray Train on this machine, killed and resumed on other numbers; and what is said without Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import OptionError

pytestmark = pytest.mark.scale

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed; `make test-scale` installs it into its own environment"
)
MODEL = """
import os, signal, time
from pathlib import Path
from torch import nn

class Mortal(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.count = 0

    def forward(self, batch):
        self.count += self.training
        mark = Path(__file__).with_name("kill")
        if self.count == 34 and os.environ.get("RANK") == "1" and mark.exists():
            mark.unlink()
            time.sleep(10)  # the controller notes a checkpoint some time after it was reported
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(batch["x"]).unsqueeze(-1)

def make(task):
    return Mortal()
"""
CONFIG = """
data: {store: w.stoker, view: {name: windows, length: 8, horizon: 1}, batch_size: 8, global_batch_size: 32, scale: false}
model: {name: own, function: "model.py:make"}
train: {epochs: 1, checkpoints: {every: 12}, folder: runs/c, logging: {every: 1}, seed: 3, device: cpu}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    stoker.Store.from_arrays(x=[values]).save(tmp_path / "w.stoker")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One node on the loopback interface, with room for four workers and the controller."""
    import ray

    # On a busy machine the workers take longer to start than the 30 s that Ray waits for them.
    os.environ |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300", "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "300"}
    path = [str(Path(one).absolute()) for one in sys.path if one]
    ray.init(
        _system_config={"memory_monitor_refresh_ms": 0},  # memory that other programs use is no reason to end a worker
        num_cpus=6, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", object_store_memory=80 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(path), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()


def losses(folder: str | Path) -> list[tuple[int, Any, Any]]:
    lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line.get("loss"), line.get("epoch_loss")) for line in lines]


@pytest.mark.promise("P33")
@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("restarts", [0, 1], ids=["other_workers", "same_workers"])
def test_a_worker_is_killed_and_the_run_resumes(restarts: int, folder: Path, cluster: None) -> None:
    """One of 2 workers is killed. Ray starts both again, or the user starts 3: every loss is that of one process, to the last bit."""
    import ray.train

    (folder / "kill").touch()
    failures = ray.train.FailureConfig(max_failures=restarts)
    settings = ray.train.RunConfig(name="job", storage_path=str(folder / "ray"), failure_config=failures)
    two, three = (ray.train.ScalingConfig(num_workers=count) for count in (2, 3))
    if restarts:
        result = stoker.ray.fit("c.yaml", scaling=two, run_config=settings)
    else:
        with pytest.raises(ray.train.TrainingFailedError):
            stoker.ray.fit("c.yaml", scaling=two, run_config=settings)
        result = stoker.ray.fit("c.yaml", scaling=three, run_config=settings)
    assert not (folder / "kill").exists()
    assert result.error is None
    assert result.metrics["step"] == 31
    alone = stoker.experiment.run("c.yaml", folder="alone", progress=False)
    assert alone.step == 31
    kept = Path(result.checkpoint.path)
    assert losses(kept) == losses("alone")
    weights = [next((one / "checkpoints").glob("step-*031*/model.safetensors")) for one in (kept, Path("alone"))]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    sessions = json.loads((kept / "run.json").read_text())["sessions"]
    assert [session["from_step"] for session in sessions] == [0, 12]
    assert stoker.load(kept) is not None


def test_without_ray_one_line_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"stoker\.ray\.fit needs Ray Train, which is not installed\."):
        stoker.ray.fit("c.yaml")


def test_workers_get_absolute_paths_and_a_global_batch(folder: Path) -> None:
    config = stoker.experiment.load("c.yaml", overrides=["global_batch_size=null", "grad_accum_steps=2", "valid_store=s3://b/v"])
    found = stoker.ray._for_workers(config, 4)
    assert found.data.global_batch_size == 8 * 4 * 2
    assert (found.data.store, found.data.valid_store) == (str(folder / "w.stoker"), "s3://b/v")
    assert found.model.function == str(folder / "model.py:make")  # type: ignore[union-attr]
    assert found.train.checkpoints.keep == 1
