# /// script
# dependencies = ["haystack-ai", "sentence-transformers-haystack"]
# ///
"""Haystack: embeds documents, retrieves one by a query"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    from haystack import Document
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack.utils import ComponentDevice
    from haystack_integrations.components.embedders.sentence_transformers import (
        SentenceTransformersDocumentEmbedder,
        SentenceTransformersTextEmbedder,
    )

    wanted = answers()
    options = {"model": folder("mlm"), "device": ComponentDevice.from_str("cpu"), "progress_bar": False, **TRUST}
    documents = SentenceTransformersDocumentEmbedder(**options)
    query = SentenceTransformersTextEmbedder(**options)
    for component in (documents, query):
        component.warm_up()
    found = documents.run([Document(content=text) for text in wanted["texts"]])["documents"]
    near([document.embedding for document in found], wanted["cls"])
    store = InMemoryDocumentStore()
    store.write_documents(found)
    vector = query.run(wanted["texts"][2])["embedding"]
    best = InMemoryEmbeddingRetriever(store, top_k=1).run(vector)["documents"][0]
    assert best.content == wanted["texts"][2]


run({"as is": job})
