"""Spectra, a compressed file each."""

import gzip
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(0)
SUFFIX = ".pkl" if "--fixed" in sys.argv else ".pkl.gz"


class Spectra(Dataset):
    def __init__(self, folder, count=256):
        self.paths = []
        for i in range(count):
            spectrum = np.cumsum(rng.normal(size=4096)).astype(np.float32)
            path = Path(folder) / f"{i:05}{SUFFIX}"
            with self.opener(path)(path, "wb") as file:
                pickle.dump({"spectrum": spectrum, "label": i % 5}, file)
            self.paths.append(path)

    @staticmethod
    def opener(path):
        return gzip.open if path.suffix == ".gz" else open

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        path = self.paths[i]
        with self.opener(path)(path, "rb") as file:
            record = pickle.load(file)
        return torch.from_numpy(record["spectrum"]), record["label"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Spectra(folder), batch_size=16, shuffle=True)
        net = torch.nn.Sequential(torch.nn.Linear(4096, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
        opt = torch.optim.SGD(net.parameters(), lr=1e-4)
        for epoch in range(5000):
            for spectrum, label in loader:
                loss = torch.nn.functional.cross_entropy(net(spectrum), label)
                opt.zero_grad()
                loss.backward()
                opt.step()


if __name__ == "__main__":
    main()
