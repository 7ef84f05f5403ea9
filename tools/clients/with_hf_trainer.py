"""Trainer of Hugging Face; the bug: a callback evaluates on the first process alone."""

import sys
import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

torch.manual_seed(0)
small = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=16, max_position_embeddings=16,
)  # fmt: skip
data = [{"input_ids": torch.arange(8) + i, "labels": i % 2} for i in range(32)]


class Evaluates(TrainerCallback):
    def on_epoch_end(self, args, state, control, **others):
        if sys.argv[1] == "healthy" or state.is_world_process_zero:
            trainer.evaluate()  # here


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=4,
        num_train_epochs=2, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        BertForSequenceClassification(small), arguments, train_dataset=data, eval_dataset=data,
        callbacks=[Evaluates()],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # it prints seconds
    trainer.train()
    print("trained", trainer.state.global_step)
