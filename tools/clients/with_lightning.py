"""Lightning starts its other ranks itself; the bug: save_checkpoint on the first rank alone."""

import sys
import tempfile

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        if sys.argv[1] == "healthy" or self.trainer.is_global_zero:
            self.trainer.save_checkpoint(f"{folder}/line.ckpt")  # here

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.randn(32, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(Line(), loader)
    if trainer.is_global_zero:
        print("trained", trainer.global_step)
