# /// script
# dependencies = ["bertopic"]
# ///
"""BERTopic: divides reviews and sentences on capitals into two topics"""

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
    model = BERTopic(
        embedding_model=encoder, umap_model=PCA(n_components=5), hdbscan_model=KMeans(n_clusters=2, random_state=0)
    )
    topics, _ = model.fit_transform([*reviews[:40], *places])
    assert len(set(topics)) == 2, topics
    words = [{word for word, _ in model.get_topic(topic)} for topic in (topics[0], topics[-1])]
    assert ["capital" in one for one in words] == [False, True], words


run({"as is": job})
