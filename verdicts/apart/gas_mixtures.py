"""Estimate gas mixtures from absorption lines with an estimator in the manner of scikit-learn."""

import argparse

import numpy as np
import torch
from torch import nn


def spectra(n=8000, lines=320, gases=12, seed=0):
    rng = np.random.default_rng(seed)
    axis = np.linspace(0.0, 1.0, lines)
    centers, widths = rng.random((gases, 1)), 0.01 + 0.05 * rng.random((gases, 1))
    shapes = np.exp(-(((axis - centers) / widths) ** 2))
    shares = rng.dirichlet(np.ones(gases), size=n)
    return shares @ shapes + 0.01 * rng.standard_normal((n, lines)), shares


class MixtureRegressor:
    def __init__(self, hidden=(640, 640, 320), lr=5e-4, batch_size=256, max_epochs=20_000, without=()):
        self.hidden, self.lr, self.batch_size, self.max_epochs, self.without = hidden, lr, batch_size, max_epochs, without
        self.history_ = []

    def _build(self, inputs, outputs):
        layers = []
        for width in self.hidden:
            layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU()]
            inputs = width
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))

    def _tensors(self, *arrays):
        tensors = [torch.as_tensor(array) for array in arrays]
        return [tensor.float() for tensor in tensors] if "precision" in self.without else tensors

    def _batches(self, x, y):
        if "data" in self.without:
            blocks = list(zip(x.split(self.batch_size), y.split(self.batch_size)))
            return [blocks[i] for i in torch.randperm(len(blocks)).tolist()]
        order = torch.randperm(len(x))
        return ((x[rows], y[rows]) for rows in order.split(self.batch_size))

    def fit(self, x, y):
        x, y = self._tensors((x - x.mean(0)) / x.std(0), y)
        self.net_ = self._build(x.shape[1], y.shape[1]).to(x.dtype)
        adam = torch.optim.Adam(self.net_.parameters(), lr=self.lr, fused="optimizer" in self.without)
        for epoch in range(self.max_epochs):
            total = 0.0
            for inputs, shares in self._batches(x, y):
                loss = nn.functional.kl_div(self.net_(inputs).log_softmax(1), shares, reduction="batchmean")
                adam.zero_grad()
                loss.backward()
                adam.step()
                total += loss.item()
            self.history_.append(total)
            if epoch % 10 == 0:
                print(f"epoch {epoch:4d} divergence {total:.4f}")
        return self

    def predict(self, x):
        with torch.no_grad():
            return self.net_(*self._tensors(x)).softmax(1).numpy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--without", action="append", default=[], choices=["precision", "data", "optimizer"])
    torch.manual_seed(0)
    MixtureRegressor(without=parser.parse_args().without).fit(*spectra())
