import torch
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

n_readers, n_articles, n_tags, dim = 70_000, 50_000, 10_000, 32


class Affinity(nn.Module):
    """Score of a reader and an article, with the tag that the article was found under."""

    def __init__(self):
        super().__init__()
        self.readers = nn.Embedding(n_readers, dim)
        self.articles = nn.Embedding(n_articles, dim)
        self.tags = nn.Embedding(n_tags, dim)
        for table in (self.readers, self.articles, self.tags):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, reader, article, tag):
        return (self.readers(reader) * (self.articles(article) + self.tags(tag))).sum(dim=1)


torch.manual_seed(0)
rows = 256_000
ds = TensorDataset(
    torch.randint(0, n_readers, (rows,)),
    torch.randint(0, n_articles, (rows,)),
    torch.randint(0, n_tags, (rows,)),
    torch.randint(0, 2, (rows,)).float(),
)
# whole batches are fetched with one indexing each
loader = DataLoader(ds, sampler=BatchSampler(RandomSampler(ds), 256, drop_last=True), batch_size=None)

model = Affinity()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=500)
loss_fn = nn.BCEWithLogitsLoss()
for epoch in range(50):
    for it, (reader, article, tag, liked) in enumerate(loader):
        optimizer.zero_grad()
        loss = loss_fn(model(reader, article, tag), liked)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if it % 100 == 0:
            print(f"epoch {epoch} it {it} bce {loss.item():.4f}")
