# /// script
# dependencies = ["small-text[transformers]"]
# ///
"""small-text: active learning with the encoder"""

from door import TRUST, answers, folder, run


def job() -> None:
    import numpy as np
    from small_text import (
        PoolBasedActiveLearner,
        PredictionEntropy,
        TransformerBasedClassificationFactory,
        TransformerModelArguments,
        TransformersDataset,
        random_initialization_balanced,
    )

    wanted = answers()
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder("mlm"), **TRUST)
    texts, labels = [text for text, _ in wanted["reviews"]], np.array([label for _, label in wanted["reviews"]])
    data = TransformersDataset.from_arrays(texts, labels, tokens, target_labels=np.arange(2), max_length=32)
    model = TransformerModelArguments(folder("mlm"))
    factory = TransformerBasedClassificationFactory(
        model, 2, classification_kwargs={"num_epochs": 10, "lr": 1e-3, "device": "cpu", "mini_batch_size": 8}
    )
    learner = PoolBasedActiveLearner(factory, PredictionEntropy(), data)
    np.random.seed(0)
    start = random_initialization_balanced(labels, n_samples=16)
    learner.initialize_data(start, labels[start])
    chosen = learner.query(num_samples=8)
    learner.update(labels[chosen])
    right = (learner.classifier.predict(data) == labels).mean()
    assert right >= 0.9, right


GONE = ("has no attribute encode_plus", "theirs: it calls what transformers 5 does not have")
run({"as is": job}, {("bundle", "as is"): GONE, ("native", "as is"): GONE})
