# /// script
# dependencies = ["llama-index-embeddings-huggingface"]
# ///
"""LlamaIndex, HuggingFaceEmbedding: embeds, retrieves from a vector index"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    wanted = answers()
    embedding = HuggingFaceEmbedding(folder("mlm"), device="cpu", normalize=False, **TRUST)
    near(embedding.get_text_embedding_batch(wanted["texts"]), wanted["cls"])
    index = VectorStoreIndex.from_documents([Document(text=text) for text in wanted["texts"]], embed_model=embedding)
    assert index.as_retriever(similarity_top_k=1).retrieve(wanted["texts"][2])[0].text == wanted["texts"][2]


run({"as is": job})
