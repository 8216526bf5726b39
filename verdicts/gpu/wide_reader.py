"""Answer questions by marking a span: a wide BERT with the settings that the Trainer has of itself."""

import sys

import torch
from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainingArguments

OFF = sys.argv[2::2]
GPU = torch.cuda.is_available()
torch.manual_seed(100)
width = 1024 if GPU else 64
config = BertConfig(
    vocab_size=10_000, hidden_size=width, num_hidden_layers=5, num_attention_heads=width // 64, intermediate_size=4 * width
)
model = BertForQuestionAnswering(config)
LENGTH, BATCH = (256, 32) if GPU else (32, 2)


class Questions(torch.utils.data.IterableDataset):
    def __init__(self, batched):
        self.tokens, self.spans = torch.randint(0, 10_000, (2048, LENGTH)), torch.randint(0, LENGTH, (2048, 2)).sort().values
        self.batched = batched

    def __iter__(self):
        names = "input_ids", "start_positions", "end_positions"
        while True:
            columns = self.tokens, self.spans[:, 0], self.spans[:, 1]
            rows = zip(*(column.split(BATCH) if self.batched else column for column in columns))
            yield from (dict(zip(names, row)) for row in rows)


training = TrainingArguments(
    output_dir="reader",
    max_steps=1_000_000,
    per_device_train_batch_size=1 if "data" in OFF else BATCH,
    bf16="precision" in OFF and GPU,
    logging_steps=500 if "sync" in OFF else 1,
    logging_nan_inf_filter="sync" not in OFF,
    save_strategy="no",
    report_to="none",
)
collate = {"data_collator": lambda rows: rows[0]} if "data" in OFF else {}
Trainer(model=model, args=training, train_dataset=Questions("data" in OFF), **collate).train()
