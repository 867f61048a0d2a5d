# /// script
# dependencies = ["lightning", "transformers"]
# ///
"""Lightning: fine-tunes, saves a checkpoint and goes on from it"""

from door import answers, auto, near, run, tokenizer


def job() -> None:
    import lightning
    import torch

    wanted = answers()
    tokens = tokenizer()

    class Judge(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = auto("AutoModelForSequenceClassification", "sentiment").train()

        def training_step(self, batch: dict, number: int) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def collate(rows: list) -> dict:
        batch = tokens([text for text, _ in rows], padding=True, return_tensors="pt")
        return {**batch, "labels": torch.tensor([label for _, label in rows])}

    data = torch.utils.data.DataLoader(wanted["reviews"], batch_size=16, collate_fn=collate)
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    judge = Judge()
    trainer = lightning.Trainer(max_steps=5, **options)
    trainer.fit(judge, data)
    trainer.save_checkpoint("judge.ckpt")
    again = Judge()
    again.load_state_dict(torch.load("judge.ckpt", weights_only=True)["state_dict"])
    batch = tokens(wanted["texts"], padding=True, return_tensors="pt")
    with torch.no_grad():
        near(again.model.eval()(**batch).logits, judge.model.eval()(**batch).logits)
        assert judge.model(**batch).logits.argmax(-1).tolist() == [1, 0, 1, 0, 1]
    lightning.Trainer(max_steps=8, **options).fit(again, data, ckpt_path="judge.ckpt")


run({"as is": job})
