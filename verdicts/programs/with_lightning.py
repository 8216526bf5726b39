"""Train a model with Lightning."""

import models
import options
import pytorch_lightning as lightning
import samples
import torch


class Module(lightning.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.model = models.build(args)

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return options.optimizer(self.args, self.parameters())


def main():
    args = options.parse()
    lightning.seed_everything(args.seed)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="cpu" if args.device == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(args), samples.loader(args))


if __name__ == "__main__":
    main()
