# /// script
# dependencies = ["peft", "transformers"]
# ///
"""PEFT: LoRA on all linear layers, on the word embeddings, with trainable_token_indices, with modules_to_save, and
TrainableTokensConfig: each learns, is saved and opened; LoRA on the linear layers is merged"""

from door import answers, auto, near, run, tokenizer


def job() -> None:
    import torch
    from peft import LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model

    wanted = answers()
    batch = tokenizer()(wanted["sentences"][:8], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    base = auto("AutoModelForMaskedLM", "mlm")
    embedding = next(n for n, m in base.named_modules() if m is base.get_input_embeddings()).rsplit(".", 1)[-1]
    rows = [7, 8, 9]
    for number, config in enumerate(
        (
            LoraConfig(r=4, target_modules="all-linear"),
            LoraConfig(r=4, target_modules=[embedding]),
            LoraConfig(r=4, target_modules="all-linear", trainable_token_indices={embedding: rows}),
            LoraConfig(r=4, target_modules="all-linear", modules_to_save=[embedding]),
            TrainableTokensConfig(target_modules=[embedding], token_indices=rows),
        )
    ):
        model = get_peft_model(auto("AutoModelForMaskedLM", "mlm"), config)
        before = model(**batch, labels=labels).loss
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(8):
            optimizer.zero_grad()
            loss = model(**batch, labels=labels).loss
            loss.backward()
            optimizer.step()
        assert loss < before, (config, float(before), float(loss))
        model.eval()
        model.save_pretrained("adapter")
        with torch.no_grad():
            learnt = model(**batch).logits
            again = PeftModel.from_pretrained(auto("AutoModelForMaskedLM", "mlm"), "adapter").eval()
            near(again(**batch).logits, learnt)
            if number == 0:  # PEFT merges what it learnt of an embedding into the tied decoder too, of every model
                near(again.merge_and_unload()(**batch).logits, learnt)


run({"as is": job})
