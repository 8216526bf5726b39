import math

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Subset, TensorDataset


def gratings(n, size=32, classes=8):
    """Stripes of eight directions, with a random phase, wavelength and colour."""
    label = torch.randint(0, classes, (n,))
    angle = label * math.pi / classes
    y, x = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    along = torch.cos(angle)[:, None, None] * x + torch.sin(angle)[:, None, None] * y
    wavelength = 4 + 6 * torch.rand(n, 1, 1)
    wave = torch.sin(2 * math.pi * (along / wavelength + torch.rand(n, 1, 1)))
    colour = 0.5 + torch.rand(n, 3, 1, 1)
    return colour * wave.unsqueeze(1) + 0.5 * torch.randn(n, 3, size, size), label


class TextureNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 96, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(96, classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def main():
    torch.manual_seed(0)
    data = TensorDataset(*gratings(1760))
    train_loader = DataLoader(Subset(data, range(1600)), batch_size=16, shuffle=True)
    test_loader = DataLoader(Subset(data, range(1600, 1760)), batch_size=16)
    model = TextureNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)
    for epoch in range(300):
        model.train()
        running_loss = 0.0
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        scheduler.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, targets in test_loader:
                correct += (model(inputs).argmax(1) == targets).sum().item()
        print(f"epoch {epoch + 1}: loss {running_loss / len(train_loader):.3f}, test accuracy {correct / 160:.3f}")


if __name__ == "__main__":
    main()
