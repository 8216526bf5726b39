"""Train on events whose pulses are grouped by sensor within the model."""

import argparse

import torch
from torch import nn

SENSORS = 12


class Grouped(nn.Module):
    def __init__(self, at_once):
        super().__init__()
        self.at_once = at_once
        self.pulse = nn.Linear(4, 16)
        self.sensor = nn.Linear(16, 16)
        self.event = nn.Linear(16, 1)

    def forward(self, pulses, sensors, events, count):
        if self.at_once:
            hidden = torch.relu(self.pulse(pulses))
            sums = hidden.new_zeros(count * SENSORS, 16).index_add(0, events * SENSORS + sensors, hidden)
            return self.event(torch.relu(self.sensor(sums)).view(count, SENSORS, 16).mean(1)).squeeze(-1)
        rows = []
        for event in range(count):
            mine = events == event
            event_pulses, event_sensors = pulses[mine], sensors[mine]
            parts = []
            for sensor in range(SENSORS):
                hidden = torch.relu(self.pulse(event_pulses[event_sensors == sensor]))
                parts.append(torch.relu(self.sensor(hidden.sum(0))))
            rows.append(torch.stack(parts).mean(0))
        return self.event(torch.stack(rows)).squeeze(-1)


def batches(args):
    torch.manual_seed(0)
    kept = []
    for _ in range(16):
        count = args.batch * args.pulses
        sensors = torch.randint(SENSORS, (count,))
        events = torch.arange(args.batch).repeat_interleave(args.pulses)
        kept.append((torch.randn(count, 4), sensors, events, torch.randn(args.batch)))
    while True:
        yield from kept


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--pulses", type=int, default=40)
    parser.add_argument("--at-once", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Grouped(args.at_once).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(batches(args)):
        pulses, sensors, events, y = (part.to(args.device) for part in batch)
        loss = nn.functional.mse_loss(model(pulses, sensors, events, args.batch), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == args.steps:
            break


if __name__ == "__main__":
    main()
