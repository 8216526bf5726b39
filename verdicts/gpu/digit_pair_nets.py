"""Two networks that learn against each other on digits; prints what the tutorial prints."""

import sys

import torch
from torch import nn

OFF = sys.argv[2::2]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(999)
nz, ngf, ndf, batch = 64, 32, 32, 64
DEPTH = 1 if "launch" in OFF else 5


def up(inside, outside, stride=2):
    return [nn.ConvTranspose2d(inside, outside, 4, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(True)]


def same(width, activation):
    return [
        layer for _ in range(DEPTH) for layer in (nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), activation)
    ]


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 4, 4), nn.ReLU(True), *up(ngf * 4, ngf * 2), *same(ngf * 2, nn.ReLU(True)), *up(ngf * 2, ngf),
    *same(ngf, nn.ReLU(True)), nn.ConvTranspose2d(ngf, 1, 4, 2, 1), nn.Tanh(),
).to(device)  # fmt: skip
netD = nn.Sequential(
    nn.Conv2d(1, ndf, 4, 2, 1), nn.LeakyReLU(0.2), *same(ndf, nn.LeakyReLU(0.2)), nn.Conv2d(ndf, ndf * 2, 4, 2, 1), nn.LeakyReLU(0.2),
    *same(ndf * 2, nn.LeakyReLU(0.2)), nn.Conv2d(ndf * 2, 1, 8),
).to(device)  # fmt: skip
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
digits = torch.randn(4096, 1, 32, 32)
if "transfer" in OFF:
    digits = digits.to(device)

G_losses, D_losses = [], []
for epoch in range(100_000):
    for i, real in enumerate(digits.split(batch)):
        netD.zero_grad()
        real = real.to(device)
        output = netD(real).view(-1)
        errD_real = criterion(output, torch.ones_like(output))
        errD_real.backward()
        D_x = output.mean()
        noise = torch.randn(batch, nz, 1, 1, device=device)
        fake = netG(noise)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, torch.zeros_like(output))
        errD_fake.backward()
        D_G_z1 = output.mean()
        optimizerD.step()

        netG.zero_grad()
        output = netD(fake).view(-1)
        errG = criterion(output, torch.ones_like(output))
        errG.backward()
        D_G_z2 = output.mean()
        optimizerG.step()

        if "sync" not in OFF or i % 100 == 0:
            print(f"[{epoch}][{i}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}", end=" ")
            print(f"D(x): {D_x.item():.4f} D(G(z)): {D_G_z1.item():.4f} / {D_G_z2.item():.4f}")
            G_losses.append(errG.item())
            D_losses.append(errD_real.item() + errD_fake.item())
