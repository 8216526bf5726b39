"""The demo: a slow training script, its bottleneck, the fix, the proof that the losses are the same, a kill and an exact resume.

Everything runs in a temporary folder, on data that is generated here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parent
CONFIG = """\
data:
  store: scaled.stoker
  view: {name: windows, length: 96, horizon: 24, stride: 24, tail: drop}
  columns: [value]
  target: [value]
  batch_size: 256
model: {name: mlp, width: 64}
train: {epochs: 3, save_every: 40}
"""


def main() -> None:
    """Run the commands a newcomer would run."""
    # The models are small: beside another program two threads would wait for each other at each of their layers.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="stoker-demo-") as name:
        folder = Path(name)
        for script in ("slow.py", "fast.py"):
            shutil.copy(EXAMPLES / script, folder)
        make_data(folder)
        say("1. A training script that is slow: examples/slow.py")
        run(folder, "python", "slow.py")
        say("2. What is its bottleneck?")
        # On a busy machine the honest answer is NO VERDICT, exit code 3.
        run(folder, "stoker", "diagnose", "slow.py", "--seconds", "10", "--quiet", expect=(0, 3))
        say("3. The fix: examples/fast.py scales each series once and lets stoker.Feed cut the windows")
        run(folder, "python", "fast.py")
        say("4. The proof: the same losses, bit for bit")
        compare_losses(folder)
        say("5. A run is killed in the middle and resumed; another one is left alone")
        (folder / "config.yaml").write_text(CONFIG)
        run(folder, "stoker", "train", "config.yaml", "--set", "folder=runs/whole", "--quiet")
        kill(folder, "stoker", "train", "config.yaml", "--set", "folder=runs/killed", "--quiet")
        run(folder, "stoker", "train", "--resume", "runs/killed", "--quiet")
        compare_weights(folder / "runs" / "whole", folder / "runs" / "killed")
    say("Done. Next: stoker diagnose your_script.py")


def make_data(folder: Path) -> None:
    """40 sensors, each with a daily cycle, a slow drift and noise; and the order in which both scripts visit their windows."""
    import stoker

    rng = np.random.default_rng(0)
    hours = np.arange(20_000)
    cycle = np.sin(2 * np.pi * hours / 24 + rng.uniform(0, 6, (40, 1))) * rng.uniform(1, 3, (40, 1))
    drift = rng.normal(size=(40, len(hours))).cumsum(axis=1) * 0.02
    series = 50 + cycle + drift + rng.normal(size=drift.shape) * 0.3
    np.save(folder / "series.npy", series)
    view = stoker.Windows(96, horizon=24, stride=24, tail="drop")
    feed = stoker.Feed(
        stoker.Store.from_arrays(x=series), view, batch_size=256, order=stoker.Shuffle(seed=0), last_batch="drop", return_index=True
    )
    np.save(folder / "order.npy", [np.concatenate([batch["sample"] for batch in feed]) for _ in range(2)])


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


def words_of(program: str) -> list[str]:
    return [sys.executable] if program == "python" else [sys.executable, "-m", "stoker"]


def run(folder: Path, program: str, *words: str, expect: tuple[int, ...] = (0,)) -> None:
    """Show a command, run it, and require its exit code."""
    print(f"$ {program} {' '.join(words)}", flush=True)
    done = subprocess.run([*words_of(program), *words], cwd=folder, check=False)
    if done.returncode not in expect:
        sys.exit(f"The demo failed: expected exit code {expect[0]}, found {done.returncode}.")


def kill(folder: Path, program: str, *words: str) -> None:
    """Start a command and kill it as soon as it has saved a checkpoint."""
    print(f"$ {program} {' '.join(words)}   # kill -9 after its first checkpoint", flush=True)
    child = subprocess.Popen([*words_of(program), *words], cwd=folder, stdout=subprocess.DEVNULL)
    while child.poll() is None and not (folder / "runs" / "killed" / "checkpoints" / "LATEST").exists():
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()


def compare_losses(folder: Path) -> None:
    slow, fast = (np.load(folder / f"{name}_losses.npy") for name in ("slow", "fast"))
    equal = np.array_equal(slow, fast)
    print(f"{len(slow)} losses of slow.py and fast.py are equal bit for bit: {equal}")
    if not equal:
        sys.exit(f"The demo failed: losses differ by up to {abs(slow - fast).max():.3g}.")


def compare_weights(whole: Path, killed: Path) -> None:
    one, other = (newest_weights(run) for run in (whole, killed))
    print(f"weights of the killed and resumed run equal those of the other one bit for bit: {one == other}")
    if one != other:
        setups = [json.loads((run / "run.json").read_bytes())["sessions"][-1]["config"]["setup"] for run in (whole, killed)]
        sys.exit(f"The demo failed: weights differ. Setup of {whole}: {setups[0]}. Setup of {killed}: {setups[1]}.")


def newest_weights(run: Path) -> bytes:
    """The bytes of the model in the newest checkpoint."""
    checkpoints = run / "checkpoints"
    return (checkpoints / (checkpoints / "LATEST").read_text().strip() / "model.safetensors").read_bytes()


if __name__ == "__main__":
    main()
