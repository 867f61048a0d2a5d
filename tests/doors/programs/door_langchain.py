# /// script
# dependencies = ["langchain-huggingface", "sentence-transformers", "transformers"]
# ///
"""LangChain, HuggingFaceEmbeddings: embeds documents and finds the nearest in its vector store"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_huggingface import HuggingFaceEmbeddings

    wanted = answers()
    embeddings = HuggingFaceEmbeddings(model_name=folder("mlm"), model_kwargs={"device": "cpu", **TRUST})
    near(embeddings.embed_documents(wanted["texts"]), wanted["cls"])
    near(embeddings.embed_query(wanted["texts"][0]), wanted["cls"][0])
    store = InMemoryVectorStore(embeddings)
    store.add_texts(wanted["texts"])
    assert store.similarity_search(wanted["texts"][2], k=1)[0].page_content == wanted["texts"][2]


run({"as is": job})
