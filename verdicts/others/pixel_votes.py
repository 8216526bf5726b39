import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

raw = np.fromfile("data/records.bin", dtype=np.dtype([("x", "<f4", 16), ("y", "<u4")]))
X = torch.tensor(raw["x"]).to(device)
Y = torch.tensor(raw["y"].astype(np.int64)).to(device)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))

    def forward(self, x):
        return self.net(x)


model = Classifier().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3)

num_epochs = 100
batch_size = 400
for epoch in range(num_epochs):
    running_loss = 0.0
    class_correct = [0] * 4
    class_total = [0] * 4
    perm = torch.randperm(len(X), device=device)
    for start in range(0, len(X), batch_size):
        idx = perm[start : start + batch_size]
        inputs, labels = X[idx], Y[idx]

        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()

        running_loss += loss.item()
        _, predicted = torch.max(outputs, 1)
        for i in range(batch_size):
            label = labels[i].item()
            class_correct[label] += predicted[i].item() == label
            class_total[label] += 1
    print(f"Epoch {epoch + 1}, loss: {running_loss / (len(X) // batch_size):.4f}")
    for c in range(4):
        print(f"  class {c}: {100 * class_correct[c] / class_total[c]:.1f} %")
