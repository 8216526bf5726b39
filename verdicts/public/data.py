"""Synthetic data in the formats that the public scripts read: the right files, sizes and value ranges, random contents.

A recipe names a maker and where its files go. Every maker draws from a generator with a fixed seed.
"""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

Maker = Callable[[Path, np.random.Generator], None]


def make(name: str, path: Path) -> None:
    """Write the files of one maker at `path`, a file or a folder; the parent folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    MAKERS[name](path, np.random.default_rng(0))


def _mnist(path: Path, rng: np.random.Generator) -> None:
    """The four uncompressed files of MNIST as torchvision reads them: 20,000 and 1,000 images."""
    folder = path / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 20_000), ("t10k", 1000)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">iiii", 2051, count, 28, 28) + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, count) + labels.tobytes())


def _words(path: Path, rng: np.random.Generator) -> None:
    """A word-level corpus: train.txt, valid.txt and test.txt, 2,000 words by Zipf's law, 20 words per line."""
    path.mkdir(parents=True, exist_ok=True)
    for part, lines in (("train", 6000), ("valid", 300), ("test", 300)):
        drawn = np.minimum(rng.zipf(1.3, (lines, 20)), 2000)
        (path / f"{part}.txt").write_text("".join(" " + " ".join(f"w{word}" for word in line) + " \n" for line in drawn))


def _letters(path: Path, rng: np.random.Generator) -> None:
    """One text file of 300,000 characters."""
    drawn = rng.choice(list("abcdefghijklmnopqrstuvwxyzABCDEGHINOST!      .,\n"), 300_000)
    path.write_text("".join(drawn))


def _names(path: Path, rng: np.random.Generator) -> None:
    """5,000 names of 3 to 12 letters, one per line."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    path.write_text("\n".join("".join(rng.choice(letters, rng.integers(3, 13))) for _ in range(5000)) + "\n")


def _tokens(path: Path, rng: np.random.Generator) -> None:
    """train.bin and val.bin: uint16 tokens below 65, as nanoGPT's character-level example has them."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 500_000), ("val", 50_000)):
        (path / f"{part}.bin").write_bytes(rng.integers(0, 65, count, dtype=np.uint16).tobytes())


def _bytes(path: Path, rng: np.random.Generator) -> None:
    """A gzip file of 95,000,000 bytes as enwik8.gz has them, here one random part repeated."""
    part = rng.integers(32, 127, 1_000_000, dtype=np.uint8).tobytes()
    path.write_bytes(gzip.compress(part * 95, 1))


def _ett(path: Path, rng: np.random.Generator) -> None:
    """A CSV file like ETTh1: 17,420 hours, a date and seven columns."""
    rows = 17_420
    dates = np.datetime64("2016-07-01T00:00:00") + np.arange(rows) * np.timedelta64(1, "h")
    daily = np.sin(np.arange(rows) * 2 * np.pi / 24)[:, None] * rng.uniform(0.5, 2.0, 7) + rng.normal(0, 0.3, (rows, 7))
    lines = ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    lines += [f"{str(date).replace('T', ' ')},{','.join(f'{x:.4f}' for x in row)}" for date, row in zip(dates, daily, strict=True)]
    path.write_text("\n".join(lines) + "\n")


def _rates(path: Path, rng: np.random.Generator) -> None:
    """A CSV file without a header, 4,000 days of eight exchange rates."""
    np.savetxt(path, 1 + 0.1 * np.cumsum(rng.normal(0, 0.01, (4000, 8)), axis=0), delimiter=",", fmt="%.6f")


def _cora(path: Path, rng: np.random.Generator) -> None:
    """cora.content and cora.cites: 1,600 papers with 1,433 words of 0 or 1, seven classes, 3,200 citations."""
    path.mkdir(parents=True, exist_ok=True)
    papers = np.arange(1600) + 1000
    words = (rng.random((1600, 1433)) < 0.013).astype(np.uint8)
    words[:, 0] = 1
    classes = rng.integers(0, 7, 1600)
    lines = [f"{p}\t" + "\t".join(map(str, row)) + f"\tclass{c}" for p, row, c in zip(papers, words, classes, strict=True)]
    (path / "cora.content").write_text("\n".join(lines) + "\n")
    (path / "cora.cites").write_text("\n".join(f"{a}\t{b}" for a, b in rng.choice(papers, (3200, 2))) + "\n")


def _ucr(path: Path, rng: np.random.Generator) -> None:
    """A data set of the UCR archive: 200 training and 50 test series of 300 values, three classes."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("TRAIN", 200), ("TEST", 50)):
        table = np.column_stack([rng.integers(1, 4, count), np.cumsum(rng.normal(0, 1, (count, 300)), axis=1)])
        np.savetxt(path / f"{path.name}_{part}.tsv", table, delimiter="\t", fmt="%.5f")


def _purchases(path: Path, rng: np.random.Generator) -> None:
    """Lines of a user and an item: 3,000 users, 8 to 60 purchases each, of 5,000 items."""
    lines = []
    for user in range(1, 3001):
        lines += [f"{user} {item}" for item in rng.integers(1, 5001, rng.integers(8, 61))]
    path.write_text("\n".join(lines) + "\n")


def _sines(path: Path, rng: np.random.Generator) -> None:
    """20 sine waves of 60 values with random phases, as torch.save writes an array; the original has 100 of 1,000."""
    import torch

    x = np.arange(60) + rng.integers(-80, 80, (20, 1))
    torch.save(np.sin(x / 20.0), path)


def _photos(path: Path, rng: np.random.Generator) -> None:
    """Folders train (200 images of 481 x 321, JPEG) and test (20)."""
    from PIL import Image

    for part, count in (("train", 200), ("test", 20)):
        (path / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            small = Image.fromarray(rng.integers(0, 256, (21, 32, 3), dtype=np.uint8))
            small.resize((481, 321), Image.Resampling.BICUBIC).save(path / part / f"{number:04d}.jpg", quality=92)


def _music(path: Path, rng: np.random.Generator) -> None:
    """A MATLAB file of piano rolls: traindata, validdata and testdata, 88 keys, 100 to 200 steps each."""
    from scipy.io import savemat

    parts = {}
    for part, count in (("traindata", 120), ("validdata", 10), ("testdata", 10)):
        rolls = np.empty((1, count), dtype=object)
        for number in range(count):
            rolls[0, number] = (rng.random((rng.integers(100, 201), 88)) < 0.05).astype(np.uint8)
        parts[part] = rolls
    savemat(path, parts)


def _traffic(path: Path, rng: np.random.Generator) -> None:
    """Windows of 30 sensors (train.npz, val.npz, test.npz with x and y) and the pickled graph of the sensors."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 3000), ("val", 128), ("test", 128)):
        windows = rng.normal(50, 10, (2, count, 12, 30, 2))
        np.savez(path / f"{part}.npz", x=windows[0], y=windows[1])
    names = [str(sensor) for sensor in range(30)]
    near = (rng.random((30, 30)) < 0.2).astype(np.float32) + np.eye(30, dtype=np.float32)
    (path / "adj_mx.pkl").write_bytes(pickle.dumps((names, {name: place for place, name in enumerate(names)}, near)))


def _ratings(path: Path, rng: np.random.Generator) -> None:
    """A CSV file like the ratings of MovieLens: 800,000 rows of 5,000 users and 4,000 films."""
    rows = 800_000
    users, films, stars = rng.integers(1, 5001, rows), rng.integers(1, 4001, rows), rng.integers(1, 6, rows)
    lines = (f"{user},{film},{star},0" for user, film, star in zip(users.tolist(), films.tolist(), stars.tolist(), strict=True))
    path.write_text("userId,movieId,rating,timestamp\n" + "\n".join(lines) + "\n")


def _triples(path: Path, rng: np.random.Generator) -> None:
    """Lines of a user, an item and 1: train.txt with 300 for each of 700 users, of 2,000 items, and test.txt with 10."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 300), ("test", 10)):
        drawn = rng.integers(0, 2000, (700, count)).tolist()
        (path / f"{part}.txt").write_text("".join(f"{user} {item} 1\n" for user, items in enumerate(drawn) for item in items))


def _names_by_language(path: Path, rng: np.random.Generator) -> None:
    """Five files of 400 names of 3 to 12 letters, one per line."""
    path.mkdir(parents=True, exist_ok=True)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    for language in ("Arabic", "Czech", "Dutch", "Irish", "Korean"):
        names = ("".join(rng.choice(letters, rng.integers(3, 13))).capitalize() for _ in range(400))
        (path / f"{language}.txt").write_text("\n".join(names) + "\n")


def _gzip_lines(path: Path, rng: np.random.Generator) -> None:
    """A gzip file of 2,000 lines of 20 to 60 characters."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzABCDEGHINOST!      .,"))
    lines = ("".join(rng.choice(letters, rng.integers(20, 61))) for _ in range(2000))
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def _pairs(path: Path, rng: np.random.Generator) -> None:
    """20,000 lines of two sentences of 4 to 12 words, with a tab between them."""
    words = np.array([f"w{number}" for number in range(2000)])

    def sentence() -> str:
        return " ".join(words[np.minimum(rng.zipf(1.3, rng.integers(4, 13)), 2000) - 1])

    path.write_text("".join(f"{sentence()}\t{sentence()}\n" for _ in range(20_000)))


def _roads(path: Path, rng: np.random.Generator) -> None:
    """adj_mat.npy of 20 sensors, and node_values.npy: 12,000 times, 20 sensors, two values."""
    path.mkdir(parents=True, exist_ok=True)
    np.save(path / "adj_mat.npy", (rng.random((20, 20)) < 0.2).astype(np.float32))
    np.save(path / "node_values.npy", rng.normal(50, 10, (12_000, 20, 2)).astype(np.float32))


def _springs(path: Path, rng: np.random.Generator) -> None:
    """Places, speeds and edges of five particles: 4,000 runs of 49 times for training, 64 for each other part."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 4000), ("valid", 64), ("test", 64)):
        steps = 49 if part != "test" else 99
        np.save(path / f"loc_{part}_springs5.npy", rng.normal(0, 1, (count, steps, 2, 5)).astype(np.float32))
        np.save(path / f"vel_{part}_springs5.npy", rng.normal(0, 1, (count, steps, 2, 5)).astype(np.float32))
        np.save(path / f"edges_{part}_springs5.npy", (rng.random((count, 5, 5)) < 0.5).astype(np.float64))


def _stocks(path: Path, rng: np.random.Generator) -> None:
    """A CSV file like NASDAQ 100: 20,000 minutes, 81 prices and the index."""
    prices = 100 + np.cumsum(rng.normal(0, 0.05, (20_000, 81)), axis=0)
    table = np.column_stack([prices, prices.sum(axis=1)])
    np.savetxt(path, table, delimiter=",", fmt="%.3f", header=",".join([*(f"S{n}" for n in range(81)), "NDX"]), comments="")


def _clicks(path: Path, rng: np.random.Generator) -> None:
    """A CSV file like Criteo's: 20,000 rows of a label, 13 counts and 26 categories."""
    head = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    labels, counts = rng.integers(0, 2, (20_000, 1)), rng.integers(0, 1000, (20_000, 13))
    rows = np.concatenate([labels, counts, np.minimum(rng.zipf(1.5, (20_000, 26)), 3000)], axis=1).tolist()
    lines = (",".join([*map(str, row[:14]), *(f"c{value:04x}" for value in row[14:])]) for row in rows)
    path.write_text(",".join(head) + "\n" + "\n".join(lines) + "\n")


def _servers(path: Path, rng: np.random.Generator) -> None:
    """SMD_train.npy, SMD_test.npy and SMD_test_label.npy: 120,000 and 2,000 times, 38 values."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 120_000), ("test", 2000)):
        np.save(path / f"SMD_{part}.npy", rng.random((count, 38), dtype=np.float32))
    np.save(path / "SMD_test_label.npy", (rng.random(2000) < 0.05).astype(np.float32))


def _motions(path: Path, rng: np.random.Generator) -> None:
    """train.pt, val.pt and test.pt like UCI HAR: 4,000, 128 and 128 samples of nine channels and 128 times, six classes."""
    import torch

    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 4000), ("val", 128), ("test", 128)):
        samples = torch.from_numpy(rng.normal(0, 1, (count, 9, 128)).astype(np.float32))
        torch.save({"samples": samples, "labels": torch.from_numpy(rng.integers(0, 6, count))}, path / f"{part}.pt")


def _heartbeats(path: Path, rng: np.random.Generator) -> None:
    """Pickled lists of rows, two values and a label: 3,000 for training in train/ecg.pkl and 800 in test/ecg.pkl."""
    for part, count in (("train", 3000), ("test", 800)):
        (path / part).mkdir(parents=True, exist_ok=True)
        waves = np.sin(np.arange(count)[:, None] / np.array([7.0, 11.0])) + rng.normal(0, 0.1, (count, 2))
        (path / part / "ecg.pkl").write_bytes(pickle.dumps(np.column_stack([waves, np.zeros(count)]).tolist()))


def _headlines(path: Path, rng: np.random.Generator) -> None:
    """class.txt, and lines of a headline of 10 to 40 characters and its class: 40,000 to train on, 2,500 in dev.txt and test.txt."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "class.txt").write_text("\n".join(f"class{n}" for n in range(10)))
    letters = np.array([chr(0x4E00 + n) for n in range(3000)])
    for part, count in (("train", 40_000), ("dev", 2500), ("test", 2500)):
        lines = ("".join(letters[rng.integers(0, 3000, rng.integers(10, 41))]) + f"\t{rng.integers(10)}" for _ in range(count))
        (path / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _tagged(path: Path, rng: np.random.Generator) -> None:
    """Vocabularies char, word and tag, and data: 6,000 sentences of 5 to 20 words as numbers of characters, of the word and of its tag."""
    path.mkdir(parents=True, exist_ok=True)
    special = ["<PAD>", "<SOS>", "<EOS>", "<UNK>"]
    for name, count in (("char", 60), ("word", 3000), ("tag", 9)):
        (path / name).write_text("".join(f"{one}\n" for one in [*special, *(f"{name}{n}" for n in range(count))]))
    with (path / "data").open("w") as lines:
        for _ in range(6000):
            length = rng.integers(5, 21)
            words = (
                f"{'+'.join(map(str, rng.integers(4, 64, rng.integers(2, 9))))}:{rng.integers(4, 3004)}" for _ in range(length)
            )
            lines.write(" ".join(words) + "\t" + " ".join(map(str, rng.integers(4, 13, length))) + "\n")


MAKERS: dict[str, Maker] = {
    "mnist": _mnist,
    "words": _words,
    "letters": _letters,
    "names": _names,
    "tokens": _tokens,
    "bytes": _bytes,
    "ett": _ett,
    "rates": _rates,
    "cora": _cora,
    "ucr": _ucr,
    "purchases": _purchases,
    "sines": _sines,
    "photos": _photos,
    "music": _music,
    "traffic": _traffic,
    "ratings": _ratings,
    "triples": _triples,
    "names-by-language": _names_by_language,
    "gzip-lines": _gzip_lines,
    "pairs": _pairs,
    "roads": _roads,
    "springs": _springs,
    "stocks": _stocks,
    "clicks": _clicks,
    "servers": _servers,
    "motions": _motions,
    "heartbeats": _heartbeats,
    "headlines": _headlines,
    "tagged": _tagged,
}
