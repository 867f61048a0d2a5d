# /// script
# dependencies = ["flair"]
# ///
"""flair: TransformerDocumentEmbeddings and TransformerWordEmbeddings give the same vectors; a text classifier learns on
them"""

from door import OLD, TRUST, answers, folder, near, run


def job() -> None:
    from flair.data import Corpus, Sentence
    from flair.datasets import FlairDatapointDataset
    from flair.embeddings import TransformerDocumentEmbeddings, TransformerWordEmbeddings
    from flair.models import TextClassifier
    from flair.trainers import ModelTrainer

    wanted = answers()
    embedding = TransformerDocumentEmbeddings(folder("mlm"), layers="-1", fine_tune=True, **TRUST)
    rows = []
    for text in wanted["texts"]:
        sentence = Sentence(text)
        embedding.embed(sentence)
        rows.append(sentence.embedding.detach().tolist())
    near(rows, wanted["cls"])
    words = TransformerWordEmbeddings(folder("mlm"), layers="-1", subtoken_pooling="first", **TRUST)
    sentence = Sentence(wanted["texts"][0])
    words.embed(sentence)
    near(sentence[0].embedding.detach(), wanted["tokens"][0][1])
    data = [Sentence(text).add_label("kind", ["bad", "good"][label]) for text, label in wanted["reviews"]]
    corpus = Corpus(*(FlairDatapointDataset(data[start::3]) for start in range(3)), name="reviews")
    judge = TextClassifier(embedding, label_type="kind", label_dictionary=corpus.make_label_dictionary("kind"))
    result = ModelTrainer(judge, corpus).fine_tune("out", learning_rate=1e-3, max_epochs=3, mini_batch_size=8)
    assert result["test_score"] >= 0.9, result["test_score"]


run(
    {"as is": job},
    {
        ("bundle", "as is"): (OLD, "theirs: it takes transformers 4 only"),
        ("native", "as is"): ("off by", "theirs: ModernBERT of transformers 4 gives hidden_states[-1] unnormed"),
    },
)
