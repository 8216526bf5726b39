"""A ViT on image tiles with Accelerate; the bar shows loss, norm and accuracy."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
from transformers import ViTConfig, ViTForImageClassification

OFF = sys.argv[2::2]


def main():
    set_seed(8)
    accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no", gradient_accumulation_steps=2)
    config = ViTConfig(
        image_size=64, patch_size=8, hidden_size=192, num_attention_heads=3, intermediate_size=768, num_labels=10,
        num_hidden_layers=2 if "launch" in OFF else 8,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=4_000_000)
    tiles = TensorDataset(torch.randn(1536, 3, 64, 64), torch.randint(0, 10, (1536,)))
    loader = DataLoader(tiles, batch_size=16, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if "data" in OFF:
        loader = list(loader)
    bar = tqdm(total=1_000_000, disable="host" in OFF)
    average = 0.0
    while True:
        for pixels, labels in loader:
            with accelerator.accumulate(model):
                output = model(pixel_values=pixels, labels=labels)
                accelerator.backward(output.loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0) if accelerator.sync_gradients else None
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if "sync" not in OFF:
                average = 0.9 * average + 0.1 * accelerator.gather(output.loss.detach()).mean().item()
                guesses, truths = accelerator.gather_for_metrics((output.logits.argmax(-1), labels))
                right = (guesses == truths).float().mean().item()
                bar.set_postfix(loss=f"{average:.3f}", right=f"{right:.2f}", norm=f"{float(norm or 0):.2f}")
            bar.update()


main()
