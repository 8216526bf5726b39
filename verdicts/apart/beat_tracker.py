#!/usr/bin/env python3
"""Beat tracking from spectral frames with Lightning. A cell is unrolled over the frames so that its state can be clipped or inspected."""

from argparse import ArgumentParser

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl


class Unrolled(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell, self.hidden = nn.LSTMCell(inputs, hidden), hidden

    def forward(self, frames):
        h = c = frames.new_zeros(len(frames), self.hidden)
        outs = []
        for t in range(frames.shape[1]):
            h, c = self.cell(frames[:, t], (h, c))
            outs.append(h)
        return torch.stack(outs, dim=1)


class Rolled(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, frames):
        return self.lstm(frames)[0]


class BeatTracker(pl.LightningModule):
    def __init__(self, hparams):
        super().__init__()
        self.off = hparams.without
        recurrent = Rolled if "launch" in self.off else Unrolled
        self.front = nn.Sequential(nn.Linear(81, 128), nn.ELU(), nn.Dropout(0.1))
        self.rnn = recurrent(128, 160)
        self.beat, self.tempo = nn.Linear(160, 3), nn.Linear(160, 60)

    def training_step(self, batch, batch_idx):
        frames, beats, tempo = batch
        states = self.rnn(self.front(frames))
        guess = self.beat(states)
        bpm = self.tempo(states.mean(1))
        beat_loss = F.cross_entropy(guess.flatten(0, 1), beats.flatten(), weight=guess.new_tensor([0.2, 1.0, 2.0]))
        tempo_loss = F.cross_entropy(bpm, tempo)
        loss = beat_loss + 0.3 * tempo_loss
        if "sync" not in self.off:
            hits = ((guess.argmax(-1) > 0) & (beats > 0)).sum().item()
            called, real = (guess.argmax(-1) > 0).sum().item(), (beats > 0).sum().item()
            self.log("f1", 2 * hits / max(called + real, 1), prog_bar=True)
            self.log("tempo_error", (bpm.argmax(-1) - tempo).abs().float().mean().item(), prog_bar=True)
            self.log("beat", beat_loss.item())
        return loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 10, 0.95)]


def main():
    parser = ArgumentParser()
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--frames", type=int, default=56)
    hparams = parser.parse_args()
    pl.seed_everything(1)
    n = 100 * hparams.batch_size
    spectra = torch.rand(n, hparams.frames, 81)
    beats, tempo = torch.randint(3, (n, hparams.frames)), torch.randint(60, (n,))
    if "data" in hparams.without:
        parts = [tensor.split(hparams.batch_size) for tensor in (spectra, beats, tempo)]
        loader = DataLoader(list(zip(*parts)), batch_size=None, shuffle=True)
    else:
        loader = DataLoader(TensorDataset(spectra, beats, tempo), hparams.batch_size, shuffle=True)
    pl.Trainer(
        max_epochs=-1,
        accelerator="auto",
        devices=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar="sync" not in hparams.without,
    ).fit(BeatTracker(hparams), loader)


if __name__ == "__main__":
    main()
