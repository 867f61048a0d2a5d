# /// script
# dependencies = ["mteb"]
# ///
"""MTEB: evaluates the encoder on a classification task of its own form"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    import mteb
    from datasets import Dataset, DatasetDict
    from mteb.mocks.mock_tasks.classification import MockClassificationTask
    from sentence_transformers import SentenceTransformer

    wanted = answers()

    class Reviews(MockClassificationTask):
        def load_data(self, **options: object) -> None:
            rows = wanted["reviews"]
            parts = {"train": rows[::2], "test": rows[1::2]}
            self.dataset = DatasetDict({
                name: Dataset.from_dict({"text": [text for text, _ in part], "label": [label for _, label in part]})
                for name, part in parts.items()
            })  # fmt: skip
            self.data_loaded = True

    model = SentenceTransformer(folder("mlm"), device="cpu", **TRUST)
    near(model.encode(wanted["texts"]), wanted["cls"])
    # The classifier's encoder: its vectors tell the two classes apart, which those of the masked-LM model hardly do.
    judge = SentenceTransformer(folder("sentiment"), device="cpu", **TRUST)
    result = mteb.evaluate(judge, [Reviews()], cache=None)
    score = result.task_results[0].get_score()
    assert score >= 0.9, score  # of two classes


run({"as is": job})
