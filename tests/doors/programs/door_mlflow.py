# /// script
# dependencies = ["mlflow", "transformers"]
# ///
"""MLflow: logs a text-classification pipeline, loads it again and predicts"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    import mlflow
    from transformers import pipeline

    wanted = answers()
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    judge = pipeline("text-classification", folder("sentiment"), **TRUST)
    requirements = ["transformers", "torch"]
    with mlflow.start_run():
        logged = mlflow.transformers.log_model(
            judge, name="judge", pip_requirements=requirements, input_example=["a text"]
        )
    again = mlflow.transformers.load_model(logged.model_uri)
    for text, row in zip(wanted["texts"], wanted["probabilities"], strict=True):
        best = again(text)[0]
        near(best["score"], max(row))
    table = mlflow.pyfunc.load_model(logged.model_uri).predict(wanted["texts"])
    labels = [wanted["labels"]["sentiment"][row.index(max(row))] for row in wanted["probabilities"]]
    assert list(table["label"]) == labels, table


run({"as is": job})
