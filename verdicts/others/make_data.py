"""The data that these scripts read, written into the folder `data` of the working folder: the same bytes each time."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path("data")
IMAGES, USERS, ROWS, FEATURES = 300, 40, 500, 12
RECORDS, TEXTS, WORDS, POINTS, TOKENS = 200_000, 4_000, 5_000, 400_000, 2_000_000
RECORD = np.dtype([("x", "<f4", 16), ("y", "<u4")])


def images(numbers: np.random.Generator) -> None:
    folder = FOLDER / "npz"
    folder.mkdir(parents=True)
    for i in range(IMAGES):
        img = numbers.normal(size=(3, 64, 64)).cumsum(1).astype("f4")
        np.savez_compressed(folder / f"{i}.npz", img=img, y=i % 10)


def users(numbers: np.random.Generator) -> None:
    folder = FOLDER / "pq"
    folder.mkdir(parents=True)
    for i in range(USERS):
        features = {f"f{j}": numbers.normal(size=ROWS).astype("f4") for j in range(FEATURES)}
        table = pa.table({"t": np.arange(ROWS), **features, "y": numbers.integers(0, 2, ROWS)})
        pq.write_table(table, folder / f"user_{i:03d}.parquet")


def records(numbers: np.random.Generator) -> None:
    rows = np.empty(RECORDS, RECORD)
    rows["x"] = numbers.normal(size=(RECORDS, 16))
    rows["y"] = np.arange(RECORDS) % 4
    rows.tofile(FOLDER / "records.bin")


def texts(draw: random.Random) -> None:
    words = [f"w{i}" for i in range(WORDS)]
    with (FOLDER / "text.jsonl").open("w") as lines:
        for i in range(TEXTS):
            text = " ".join(draw.choices(words, k=draw.randint(60, 200)))
            lines.write(json.dumps({"text": text, "label": i % 2}) + "\n")


def main() -> None:
    numbers = np.random.default_rng(0)
    images(numbers)
    users(numbers)
    records(numbers)
    texts(random.Random(0))
    np.save(FOLDER / "series.npy", numbers.normal(size=POINTS).cumsum().astype("f4"))
    numbers.integers(0, 512, TOKENS).astype("u2").tofile(FOLDER / "tokens.bin")


if __name__ == "__main__":
    main()
