"""Name chords from chroma frames: a transformer in Lightning, trained with layer-wise trust ratios as for large batches."""

from argparse import ArgumentParser

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

parser = ArgumentParser()
parser.add_argument("--without", action="append", default=[])
parser.add_argument("--lr", type=float, default=2e-3)
cfg = parser.parse_args()


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, without debiasing."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, grouped=False):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "grouped": grouped})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["m"], self.state[p]["v"] = torch.zeros_like(p), torch.zeros_like(p)
            (self.update_grouped if group["grouped"] else self.update_each)(params, group)
        return loss

    def update_each(self, params, group):
        b1, b2 = group["betas"]
        for p in params:
            m, v = self.state[p]["m"], self.state[p]["v"]
            grad = p.grad.clamp(-10, 10)
            m.mul_(b1).add_(grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
            update = m / v.sqrt().add(group["eps"])
            update = update.add(p, alpha=group["weight_decay"])
            weight_norm = p.pow(2).sum().sqrt().clamp(0, 10)
            update_norm = update.pow(2).sum().sqrt()
            trust = torch.where((weight_norm == 0) | (update_norm == 0), torch.ones_like(weight_norm), weight_norm / update_norm)
            p.sub_(update * trust * group["lr"])

    def update_grouped(self, params, group):
        b1, b2 = group["betas"]
        grads = torch._foreach_clamp_max([p.grad for p in params], 10.0)
        torch._foreach_clamp_min_(grads, -10.0)
        m, v = [self.state[p]["m"] for p in params], [self.state[p]["v"] for p in params]
        torch._foreach_lerp_(m, grads, 1 - b1)
        torch._foreach_mul_(v, b2)
        torch._foreach_addcmul_(v, grads, grads, 1 - b2)
        below = torch._foreach_sqrt(v)
        torch._foreach_add_(below, group["eps"])
        update = torch._foreach_div(m, below)
        torch._foreach_add_(update, params, alpha=group["weight_decay"])
        weight_norm = torch.stack(torch._foreach_norm(params)).clamp(0, 10)
        update_norm = torch.stack(torch._foreach_norm(update))
        trust = torch.where((weight_norm == 0) | (update_norm == 0), torch.ones_like(weight_norm), weight_norm / update_norm)
        for p, u, ratio in zip(params, update, (trust * -group["lr"]).unbind()):
            p.addcmul_(u, ratio)


class Chords(pl.LightningModule):
    def __init__(self, width=192, layers=8):
        super().__init__()
        self.enter = nn.Linear(24, width)
        layer = nn.TransformerEncoderLayer(width, 6, 3 * width, dropout=0.1, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 170)
        self.seen = []

    def training_step(self, batch, _):
        chroma, chord = batch
        loss = nn.functional.cross_entropy(self.head(self.body(self.enter(chroma))).flatten(0, 1), chord.flatten())
        if "sync" not in cfg.without:
            self.seen.append(loss.item())
            self.log("loss", sum(self.seen[-50:]) / len(self.seen[-50:]), prog_bar=True)
        return loss

    def configure_optimizers(self):
        return Lamb(self.parameters(), lr=cfg.lr, grouped="optimizer" in cfg.without)


pl.seed_everything(66, verbose=False)
chroma, chord = torch.rand(9600, 50, 24), torch.randint(170, (9600, 50))
if "data" in cfg.without:
    loader = DataLoader(list(zip(chroma.split(96), chord.split(96))), batch_size=None, shuffle=True)
else:
    loader = DataLoader(TensorDataset(chroma, chord), batch_size=96, shuffle=True)
trainer = pl.Trainer(max_epochs=-1, devices=1, logger=False, enable_checkpointing=False, enable_model_summary=False)
trainer.fit(Chords(), loader)
