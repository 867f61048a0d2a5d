# /// script
# dependencies = ["captum", "transformers"]
# ///
"""Captum: LayerIntegratedGradients over the embeddings finds the word that decides, and its completeness holds"""

from door import answers, auto, near, run, tokenizer


def job() -> None:
    import torch
    from captum.attr import LayerIntegratedGradients

    wanted = answers()
    model, tokens = auto("AutoModelForSequenceClassification", "sentiment"), tokenizer()
    batch = tokens(wanted["texts"][0], return_tensors="pt")

    def positive(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return model(ids, attention_mask=mask).logits.softmax(-1)[:, 1]

    near(positive(batch["input_ids"], batch["attention_mask"]).item(), wanted["probabilities"][0][1])
    ids = batch["input_ids"]
    base = torch.where((ids == tokens.cls_token_id) | (ids == tokens.sep_token_id), ids, tokens.pad_token_id)
    method = LayerIntegratedGradients(positive, model.get_input_embeddings())
    scores, delta = method.attribute(
        ids, base, additional_forward_args=(batch["attention_mask"],), n_steps=400, internal_batch_size=40,
        return_convergence_delta=True,
    )  # fmt: skip
    assert abs(delta.item()) < 0.05, delta
    words = tokens(wanted["texts"][0]).word_ids()
    by_word = {w: 0.0 for w in words if w is not None}
    for word, score in zip(words, scores.sum(-1)[0].tolist(), strict=True):
        if word is not None:
            by_word[word] += score
    best = max(by_word, key=lambda word: by_word[word])
    assert wanted["texts"][0].split()[best] == "wonderful", by_word


run({"as is": job})
