# /// script
# dependencies = ["spacy-transformers"]
# ///
"""spacy-transformers: a Transformer component gives the same vectors"""

from door import OLD, TRUST, answers, folder, near, run


def job() -> None:
    import spacy
    import spacy_transformers  # noqa: F401

    wanted = answers()
    nlp = spacy.blank("en")
    component = nlp.add_pipe(
        "transformer",
        config={
            "model": {
                "@architectures": "spacy-transformers.TransformerModel.v3", "name": folder("mlm"),
                "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
                "tokenizer_config": {"use_fast": True, **TRUST}, "transformer_config": dict(TRUST),
            },
        },
    )  # fmt: skip
    component.model.initialize()
    docs = list(nlp.pipe(wanted["texts"]))
    for doc, row in zip(docs, wanted["tokens"], strict=True):
        near(doc._.trf_data.model_output.last_hidden_state[0][: len(row)], row)


run({"as is": job}, {("bundle", "as is"): (OLD, "theirs: it takes transformers 4 only")})
