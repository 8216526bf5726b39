"""What is promised, shown: makes a small market data set, packs it, breaks a copy and sees the damage found; encodes it; feeds a
plain loop, stops in the middle of an epoch, goes on with another number of ranks; trains a run that is killed and goes on bit for
bit; finds a bug that was planted in a loader.

Rows of each symbol are scattered over 60 daily files, as exchanges deliver them.
"""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from story import command, listing, say

SYMBOLS = ["AAPL", "BHP", "CSL", "DTE", "ENI", "FDX", "GLE", "HPQ", "IBM", "JNJ", "KO", "LIN"]
DAYS, MINUTES = 60, 240
PACK = ["pack", "prices/*.csv"]
SHAPE = ["--series", "symbol", "--time", "ts", "--dtype", "float32,volume=int64"]
NUM_STEPS = 300
BLOCKS = ["--batch", "256", "--block", "64", "--window", "4096"]
CONFIG = """\
data:
  store: prices.stoker
  view: {name: windows, length: 48, horizon: 8, stride: 8}
  columns: [volume]
  target: [volume]
  batch_size: 256
split: {name: chronological, valid: 0.2}
model: {name: mlp, width: 64}
train: {epochs: 4, save_every: 20, clip: 1.0, ema: 0.99}
"""
SCRIPT = """\
import stoker
import torch
from torch.utils.data import DataLoader, IterableDataset

store = stoker.open("prices.stoker")


class EveryWindow(IterableDataset):
    def __iter__(self):
        for series in store:
            yield from torch.tensor(series["close"]).split(48)


train_loader = DataLoader(EveryWindow(), batch_size=64, num_workers=2)
feed = stoker.Feed(store, stoker.Windows(48, stride=48), batch_size=64, columns=["close"], order=stoker.Shuffle())
"""


def main() -> None:
    """Run the commands a newcomer would run."""
    with tempfile.TemporaryDirectory(prefix="stoker-demo-") as name:
        folder = Path(name)
        rows = make_prices(folder / "prices")
        say(f"{DAYS} daily files with {rows:,} rows: {len(SYMBOLS)} symbols, interleaved, some prices missing")
        command(folder, *PACK, "prices.stoker", *SHAPE)
        command(folder, "inspect", "prices.stoker")
        command(folder, "verify", "prices.stoker")
        show_python(folder)
        kill_and_go_on(folder)
        damage(folder)
        encode(folder)
        go_on_elsewhere(folder, *train(folder))
        run_and_kill(folder)
        judge_orders(folder)
        find_planted_bug(folder)
    say("Packed once, fed exactly once an epoch, trained through a kill, and nothing changes unseen.")


def make_prices(folder: Path) -> int:
    """Write one CSV a day."""
    folder.mkdir()
    rng = random.Random(0)
    price = {symbol: rng.uniform(20, 200) for symbol in SYMBOLS}
    start = 1_735_718_400
    for day in range(DAYS):
        with (folder / f"{day:03d}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["ts", "symbol", "close", "volume"])
            for minute in range(MINUTES):
                moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start + day * 86_400 + minute * 60))
                for symbol in rng.sample(SYMBOLS, len(SYMBOLS)):
                    price[symbol] *= math.exp(rng.gauss(0, 0.001))
                    close = "" if rng.random() < 0.002 else f"{price[symbol]:.2f}"
                    writer.writerow([moment, symbol, close, rng.randrange(100, 100_000)])
    return DAYS * MINUTES * len(SYMBOLS)


def show_python(folder: Path) -> None:
    """The store from Python."""
    import stoker

    say("From Python")
    stoker.open(folder / "prices.stoker")  # the first call also imports
    start = time.perf_counter()
    store = stoker.open(folder / "prices.stoker")
    opened = time.perf_counter() - start
    series = store[store.find("IBM")]
    print(f">>> store = stoker.open('prices.stoker')      # {opened * 1e3:.1f} ms, no value read")
    print(f">>> len(store), store.num_steps\n{len(store), store.num_steps}")
    print(f">>> store[store.find('IBM')]\n{str(series).replace(str(folder) + '/', '')}")
    print(f">>> series['close'][:4]                        # a read-only view, no copy\n{series['close'][:4]}")


def kill_and_go_on(folder: Path) -> None:
    """Kill a pack in the middle; the same command ends with the same store."""
    import stoker

    say("A pack that is killed leaves no half store, and the same command still gives the same bytes")
    digest = stoker.open(folder / "prices.stoker").digest
    words = [*PACK, "again.stoker", *SHAPE, "--replace"]
    child = subprocess.Popen([sys.executable, "-m", "stoker", *words], cwd=folder, stdout=subprocess.DEVNULL)
    while child.poll() is None and not (folder / "again.stoker" / "work").exists():
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    print(f"kill -9: exit code {child.returncode}, a store is there: {(folder / 'again.stoker' / 'manifest.json').exists()}")
    command(folder, *words)
    same = stoker.open(folder / "again.stoker").digest == digest
    print(f"same digest as before: {same}")
    if not same:
        sys.exit("guarantees expected the same digest")


def damage(folder: Path) -> None:
    """Flip one bit of a copy."""
    say("One bit of a copy is flipped")
    copy = folder / "copy.stoker"
    shutil.copytree(folder / "prices.stoker", copy)
    shard = max(copy.glob("*.npy"), key=lambda path: path.stat().st_size)
    shard.chmod(0o644)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    command(folder, "verify", "copy.stoker", expect=2)


def encode(folder: Path) -> None:
    """Indicators of the bars into a store, statistics of a raw file, and the digits of prices."""
    import stoker

    say("Encoders: indicators, statistics, digits")
    features = [{"name": f"ema{window}", "op": "EMA", "window": window} for window in (5, 20, 60)]
    features.append({"name": "shock", "op": "ZWIN", "source": "logret", "window": 30})
    (folder / "spec.json").write_text(json.dumps({"features": features}))
    command(folder, "features", "prices.stoker", "--spec", "spec.json", "--out", "features.stoker", "--quiet")
    closes = stoker.open(folder / "prices.stoker")[0]["close"][:3].astype(str).astype(float)
    digits = stoker.encode.split_digits(closes, max_decimal=None, min_decimal=None)
    print(f">>> stoker.encode.split_digits({closes.tolist()}).columns\n{digits.columns}")
    print(f">>> digits.matrix\n{digits.matrix}")
    stats = stoker.encode.analyze(folder / "prices" / "000.csv")
    print(f">>> stats = stoker.encode.analyze('prices/000.csv')\n{stats}")
    print(f">>> stats.columns[3].min, stats.columns[3].max\n{stats.columns[3].min, stats.columns[3].max}")


def make_feed(folder: Path, **options: Any) -> Any:
    """Windows of 48 prices, and the 8 that follow as targets."""
    import stoker

    store = stoker.open(folder / "prices.stoker")
    view = stoker.Windows(48, horizon=8)
    order = stoker.Shuffle(seed=0)
    return stoker.Feed(store, view, batch_size=256, order=order, columns=["close"], normalize="zero", numbers=True, **options)


def train(folder: Path) -> tuple[dict[str, Any], list[int]]:
    """Train a small forecaster for some hundred steps; returns where its feed is then, and the samples it has seen."""
    import torch

    say("A small model is trained on the store")
    start = time.perf_counter()
    next(iter(make_feed(folder)))
    print(f"first batch of all: {time.perf_counter() - start:.1f} s (kernels are compiled once a machine, and kept)\n")
    feed = make_feed(folder)
    print(">>> feed = stoker.Feed(store, stoker.Windows(48, horizon=8), batch_size=256, order=stoker.Shuffle(seed=0),")
    print('...                    columns=["close"], normalize="zero", numbers=True)')
    print(f">>> print(feed)\n{str(feed).replace(str(folder) + '/', '')}\n")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[float] = []
    seen: list[int] = []
    start = time.perf_counter()
    for batch in feed:
        known = batch["valid"][:, None] & batch["close_target"].isfinite()  # some prices are missing
        errors = model(batch["close"].nan_to_num()) - batch["close_target"]
        loss = errors[known].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seen += batch["sample"][batch["valid"]].tolist()
        if len(losses) == NUM_STEPS:
            break
    seconds = time.perf_counter() - start
    waited = feed.waits.seconds
    print(f"{NUM_STEPS} steps in {seconds:.2f} s: loss {losses[0]:.3f} at the start, {sum(losses[-20:]) / 20:.3f} at the end")
    print(f"waited for data: {waited:.3f} s, {waited / seconds:.1%} of the time (feed.waits)")
    if not losses[-1] < losses[0] / 2:
        sys.exit("guarantees expected the loss to fall")
    return feed.state_dict(), seen


def go_on_elsewhere(folder: Path, state: dict[str, Any], before: list[int]) -> None:
    """Read the rest of the epoch on three ranks, and count."""
    say("It stops in the middle of the epoch, and goes on with three ranks instead of one")
    print(f">>> feed.state_dict()                  # all there is to save\n{json.dumps(state)}")
    after: list[int] = []
    for rank in range(3):
        feed = make_feed(folder, rank=rank, world_size=3)
        feed.load_state_dict(state)
        numbers = [batch["sample"][batch["valid"]].tolist() for batch in feed]
        after += [number for batch in numbers for number in batch]
        print(f"rank {rank} of 3: {len(numbers)} batches with {sum(map(len, numbers)):,} samples")
    lost = state["samples"] - len({*before, *after})
    twice = len(before) + len(after) - len({*before, *after})
    print(
        f"{len(before):,} samples before the stop + {len(after):,} after it = {len(before) + len(after):,} of {state['samples']:,}"
    )
    print(f"lost: {lost}, seen twice: {twice}")
    if lost or twice:
        sys.exit("guarantees expected every sample once")


def run_and_kill(folder: Path) -> None:
    """A run from a file: refused data, then the same run with and without a kill -9."""
    say("A run from a file. Some prices are missing, and the guard says where; volumes are whole")
    (folder / "config.yaml").write_text(CONFIG)
    print(CONFIG)
    command(folder, "train", "config.yaml", "--set", "target=[close]", "--set", "columns=[close]", "--quiet", expect=2)
    command(folder, "train", "config.yaml", "--set", "folder=runs/whole", "--quiet")
    say("The same run is killed in the middle, and goes on")
    words = [sys.executable, "-m", "stoker", "train", "config.yaml", "--set", "folder=runs/killed", "--quiet"]
    child = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
    while child.poll() is None and not (folder / "runs" / "killed" / "checkpoints" / "LATEST").exists():
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    print(f"kill -9: exit code {child.returncode}")
    command(folder, "train", "--resume", "runs/killed", "--quiet")
    weights = [newest_weights(folder / "runs" / name) for name in ("whole", "killed")]
    print(f"weights equal to those of the run that was never killed, bit for bit: {weights[0] == weights[1]}")
    if weights[0] != weights[1]:
        sys.exit("guarantees expected the same weights")
    command(folder, "runs", "runs")
    command(folder, "export", "runs/killed", "model.pt2")


def newest_weights(run: Path) -> bytes:
    """The weights of a run's newest checkpoint."""
    name = (run / "checkpoints" / "LATEST").read_text().strip()
    return (run / "checkpoints" / name / "model.safetensors").read_bytes()


def judge_orders(folder: Path) -> None:
    """What a shuffle that reads blocks is worth."""
    say("How good would a shuffle be that reads neighbours together? For data larger than memory it has to")
    command(folder, "order", "prices.stoker", "--view", "windows:48,horizon=8", "--columns", "close", *BLOCKS)


def find_planted_bug(folder: Path) -> None:
    """A loader as it is often written: its two workers both yield everything."""
    say("A loader with a bug: each of its two workers yields everything")
    (folder / "train.py").write_text(SCRIPT)
    listing(SCRIPT)
    command(folder, "check", "train.py:train_loader", expect=1)
    command(folder, "check", "train.py:feed")


if __name__ == "__main__":
    main()
