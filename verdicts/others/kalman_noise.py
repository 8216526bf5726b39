# maximum likelihood for the noise of a local linear trend model, by gradients through the Kalman filter
import numpy as np
import torch
from torch import nn

WINDOW = 40


class KalmanFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_q = nn.Parameter(torch.tensor([-1.0, -2.0]))
        self.log_r = nn.Parameter(torch.tensor(-1.0))
        self.register_buffer("transition", torch.tensor([[1.0, 1.0], [0.0, 1.0]]))

    def forward(self, y):
        """Mean negative log-likelihood of the rows of y."""
        q, r = torch.diag(self.log_q.exp()), self.log_r.exp()
        state = torch.zeros(y.shape[0], 2)
        cov = torch.eye(2)
        nll = torch.zeros(())
        for t in range(y.shape[1]):
            # predict
            state = state @ self.transition.t()
            cov = self.transition @ cov @ self.transition.t() + q
            # update
            innovation = y[:, t] - state[:, 0]
            s = cov[0, 0] + r
            gain = cov[:, 0] / s
            state = state + innovation.unsqueeze(1) * gain
            cov = cov - torch.outer(gain, cov[0])
            nll = nll + 0.5 * (torch.log(s) + innovation.square() / s).mean()
        return nll / y.shape[1]


series = torch.from_numpy(np.load("data/series.npy"))
windows = series[: len(series) // WINDOW * WINDOW].view(-1, WINDOW)
windows = windows - windows[:, :1]
windows = windows[: len(windows) // 16 * 16]
model = KalmanFilter()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(200):
    shuffled = windows[torch.randperm(len(windows))]
    for n, y in enumerate(shuffled.split(16)):
        loss = model(y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if n % 100 == 0:
            q, r = model.log_q.exp().tolist(), model.log_r.exp().item()
            print(f"epoch {epoch} batch {n} nll {loss.item():.4f} level {q[0]:.4f} trend {q[1]:.4f} noise {r:.4f}")
