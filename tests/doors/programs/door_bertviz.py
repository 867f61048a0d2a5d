# /// script
# dependencies = ["bertviz", "transformers"]
# ///
"""BertViz: draws the attention of every layer and head"""

from door import answers, auto, run, tokenizer


def job() -> None:
    import torch
    from bertviz import head_view, model_view

    wanted = answers()
    model, tokens = auto("AutoModel", "mlm", attn_implementation="eager"), tokenizer()
    batch = tokens(wanted["texts"][0], return_tensors="pt")
    with torch.no_grad():
        attention = model(**batch, output_attentions=True).attentions
    assert len(attention) == 4
    assert all(torch.allclose(layer.sum(-1), torch.ones(()), atol=1e-5) for layer in attention)
    pieces = tokens.convert_ids_to_tokens(batch["input_ids"][0])
    for view in (head_view, model_view):
        page = view(attention, pieces, html_action="return")
        assert "wonder" in page.data, page.data[:200]


run({"as is": job})
