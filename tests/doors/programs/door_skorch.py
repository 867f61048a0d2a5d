# /// script
# dependencies = ["skorch", "transformers", "scikit-learn"]
# ///
"""skorch: fine-tunes the classifier within a scikit-learn pipeline"""

from door import answers, auto, folder, near, run


def job() -> None:
    import torch
    from sklearn.pipeline import Pipeline
    from skorch import NeuralNetClassifier
    from skorch.hf import HuggingfacePretrainedTokenizer

    wanted = answers()

    class Judge(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = auto("AutoModelForSequenceClassification", "sentiment")

        def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
            return self.model(**inputs).logits

    net = NeuralNetClassifier(
        Judge, criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.AdamW, lr=1e-4, max_epochs=1, batch_size=16,
        train_split=None, verbose=0,
    )  # fmt: skip
    steps = Pipeline([("tokens", HuggingfacePretrainedTokenizer(folder("sentiment"), max_length=32)), ("net", net)])
    texts, labels = [text for text, _ in wanted["reviews"]], [label for _, label in wanted["reviews"]]
    net.initialize()
    steps.named_steps["tokens"].fit(texts)
    near(steps.predict_proba(wanted["texts"]), wanted["probabilities"])
    steps.fit(texts, torch.tensor(labels))
    assert steps.score(texts, labels) >= 0.95


run({"as is": job})
