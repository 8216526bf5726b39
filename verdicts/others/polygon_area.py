import numpy as np
import torch
from torch import nn

size, corners, n, batch = 48, 10, 6000, 20
rng = np.random.default_rng(5)
ys, xs = np.mgrid[0:size, 0:size] / size

# star-shaped polygons around the centre
angles = np.sort(rng.uniform(0, 2 * np.pi, (n, corners)), axis=1)
radii = rng.uniform(0.15, 0.45, (n, corners))
polygons = np.stack([0.5 + radii * np.cos(angles), 0.5 + radii * np.sin(angles)], axis=-1)
following = np.roll(polygons, -1, axis=1)
areas = 0.5 * np.abs((polygons[..., 0] * following[..., 1] - following[..., 0] * polygons[..., 1]).sum(1))


def rasterise(polygon):
    inside = np.zeros((size, size), dtype=bool)
    x0, y0 = polygon[-1]
    for x1, y1 in polygon:
        crosses = (y0 > ys) != (y1 > ys)
        left = xs < (x1 - x0) * (ys - y0) / (y1 - y0 + 1e-9) + x0
        inside ^= crosses & left
        x0, y0 = x1, y1
    return inside


def make_batch(indices):
    images = []
    for i in indices:
        image = rasterise(polygons[i]) + rng.normal(0, 0.1, (size, size))
        images.append(image.astype(np.float32))
    return torch.from_numpy(np.stack(images)).unsqueeze(1), torch.tensor(areas[indices], dtype=torch.float32)


class AreaNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 4, stride=4)
        self.conv2 = nn.Conv2d(6, 12, 3, stride=2, padding=1)
        self.fc = nn.Linear(12 * 6 * 6, 1)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc(x.flatten(1)).squeeze(1)


net = AreaNet()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(500):
    perm = torch.randperm(n).tolist()
    for i in range(0, n, batch):
        x, y = make_batch(perm[i : i + batch])
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, "mse", loss.item())
