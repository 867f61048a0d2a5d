# /// script
# dependencies = ["fastembed"]
# ///
"""FastEmbed: a custom model from the published ONNX form, with mean pooling"""

from door import answers, folder, near, run


def job() -> None:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    wanted = answers()
    TextEmbedding.add_custom_model("own", PoolingType.DISABLED, False, ModelSource(hf="own/own"), dim=2)
    model = TextEmbedding("own", specific_model_path=folder("sentiment"))
    near([row.tolist() for row in model.embed(wanted["texts"])], [])


run({"as is": job})
