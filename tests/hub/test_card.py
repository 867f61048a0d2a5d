"""The model card: readable metadata, honest sections, and a person's edits are never lost."""

import json

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from saved_models import save

from clozebert import ClozeBertConfig
from clozebert.hub.card import is_ours, read_card, write_card
from clozebert.utils.errors import UserError

FACTS = {
    "name": "my-encoder",
    "license": "apache-2.0",
    "language": "en",
    "datasets": ["owner/data"],
    "corpus": {"num_documents": 1234, "num_tokens": 5_600_000, "sources": ["/home/somebody/private/text"]},
    "hyperparameters": {"learning_rate": 1e-3, "optimizer": "muon"},
    "recipe": "tiny",
    "steps": 500,
    "validation_loss": 3.25,
    "versions": {"torch": "2.13"},
}


@pytest.fixture
def saved(tmp_path):
    config = {
        "architectures": ["ClozeBertForMaskedLM"],
        "model_type": "clozebert",
        "num_hidden_layers": 3,
        "hidden_size": 20,
        "vocab_size": 77,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(7, 11), "b": torch.zeros(5)}, tmp_path / "model.safetensors")
    return tmp_path


def test_metadata_is_what_the_hub_reads(saved):
    write_card(saved, FACTS)
    data = ModelCard.load(saved / "README.md").data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "fill-mask"
    assert (data.license, data.language, data.datasets) == ("apache-2.0", "en", ["owner/data"])
    assert "clozebert" in data.tags


def test_an_unknown_fact_is_refused_and_a_tag_may_stand_alone(saved):
    with pytest.raises(ValueError, match="unknown key 'lisence' in facts; known: base_model, "):
        write_card(saved, {"lisence": "mit"})
    write_card(saved, {"tags": "law"})
    assert ModelCard.load(saved / "README.md").data.tags[-1] == "law"


def test_sections_hold_the_facts(saved):
    (saved / "loss_curve.png").write_bytes(b"png")
    write_card(saved, FACTS)
    text = (saved / "README.md").read_text()
    for part in ("# my-encoder", "82 parameters", "3 layers of 20", "5,600,000", "0.001", "muon", "3.25", "500"):
        assert part in text, part
    assert "25.79" in text  # e^3.25
    assert "](loss_curve.png)" in text
    # The model's line and the tokenizer's: without the second, transformers asks at a terminal, and waits.
    assert text.count('from_pretrained("my-encoder", trust_remote_code=True)') == 2
    assert text.count('from_pretrained("my-encoder")') == 2
    assert "import clozebert" in text
    assert "AutoModelForMaskedLM" in text


def test_no_folder_of_the_machine_leaks(saved):
    write_card(saved, FACTS)
    assert "somebody" not in (saved / "README.md").read_text()


def test_missing_facts_are_missing_lines(tmp_path):
    write_card(tmp_path, {})
    text = (tmp_path / "README.md").read_text()
    assert "None" not in text
    assert "Training" not in text
    assert "Evaluation" not in text
    assert ModelCard.load(tmp_path / "README.md").data.library_name == "transformers"


def test_native_format_needs_no_code(saved):
    config = json.loads((saved / "config.json").read_text())
    config.update(model_type="bert", architectures=["BertForSequenceClassification"])
    (saved / "config.json").write_text(json.dumps(config))
    write_card(saved, FACTS)
    text = (saved / "README.md").read_text()
    assert "trust_remote_code" not in text
    assert "pipeline_tag: text-classification" in text


def test_a_card_that_is_not_utf_8_is_somebody_elses(saved):
    (saved / "README.md").write_bytes("Modèle".encode("latin-1"))
    with pytest.warns(UserWarning, match="left as it is"):
        write_card(saved, FACTS)
    assert (saved / "README.md").read_bytes() == "Modèle".encode("latin-1")


def test_own_card_is_renewed_and_an_edited_one_kept(saved):
    write_card(saved, FACTS)
    write_card(saved, {**FACTS, "validation_loss": 2.5})
    path = saved / "README.md"
    assert "2.5 |" in path.read_text()
    edited = path.read_text().replace("# my-encoder", "# My encoder, by hand")
    path.write_text(edited)
    assert not is_ours(edited)
    with pytest.warns(UserWarning, match="was edited since"):
        write_card(saved, FACTS)
    assert path.read_text() == edited


def test_a_card_with_a_byte_order_mark_keeps_its_metadata(saved):
    (saved / "README.md").write_text("\ufeff---\nlicense: mit\nlanguage: en\n---\n# X\n", encoding="utf-8")
    card = read_card(saved)
    assert (card.data.license, card.data.language) == ("mit", "en")
    assert card.text.startswith("---")


def test_card_of_a_person_is_kept(saved):
    (saved / "README.md").write_text("# by hand\n")
    with pytest.warns(UserWarning, match="person"):
        write_card(saved, FACTS)
    assert (saved / "README.md").read_text() == "# by hand\n"


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        write_card(tmp_path / "no", {})


def test_what_the_labels_are(saved):
    def summary(id2label, head="Token"):
        config = json.loads((saved / "config.json").read_text())
        config.update(architectures=[f"ClozeBertFor{head}Classification"], id2label=id2label)
        (saved / "config.json").write_text(json.dumps(config))
        write_card(saved, FACTS)
        return (saved / "README.md").read_text()

    assert "It marks spans of `person`, `place`." in summary({0: "O", 1: "B-person", 2: "I-person", 3: "B-place"})
    assert "Its labels are `NOUN`, `VERB`." in summary({0: "NOUN", 1: "VERB"})
    assert "… (30 in all)." in summary({number: f"tag{number}" for number in range(30)})
    assert "Its labels are `good | great`, `` bad `x` ``." in summary({0: "good | great", 1: "bad `x`"})
    assert "Its labels are ``` `` ```, `NN`." in summary({0: "``", 1: "NN"})  # as in the Penn Treebank
    assert "Its labels are `B-movie`, `Drama`." in summary({0: "B-movie", 1: "Drama"}, "Sequence")
    assert "Its labels are `0`, `1`." in summary({0: 0, 1: 1}, "Sequence")  # transformers loads whole numbers, too
    assert "labels are" not in summary({0: "LABEL_0", 1: "LABEL_1"})  # transformers' names for those without


@pytest.mark.parametrize(
    ("took", "said"),
    [
        ({"steps": 1, "tokens": 1, "seconds": 1.2}, "1 optimizer step, 1 token, 1 second."),
        ({"steps": 2000, "seconds": 61.6}, "2,000 optimizer steps, 62 seconds."),
        ({"steps": 3, "tokens": 96, "seconds": 0.3}, "3 optimizer steps, 96 tokens, less than a second."),
    ],
)
def test_what_training_took(saved, took, said):
    write_card(saved, {**{key: x for key, x in FACTS.items() if key != "steps"}, **took})
    assert f"Training took {said}" in (saved / "README.md").read_text()


def test_a_regression_has_no_labels_to_choose_from(saved):
    config = {**json.loads((saved / "config.json").read_text()), "architectures": ["BertForSequenceClassification"]}
    for kind, names in (("regression", ["joy", "fear"]), (None, ["joy"])):
        config |= {"problem_type": kind, "id2label": dict(enumerate(names))}
        (saved / "config.json").write_text(json.dumps(config))
        write_card(saved, FACTS)
        assert "It gives a number for `joy`" in (saved / "README.md").read_text()


@pytest.mark.parametrize(
    ("model_type", "pad_token_id", "longest"),
    [("bert", 0, 514), ("roberta", 1, 512), ("mpnet", 1, 512), ("roberta", 0, 513), ("modernbert", 1, 514)],
)
def test_the_longest_sequence_is_one_that_can_be(saved, model_type, pad_token_id, longest):
    """RoBERTa and its kind count positions from behind the padding id, so they have rows that no token reads."""
    config = json.loads((saved / "config.json").read_text())
    config |= {"model_type": model_type, "pad_token_id": pad_token_id, "max_position_embeddings": 514}
    (saved / "config.json").write_text(json.dumps(config))
    write_card(saved, FACTS)
    assert f"sequences of up to {longest} tokens" in (saved / "README.md").read_text()


def test_the_longest_sequence_of_another_architecture_is_that_of_its_tokenizer(saved):
    config = json.loads((saved / "config.json").read_text()) | {"model_type": "longformer"}
    (saved / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 66}))
    (saved / "tokenizer_config.json").write_text('{"model_max_length": 65}')
    write_card(saved, FACTS)
    assert "sequences of up to 65 tokens" in (saved / "README.md").read_text()


@pytest.mark.parametrize(
    ("written", "read"), [("no", "no"), ("[en, no]", ["en", "no"]), ("'no'", "no"), ("de", "de"), ("[de]", ["de"])]
)
def test_norwegian_is_no_truth_value(tmp_path, written, read):
    (tmp_path / "README.md").write_text(f"---\nlanguage: {written}\n---\n# Mine\n")
    assert read_card(tmp_path).facts()["language"] == read


def test_the_layers_of_a_distilbert(saved):
    config = {"architectures": ["DistilBertForMaskedLM"], "model_type": "distilbert", "n_layers": 1, "dim": 20}
    (saved / "config.json").write_text(json.dumps(config))
    write_card(saved, FACTS)
    assert "It has 1 layer of 20, " in (saved / "README.md").read_text()


def test_scores_that_are_no_numbers_are_not_told_the_hub(saved):
    results = [
        {"dataset_type": "d", "dataset_name": "d", "metric_type": kind, "metric_value": value}
        for kind, value in (("mse", 0.5), ("pearsonr", float("nan")))
    ]
    write_card(saved, {**FACTS, "eval_results": results, "metrics": {"eval_pearson": float("nan")}})
    assert [one.metric_type for one in read_card(saved).data.eval_results] == ["mse"]
    assert "| eval_pearson | nan |" in (saved / "README.md").read_text()


def test_pictures_are_shown_once(saved):
    for name in ("loss_curve.png", "eval_confusion.png", "test_f1_by_class.png"):
        (saved / name).write_bytes(b"png")
    write_card(saved, FACTS)
    text = (saved / "README.md").read_text()
    for name in ("loss_curve.png", "eval_confusion.png", "test_f1_by_class.png"):
        assert text.count(f"]({name})") == 1
    training, evaluation = text.index("## Training\n"), text.index("## Evaluation")
    assert training < text.index("loss_curve.png") < evaluation < text.index("eval_confusion.png")


def test_a_recipe_of_another_shape_is_said(saved):
    config = ClozeBertConfig.from_name("tiny").to_dict()

    def training(**changes):
        (saved / "config.json").write_text(json.dumps({**config, **changes}))
        write_card(saved, FACTS)
        return (saved / "README.md").read_text()

    assert "Recipe `tiny`. " in training()
    assert "Recipe `tiny`, but with `num_hidden_layers` 2, `hidden_size` 96. " in training(
        hidden_size=96, num_hidden_layers=2
    )


def test_where_training_began(saved):
    write_card(saved, {**FACTS, "started_from": "encoder"})
    assert "It began from `encoder`." in (saved / "README.md").read_text()
    write_card(saved, {**FACTS, "started_from": "org/encoder", "base_model": "org/encoder"})
    assert "[org/encoder](https://huggingface.co/org/encoder)" in (saved / "README.md").read_text()
    assert ModelCard.load(saved / "README.md").data.base_model == "org/encoder"


def test_nobody_is_sent_to_a_package_that_is_not_ours(saved):
    write_card(saved, FACTS)
    text = (saved / "README.md").read_text()
    assert "pip install" not in text
    assert "needs transformers 5.4 or newer" in text


def test_what_is_read_back_is_what_was_written(saved):
    results = [{"dataset_type": "d", "dataset_name": "d", "metric_type": "f1", "metric_value": 0.5}]
    write_card(saved, {**FACTS, "description": "Reads.", "corpus": {"tokens": 7}, "eval_results": results})
    before = (saved / "README.md").read_text()
    card = read_card(saved)
    write_card(saved, {**card.facts(), "name": FACTS["name"]}, history=card.history())
    assert (saved / "README.md").read_text() == before


def test_headings_of_a_statement_are_read_back_too(saved):
    """The card is read again by its own headings, so those of the texts in it stand below them."""
    statement = "Books.\n\n# Licences\n\n- CC BY 4.0: attribute A\n\n## Training\n\n- attribute B\n\n#hash"
    statement += "\n\n```\n# a comment\n```"
    write_card(
        saved, {**FACTS, "corpus": None, "data_statement": statement, "description": "Reads.\n\n## How\n\nWell."}
    )
    for _ in range(2):
        card = read_card(saved)
        write_card(saved, {**card.facts(), "name": FACTS["name"]}, history=card.history())
    text = (saved / "README.md").read_text()
    for part in (
        "### Licences",
        "attribute A",
        "### Training",
        "attribute B",
        "#hash",
        "### How",
        "Well.",
        "\n# a comment",
    ):
        assert text.count(part) == 1, part


@pytest.mark.parametrize(
    ("ending", "task", "options", "key"),
    [
        ("ForTokenClassification", "token-classification", {"aggregation_strategy": "simple"}, "entity_group"),
        ("ForSequenceClassification", "text-classification", {}, "label"),
        ("ForMaskedLM", "fill-mask", {}, "token_str"),
    ],
)
def test_the_example_is_what_the_pipeline_answers(ending, task, options, key, tmp_path):
    folder = save(tmp_path / "model", ending)
    text = "a b [MASK] c" if task == "fill-mask" else "a b c d"
    write_card(folder, {"name": "it", "example": text.replace("[MASK]", "{mask}")})
    shown = (folder / "README.md").read_text().partition("## An example")[2].partition("\n## ")[0]
    answer = transformers.pipeline(task, model=str(folder), **options)(text)
    assert f'run("{text}")' in shown
    for name, value in {"model": "it", **options}.items():
        assert f'{name}="{value}"' in shown
    rows = [line for line in shown.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(answer) > 0
    for row, item in zip(rows, answer, strict=True):
        assert f"{item['score']:.2f}" in row
        assert item[key].strip() in row


def test_a_tagger_of_first_subwords_is_shown_so(tmp_path):
    """Its other subwords have learned no tag."""
    folder = save(tmp_path / "model", "ForTokenClassification")
    (folder / "finetuning_settings.json").write_text('{"label_subwords": "first"}')
    write_card(folder, {"name": "it", "example": "a b c d"})
    assert 'aggregation_strategy="first"' in (folder / "README.md").read_text()


def test_the_example_of_several_labels_shows_all_of_them(tmp_path):
    folder = save(tmp_path / "model", "ForSequenceClassification", problem_type="multi_label_classification")
    write_card(folder, {"name": "it", "example": "a b c d"})
    shown = (folder / "README.md").read_text().partition("## An example")[2].partition("\n## ")[0]
    answer = transformers.pipeline("text-classification", model=str(folder))("a b c d", top_k=None)
    assert 'run("a b c d", top_k=None)' in shown
    rows = [line for line in shown.splitlines() if line.startswith("| ")][2:]
    assert rows == [f"| {one['label']} | {one['score']:.2f} |" for one in answer]
    assert len(rows) == 3


def test_signs_of_markdown_and_html_are_shown_in_tables(tmp_path):
    """Unescaped, a label `<b>` vanishes from the page, and a `|` in a name moves the columns."""
    folder = save(tmp_path / "model", "ForSequenceClassification", id2label={0: "<b>", 1: "<b>", 2: "<b>"})
    facts = {"metrics": {"f1 of a|b": 0.5}, "hyperparameters": {"note": "*x* & `y` <b>"}}
    write_card(folder, {"name": "it", "example": "a b c d", **facts})
    card = (folder / "README.md").read_text()
    assert "| \\<b> |" in card
    assert "| f1 of a\\|b | 0.5 |" in card
    assert "| note | \\*x\\* \\& \\`y\\` \\<b> |" in card


@pytest.mark.parametrize("changes", [{"compare_pairs": True, "sep_token_id": 3}, {}], ids=["by its head", "by its run"])
def test_the_example_of_a_model_of_pairs_is_a_pair(tmp_path, changes):
    folder = save(tmp_path / "model", "ForSequenceClassification", **changes)
    if not changes:
        (folder / "finetuning_settings.json").write_text('{"text_column": "0", "text_pair_column": "1"}')
    write_card(folder, {"name": "it", "example": "a b\tc d"})
    shown = (folder / "README.md").read_text().partition("## An example")[2].partition("\n## ")[0]
    answer = transformers.pipeline("text-classification", model=str(folder))({"text": "a b", "text_pair": "c d"})
    assert 'run({"text": "a b", "text_pair": "c d"})' in shown
    assert f"| {answer['label']} | {answer['score']:.2f} |" in shown
    with pytest.raises(UserError, match="the model takes pairs; put a tab between"):
        write_card(folder, {"name": "it", "example": "a b c d"})
    write_card(folder, {"name": "it", "example": True})
    assert '"text_pair": "' in (folder / "README.md").read_text()


def test_small_probabilities_are_not_shown_as_zero(tmp_path):
    folder = save(tmp_path / "model", initializer_range=0.0, vocab_size=4000)
    write_card(folder, {"name": "it", "example": "a {mask} c"})
    shown = (folder / "README.md").read_text().partition("## An example")[2].partition("\n## ")[0]
    values = [float(line.split("|")[2]) for line in shown.splitlines() if line.startswith("| ") and "0." in line]
    assert len(values) == 5
    assert 0 < max(values) < 0.005


def test_a_text_that_cannot_be_an_example(tmp_path):
    folder = save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"must hold \{mask\} once"):
        write_card(folder, {"example": "no blank here"})
    (folder / "tokenizer.json").write_text("{}")
    with pytest.warns(UserWarning, match="shows no example"):
        write_card(folder, {"example": True})
    assert "An example" not in (folder / "README.md").read_text()
