"""The demo: a slow training script, its bottleneck, the fix, the proof that the losses are the same, a kill and an exact resume,
and the receipt of the fix.

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
NO_VERDICT = UNDECIDED = 3  # exit codes of `stoker diagnose` without a verdict, and of `stoker compare` without a difference
CONFIG = """\
data:
  store: scaled.stoker
  view: {name: windows, length: 96, horizon: 24, stride: 24, tail: drop}
  columns: [value]
  target: [value]
  batch_size: 256
model: {name: mlp, width: 64}
train: {epochs: 3, checkpoints: {every: 40}}
"""


def main() -> None:
    """Run the commands that a new user would run."""
    # The models are small. With two threads, they would wait for each other at every layer on a busy machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="stoker-demo-") as name:
        folder = Path(name)
        for script in ("slow.py", "fast.py"):
            shutil.copy(EXAMPLES / script, folder)
        make_data(folder)

        say("1. A training script that is slow (examples/slow.py)")
        run(folder, "python", "slow.py")

        say("2. What is the bottleneck?")
        if run(folder, "stoker", "diagnose", "--quiet", "slow.py", expect=(0, NO_VERDICT)) == NO_VERDICT:
            print("Other programs use the CPU, so the measurement is not reliable. Try `stoker diagnose` again on an idle machine.")

        say("3. The fix: scale each series once, and let stoker.Feed cut the windows (examples/fast.py)")
        run(folder, "python", "fast.py")

        say("4. Is the result the same?")
        compare_losses(folder)

        say("5. Train one run without interruption. Kill a second run after its first checkpoint, and resume it.")
        (folder / "config.yaml").write_text(CONFIG)
        run(folder, "stoker", "train", "config.yaml", "--set", "folder=runs/whole", "--quiet", last=2)
        kill(folder, "stoker", "train", "config.yaml", "--set", "folder=runs/killed", "--quiet")
        run(folder, "stoker", "train", "--resume", "runs/killed", "--quiet", last=2)
        compare_weights(folder / "runs" / "whole", folder / "runs" / "killed")

        say("6. The receipt of the fix: both scripts in turn, in processes of their own")
        if run(
            folder, "stoker", "compare", "--quiet", "--steps", "40", "--budget", "40", "slow.py", "fast.py", expect=(0, UNDECIDED)
        ):
            print("Other programs use the CPU, so there were too few rounds. Losses were compared all the same.")
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
        stoker.Store.from_arrays(x=series),
        view,
        batch_size=256,
        order=stoker.Shuffle(seed=0),
        last_batch="drop",
        returns=stoker.feed.Returns(index=True),
    )
    np.save(folder / "order.npy", [np.concatenate([batch["sample"] for batch in feed]) for _ in range(2)])


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


def words_of(program: str) -> list[str]:
    return [sys.executable] if program == "python" else [sys.executable, "-m", "stoker"]


def run(folder: Path, program: str, *words: str, expect: tuple[int, ...] = (0,), last: int | None = None) -> int:
    """Show a command, run it, and return its exit code; `last` shows only that many lines of its output."""
    print(f"$ {program} {' '.join(words)}", flush=True)
    done = subprocess.run(
        [*words_of(program), *words], cwd=folder, check=False, text=True, stdout=subprocess.PIPE if last else None
    )
    if last:
        print("\n".join(done.stdout.splitlines()[-last:]), flush=True)
    if done.returncode not in expect:
        sys.exit(f"The demo failed: expected exit code {expect[0]}, found {done.returncode}.")
    return done.returncode


def kill(folder: Path, program: str, *words: str) -> None:
    """Start a command and kill it as soon as it has saved a checkpoint."""
    print(f"$ {program} {' '.join(words)}   # kill -9", flush=True)
    child = subprocess.Popen([*words_of(program), *words], cwd=folder, stdout=subprocess.DEVNULL)
    while child.poll() is None and not (folder / "runs" / "killed" / "checkpoints" / "LATEST").exists():
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()


def compare_losses(folder: Path) -> None:
    slow, fast = (np.load(folder / f"{name}_losses.npy") for name in ("slow", "fast"))
    equal = np.array_equal(slow, fast)
    if equal:
        print(f"Yes: all {len(slow)} losses of slow.py and fast.py are equal, bit for bit.")
    else:
        sys.exit(f"The demo failed: losses differ by up to {abs(slow - fast).max():.3g}.")


def compare_weights(whole: Path, killed: Path) -> None:
    one, other = (newest_weights(run) for run in (whole, killed))
    if one == other:
        print("The killed and resumed run has the same weights as the other run, bit for bit.")
    else:
        setups = [json.loads((run / "run.json").read_bytes())["sessions"][-1]["config"]["setup"] for run in (whole, killed)]
        sys.exit(f"The demo failed: weights differ. Setup of {whole}: {setups[0]}. Setup of {killed}: {setups[1]}.")


def newest_weights(run: Path) -> bytes:
    """The bytes of the model in the newest checkpoint."""
    checkpoints = run / "checkpoints"
    return (checkpoints / (checkpoints / "LATEST").read_text().strip() / "model.safetensors").read_bytes()


if __name__ == "__main__":
    main()
