# /// script
# dependencies = ["bertopic"]
# ///
"""BERTopic: finds the same two topics as the same clustering by hand"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    from bertopic import BERTopic
    from sentence_transformers import SentenceTransformer
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    wanted = answers()
    reviews, places = [text for text, _ in wanted["reviews"]], wanted["sentences"][:12]
    encoder = SentenceTransformer(folder("mlm"), device="cpu", **TRUST)
    near(encoder.encode(wanted["texts"]), wanted["cls"])
    texts = [*reviews, *places]

    def reduce() -> PCA:
        return PCA(n_components=5, random_state=0)

    def cluster() -> KMeans:
        return KMeans(n_clusters=2, n_init=10, random_state=0)

    model = BERTopic(embedding_model=encoder, umap_model=reduce(), hdbscan_model=cluster())
    topics, _ = model.fit_transform(texts)
    own = cluster().fit_predict(reduce().fit_transform(encoder.encode(texts)))
    assert len(set(zip(topics, own.tolist(), strict=True))) == len(set(topics)) == 2, (topics, own)
    assert all(model.get_topic(topic) for topic in set(topics))


run({"as is": job})
