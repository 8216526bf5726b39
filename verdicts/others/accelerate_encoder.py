import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    acc = Accelerator(gradient_accumulation_steps=4, cpu=True)
    enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0), 2)
    head = nn.Linear(256, 8)
    model = nn.Sequential(enc, head)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    dl = DataLoader(TensorDataset(torch.randn(2000, 64, 256), torch.randint(0, 8, (2000,))), batch_size=8, shuffle=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)
    model, opt, dl, sched = acc.prepare(model, opt, dl, sched)
    for epoch in range(20):
        for x, y in dl:
            with acc.accumulate(model):
                loss = nn.functional.cross_entropy(model(x).mean(1), y)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
        acc.print(epoch, loss.item())


main()
