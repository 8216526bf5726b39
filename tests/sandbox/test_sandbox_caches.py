"""Caches are left to programs: those that fill a cold one run as they do alone, and the user's files stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from stoker.sandbox.overlay import innermost
from stoker.sandbox.sandbox import IN_HOME, VARIABLE, Sandbox, cache_folders


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a project in it, which is the current folder."""
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if "CACHE" in name or name == "HF_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(home / "project")
    return home


def protects(path: str) -> bool:
    """Whether the rules of a sandbox protect a path."""
    rules = json.loads(Sandbox(None).plan(0))["rules"]
    folder = innermost(path, rules)
    return folder is None or bool(rules[folder])


@pytest.mark.promise("P18")
@pytest.mark.parametrize(
    ("variable", "value", "written"),
    [
        (None, "", "~/.cache/mytool/a.bin"),
        (None, "", "~/.triton/cache/kernel"),
        (None, "", "~/.config/matplotlib/fonts.json"),
        ("XDG_CACHE_HOME", "~/x", "~/x/numba/a.nbi"),
        ("NUMBA_CACHE_DIR", "~/numba", "~/numba/a.nbi"),
        ("STOKER_CACHE", "~/stoker", "~/stoker/kernels/a.nbi"),
        ("TORCHINDUCTOR_CACHE_DIR", "~/inductor", "~/inductor/ab/code.py"),
        ("TRITON_CACHE_DIR", "inductor", "~/project/inductor/code.ptx"),
        ("HF_HOME", "~/project/hf", "~/project/hf/datasets/a.arrow"),
        ("HF_DATASETS_CACHE", "~/hf", "~/hf/a.arrow"),
        ("TORCH_HOME", "~/hub", "~/hub/checkpoints/a.pt"),
        ("TORCH_EXTENSIONS_DIR", "~/extensions", "~/extensions/a/build.ninja"),
        ("MPLCONFIGDIR", "~/plots", "~/plots/fonts.json"),
        ("TMPDIR", "~/tmp", "~/tmp/torchinductor_me/a.py"),
    ],
)
def test_a_cache_is_left_to_the_program(
    variable: str | None, value: str, written: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, value.replace("~", str(home)))
    assert not protects(written.replace("~", str(home)))


@pytest.mark.promise("P18", control=True)
@pytest.mark.parametrize(
    ("variable", "value", "written"),
    [
        (None, "", "~/project/out/a.bin"),
        (None, "", "~/other/a.bin"),
        (None, "", "~/.config/mytool/a.json"),
        (None, "", "~/.cached"),
        ("HF_HOME", "~", "~/other/a.bin"),
        ("XDG_CACHE_HOME", "/", "~/other/a.bin"),
        ("MY_CACHE", "~/project", "~/project/a.bin"),
        ("MY_CACHE", ".", "~/project/a.bin"),
        ("TMPDIR", "~", "~/project/a.bin"),
    ],
)
def test_negative_control_files_of_the_users_are_not_cache(
    variable: str | None, value: str, written: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a variable names a folder around all of them."""
    if variable is not None:
        monkeypatch.setenv(variable, value.replace("~", str(home)))
    assert protects(written.replace("~", str(home)))


@pytest.mark.parametrize("triton", [True, False], ids=["with triton", "without"])
def test_a_cache_that_does_not_exist_is_made_and_nothing_is_removed(
    triton: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None) if triton else None)
    with Sandbox(None):
        (home / "hf" / "a").write_text("downloaded")
    assert sorted(path.name for path in home.iterdir()) == [".cache", *[".triton"] * triton, "hf", "project"]


def test_packages_may_write_beside_themselves() -> None:
    import numpy as np

    folders = cache_folders({}, "/nowhere")
    assert any(Path(np.__file__).resolve().is_relative_to(folder) for folder in folders)
    assert all(any(folder.endswith(name) for folder in folders) for name in IN_HOME)


FEED = """
import numpy as np, torch, stoker
torch.set_num_threads(1)
walks = stoker.Store.from_arrays(close=np.random.default_rng(0).normal(size=(20, 500)).cumsum(axis=1))
batches = stoker.Feed(walks, stoker.Windows(48, horizon=8), batch_size=256, order=stoker.Shuffle(seed=0), dtype="float32")
model = torch.nn.Linear(48, 8)
call = lambda batch: (model(batch["close"]) - batch["close_target"]).pow(2).mean()
"""
COMPILED = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
batches, fast = list(torch.ones(40, 4, 8)), torch.compile(model)
call = lambda batch: fast(batch).pow(2).mean()
"""
HUB = """
import torch, datasets
torch.set_num_threads(1)
rows = datasets.load_dataset("csv", data_files="rows.csv", split="train")
rows = rows.map(lambda row: {"b": row["a"] / 100})
rows.save_to_disk("processed")
rows = datasets.load_from_disk("processed")
batches = torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=4)
model = torch.nn.Linear(1, 1)
call = lambda batch: model(batch["b"].float()[:, None]).pow(2).mean()
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(100_000):
    for batch in batches:
        loss = call(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""
DIAGNOSE = ["diagnose", "--seconds", "1", "train.py"]


def run_cold(text: str, words: list[str], home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A command on a program whose user has never run anything: no cache has anything in it."""
    Path("train.py").write_text(text + LOOP)
    Path("rows.csv").write_text("a\n" + "\n".join(map(str, range(100))))
    (home.parent / "tmp").mkdir()
    variables = {"HOME": str(home), "TMPDIR": str(home.parent / "tmp"), "NUMBA_CACHE_DIR": str(home / ".cache/numba")}
    variables |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"], **more}
    command = [sys.executable, "-m", "stoker", *words]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.promise("P18")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["overlay", "landlock"])
@pytest.mark.parametrize(
    ("text", "filled"),
    [(FEED, "home/.cache/numba"), (COMPILED, "tmp"), (HUB, "home/.cache/huggingface")],
    ids=["feed", "compile", "datasets"],
)
def test_a_program_with_cold_caches(mode: str, text: str, filled: str, home: Path) -> None:
    done = run_cold(text, DIAGNOSE, home, **{VARIABLE: mode})
    assert done.returncode in (0, 3), done.stderr[-2000:]  # 3: no verdict, as on a busy machine
    assert "Traceback" not in done.stderr
    assert any((home.parent / filled).rglob("*.*"))
    assert sorted(os.listdir()) == ["rows.csv", "train.py"], "nothing of its own is left"  # noqa: PTH208


@pytest.mark.slow
def test_a_gate_with_cold_caches(home: Path) -> None:
    done = run_cold(FEED, ["gate", "--write", "--budget", "../budget.json", "train.py"], home)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (home / "budget.json").exists(), "what stoker itself writes stays"
    assert sorted(os.listdir()) == ["rows.csv", "train.py"]  # noqa: PTH208
