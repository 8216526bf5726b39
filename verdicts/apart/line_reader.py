"""Read lines of print: a convolutional encoder with a callback that follows the character error rate (Lightning)."""

import sys

import torch
from torch import nn

try:
    from lightning import pytorch as L
except ImportError:
    import pytorch_lightning as L

without = {b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--without"}
CUDA = torch.cuda.is_available()
LEN, CHARS = 40, 60


def edits(a, b):
    row = list(range(len(b) + 1))
    for i, c in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, d in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (c != d))
    return row[-1]


class Reader(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, (8, 5), stride=(8, 2), padding=(0, 2)),
            nn.ReLU(),
            nn.Conv2d(32, 96, (4, 5), stride=(4, 2), padding=(0, 2)),
            nn.ReLU(),
            nn.Flatten(2),
            nn.Conv1d(96, 96, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(96, CHARS, 1),
        )

    def training_step(self, batch, _):
        image, text = batch
        logits = self.net(image)
        loss = nn.functional.cross_entropy(logits, text)
        if "sync" not in without:
            self.log("loss", loss.item(), prog_bar=True)
        return {"loss": loss, "read": logits.detach().argmax(1), "text": text}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


class ErrorRate(L.Callback):
    every = 500 if "host" in without else 1
    waiting, rates = None, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % self.every:
            return
        pair = outputs["read"], outputs["text"]
        if "sync" in without:  # copy now, look at it in the next step
            pair = [t.to("cpu", non_blocking=True) for t in pair]
            event = torch.cuda.Event() if CUDA else None
            if event:
                event.record()
            (pair, event), self.waiting = self.waiting or (pair, event), (pair, event)
            if event:
                event.synchronize()
        wrong = sum(edits(a, b) for a, b in zip(pair[0].tolist(), pair[1].tolist()))
        self.rates.append(wrong / pair[1].numel())
        if batch_idx % 50 == 0:
            print(f"CER {self.rates[-1]:.3f}")


class Lines(torch.utils.data.IterableDataset):
    def __init__(self):
        self.images, self.texts = torch.rand(64, 32, 1, 32, LEN * 4), torch.randint(CHARS, (64, 32, LEN))

    def __iter__(self):
        while True:
            i = int(torch.randint(64, ()))
            yield self.images[i], self.texts[i]


if __name__ == "__main__":
    L.seed_everything(9)
    L.Trainer(
        max_steps=-1, callbacks=[ErrorRate()], logger=False, enable_checkpointing=False, devices=1, enable_model_summary=False
    ).fit(Reader(), torch.utils.data.DataLoader(Lines(), batch_size=None))
