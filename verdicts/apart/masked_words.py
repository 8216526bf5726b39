"""Pre-train a small RoBERTa with masked whole words (Hugging Face Trainer, random weights, invented text)."""

import random
import sys

import torch
from transformers import RobertaConfig, RobertaForMaskedLM, Trainer, TrainingArguments

OFF = [sys.argv[i + 1] for i, a in enumerate(sys.argv) if a == "--without"]
GPU = torch.cuda.is_available()
VOCAB, MASK, PAD = 6000, 4, 1
BATCH = 256 if GPU else 16
torch.manual_seed(5)
random.seed(5)


def invent(n=6000):
    """Return documents as lists of (token, starts a word)."""
    ids = torch.randint(10, VOCAB, (n, 126)).tolist()
    starts = (torch.rand(n, 126) < 0.6).tolist()
    return [{"ids": i, "starts": s} for i, s in zip(ids, starts)]


class WholeWordCollator:
    def __call__(self, rows):
        if "data" in OFF:
            return self.vectorized(rows)
        inputs, labels = [], []
        for row in rows:
            words = []
            for position, start in enumerate(row["starts"]):
                if start or not words:
                    words.append([position])
                else:
                    words[-1].append(position)
            x, y = list(row["ids"]), [-100] * len(row["ids"])
            random.shuffle(words)
            for word in words[: max(1, round(0.15 * len(words)))]:
                for position in word:
                    y[position] = x[position]
                    draw = random.random()
                    if draw < 0.8:
                        x[position] = MASK
                    elif draw < 0.9:
                        x[position] = random.randrange(10, VOCAB)
            inputs.append([0, *x, 2])
            labels.append([-100, *y, -100])
        ids = torch.tensor(inputs)
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": torch.tensor(labels)}

    def vectorized(self, rows):
        x = torch.stack([row["ids"] for row in rows])
        words = torch.stack([row["starts"] for row in rows]).cumsum(1)
        chosen = torch.rand(x.shape).lt(0.15).gather(1, words.clamp(max=x.shape[1] - 1))
        y = x.masked_fill(~chosen, -100)
        draw = torch.rand(x.shape)
        x = torch.where(chosen & (draw < 0.8), MASK, x)
        x = torch.where(chosen & (draw >= 0.8) & (draw < 0.9), torch.randint(10, VOCAB, x.shape), x)
        return {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}


class Counting(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        if "sync" not in OFF:
            hit = (out.logits.argmax(-1) == inputs["labels"]).sum().item()
            self.masked = hit / max(1, (inputs["labels"] >= 0).sum().item())
        return (out.loss, out) if return_outputs else out.loss


documents = invent()
if "data" in OFF:
    documents = [{k: torch.tensor([v[0], *v, v[-1]]) for k, v in d.items()} for d in documents]
size = (
    {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
    if GPU
    else {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
)
args = TrainingArguments(
    "out",
    max_steps=10**8,
    per_device_train_batch_size=BATCH,
    bf16=GPU,
    report_to=[],
    save_strategy="no",
    logging_steps=20,
    remove_unused_columns=False,
    dataloader_drop_last=True,
    optim="adamw_torch" if "optimizer" not in OFF else "adamw_torch_fused",
    max_grad_norm=1.0,
)
Counting(
    RobertaForMaskedLM(RobertaConfig(vocab_size=VOCAB, max_position_embeddings=140, **size)), args, WholeWordCollator(), documents
).train()
