"""Tag tokens by a transformer in a LightningModule, with a progress bar of loss, accuracy and rate."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as L
except ImportError:
    import pytorch_lightning as L

OFF = sys.argv[2::2]


class Tagger(L.LightningModule):
    def __init__(self, width=128, layers=8, tags=17):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(5000, width)
        self.encoder = nn.TransformerEncoder(layer, 2 if "launch" in OFF else layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, tags)

    def training_step(self, batch, batch_idx):
        tokens, tags = batch
        logits = self.out(self.encoder(self.embed(tokens)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        if "sync" not in OFF:
            guess = logits.detach().argmax(-1)
            self.log("loss", loss, prog_bar=True)
            self.log("accuracy", (guess == tags).float().mean(), prog_bar=True)
            self.log("entropy", torch.distributions.Categorical(logits=logits.detach()).entropy().mean(), prog_bar=True)
            if not torch.isfinite(loss):
                raise ValueError(f"loss is {loss.item()}")
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-4)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


L.seed_everything(3)
data = TensorDataset(torch.randint(0, 5000, (6400, 48)), torch.randint(0, 17, (6400, 48)))
trainer = L.Trainer(
    max_steps=1_000_000,
    max_epochs=-1,
    accelerator="auto",
    devices=1,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar="host" not in OFF,
)
trainer.fit(Tagger(), DataLoader(data, batch_size=32, shuffle=True, drop_last=True))
