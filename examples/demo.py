"""The demo: makes a small market data set, packs it, shows it, breaks a copy and sees the damage found.

Rows of each symbol are scattered over 60 daily files, as exchanges deliver them.
"""

from __future__ import annotations

import csv
import math
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SYMBOLS = ["AAPL", "BHP", "CSL", "DTE", "ENI", "FDX", "GLE", "HPQ", "IBM", "JNJ", "KO", "LIN"]
DAYS, MINUTES = 60, 240
PACK = ["pack", "prices/*.csv"]
SHAPE = ["--series", "symbol", "--time", "ts", "--dtype", "float32,volume=int64"]


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
    say("That is the store: packed once, mapped in microseconds, and nothing in it can change unseen.")


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


def say(text: str) -> None:
    """A line of the story."""
    print(f"\n== {text}", flush=True)


def command(folder: Path, *words: str, expect: int = 0) -> None:
    """Show a command, run it, and insist on its exit code."""
    shown = " ".join(f'"{word}"' if "*" in word else word for word in words)
    print(f"\n$ stoker {shown}", flush=True)
    done = subprocess.run([sys.executable, "-m", "stoker", *words], cwd=folder, check=False)
    if done.returncode != expect:
        sys.exit(f"the demo expected exit code {expect}, found {done.returncode}")


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
    words = [*PACK, "again.stoker", *SHAPE]
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
        sys.exit("the demo expected the same digest")


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


if __name__ == "__main__":
    main()
