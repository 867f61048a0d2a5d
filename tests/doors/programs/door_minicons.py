# /// script
# dependencies = ["minicons"]
# ///
"""minicons: MaskedLMScorer scores sentences as the definition has it"""

from door import after_import, answers, auto, folder, near, run, tokenizer


def job() -> None:
    import torch
    from minicons.scorer import MaskedLMScorer

    wanted = answers()
    texts = wanted["sentences"][:3]
    scorer = MaskedLMScorer(folder("mlm"), "cpu")
    found = scorer.sequence_score(texts, reduction=lambda row: row.sum().item())
    model, tokens = auto("AutoModelForMaskedLM", "mlm"), tokenizer()
    for text, score in zip(texts, found, strict=True):
        ids = tokens(text, return_tensors="pt")["input_ids"]
        total = 0.0
        for place in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, place] = tokens.mask_token_id
            with torch.no_grad():
                total += model(hidden).logits[0, place].log_softmax(-1)[ids[0, place]].item()
        near(score, total, 1e-4)


OLD_NAME = ("has no attribute batch_encode_plus", "theirs: it calls what transformers 5 does not have")
run(
    {"as is": job, "after `import clozebert`": after_import(job)},
    {
        ("bundle", "as is"): ("contains custom code", "theirs: it hands no trust_remote_code on"),
        ("bundle", "after `import clozebert`"): OLD_NAME,
        ("native", "as is"): OLD_NAME,
        ("native", "after `import clozebert`"): OLD_NAME,
    },
)
