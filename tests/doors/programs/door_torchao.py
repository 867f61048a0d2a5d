# /// script
# dependencies = ["torchao", "transformers"]
# ///
"""torchao: int8 weights by transformers TorchAoConfig and by quantize_, with the same predictions"""

from door import TRUST, answers, auto, folder, near, run, tokenizer


def job() -> None:
    import torch
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    from transformers import AutoModelForSequenceClassification, TorchAoConfig

    wanted = answers()
    batch = tokenizer()(wanted["texts"], padding=True, return_tensors="pt")
    model = auto("AutoModelForSequenceClassification", "sentiment")
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    quantize_(model, Int8WeightOnlyConfig())
    assert "Int8" in type(linear[0].weight).__name__ or type(linear[0].weight) is not torch.nn.Parameter
    with torch.no_grad():
        near(model(**batch).logits.softmax(-1), wanted["probabilities"], 0.05)
        config = TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
        loaded = AutoModelForSequenceClassification.from_pretrained(
            folder("sentiment"), quantization_config=config, **TRUST
        )
        near(loaded.eval()(**batch).logits.softmax(-1), wanted["probabilities"], 0.05)


run({"as is": job})
