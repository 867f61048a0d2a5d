"""What is published of a model, and what is refused before anything is."""

import json

import huggingface_hub
import pytest
import yaml
from huggingface_hub import ModelCard
from saved_models import make_model, make_tokenizer, save

from clozebert.hub import publishing
from clozebert.hub.card import is_ours, write_card
from clozebert.hub.convert import convert_folder, to_native
from clozebert.hub.publishing import Completion, check_request, complete_folder, publish
from clozebert.hub.space import check_space
from clozebert.utils.errors import UserError


@pytest.fixture
def saved(tmp_path):
    folder = save(tmp_path / "run")
    write_card(folder, {"description": "Reads docstrings.", "corpus": {"tokens": 77}, "validation_loss": 2.5})
    return folder


# What is published


def test_pickles_and_what_resuming_needs_stay_at_home(saved, tmp_path):
    (saved / "training_args.bin").write_bytes(b"pickle")
    (saved / "optimizer.pt").write_bytes(b"pickle")
    (saved / "training_state").mkdir()
    (saved / "training_state" / "optimizer.safetensors").write_bytes(b"x")
    (saved / "notes.txt").write_text("mine")
    (saved / "loss_curve.png").write_bytes(b"png")
    form, _ = complete_folder(saved, tmp_path / "copy", "org/name")
    names = {path.name for path in (tmp_path / "copy").rglob("*")}
    assert form == "bundle"
    assert {"model.safetensors", "modeling_clozebert.py", "LICENSE.clozebert", "loss_curve.png"} <= names
    assert not {"training_args.bin", "optimizer.pt", "training_state", "optimizer.safetensors", "notes.txt"} & names


def test_a_folder_of_sentence_transformers_stays_one(saved, tmp_path):
    """It says itself how it pools."""
    (saved / "modules.json").write_text("[]")
    (saved / "1_Pooling").mkdir()
    (saved / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    complete_folder(saved, tmp_path / "copy", "org/name")
    assert (tmp_path / "copy" / "1_Pooling" / "config.json").read_text() == '{"pooling_mode_mean_tokens": true}'
    assert (tmp_path / "copy" / "modules.json").is_file()
    (saved / "2_Dense").mkdir()
    (saved / "2_Dense" / "config.json").write_text("{}")
    (saved / "2_Dense" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match=r"2_Dense has no model\.safetensors, and pickles are not published"):
        complete_folder(saved, tmp_path / "without", "org/name")
    (saved / "2_Dense" / "model.safetensors").write_bytes(b"x")
    complete_folder(saved, tmp_path / "with", "org/name")
    assert (tmp_path / "with" / "2_Dense" / "model.safetensors").is_file()
    completion = Completion(serving=("sentence-transformers",))
    with pytest.raises(ValueError, match="is a folder of sentence-transformers already"):
        publish(saved, "org/name", completion=completion, dry_run=True)
    (saved / "modules.json").unlink()
    with pytest.raises(ValueError, match="revision='refs/pr/1' is no name of a branch"):
        publish(saved, "org/name", revision="refs/pr/1", dry_run=True)
    with pytest.raises(ValueError, match="revision='v 1' is no name of a branch"):
        publish(saved, "org/name", revision="v 1", dry_run=True)


def test_a_folder_of_licences_goes_along(saved, tmp_path):
    (saved / "LICENSES" / "old").mkdir(parents=True)
    (saved / "LICENSES" / "MIT.txt").write_text("do")
    complete_folder(saved, tmp_path / "copy", "org/name")
    assert [path.name for path in (tmp_path / "copy" / "LICENSES").iterdir()] == ["MIT.txt"]


def test_the_source_is_only_read(saved, tmp_path):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    complete_folder(saved, tmp_path / "copy", "org/name", completion=Completion(license="mit"))
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_auto_is_native_where_the_configuration_is(tmp_path):
    folder = save(tmp_path / "run", "ForTokenClassification", name="bert-base")
    form, _ = complete_folder(folder, tmp_path / "copy", "org/name")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert (form, config["model_type"], config["architectures"]) == ("native", "bert", ["BertForTokenClassification"])
    assert "auto_map" not in config
    assert not list((tmp_path / "copy").glob("*.py"))
    assert "trust_remote_code" not in (tmp_path / "copy" / "README.md").read_text()
    assert complete_folder(folder, tmp_path / "forced", "org/name", form="bundle")[0] == "bundle"
    # A native folder stays one, or becomes a bundle.
    assert complete_folder(tmp_path / "copy", tmp_path / "again", "org/name")[0] == "native"
    assert complete_folder(tmp_path / "copy", tmp_path / "back", "org/name", form="bundle")[0] == "bundle"
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "clozebert"


@pytest.mark.parametrize("form", ["auto", "bundle"])
def test_sentence_transformers_pool_as_trained_in_every_form(form, tmp_path):
    """ours with mean pooling; ModernBERT, native and made a bundle again; BERT's first token."""
    for name, changes, expected in (
        (None, {}, "mean"),
        ("modernbert-base", {"classifier_pooling": "mean"}, "mean"),
        ("bert-base", {}, "cls"),
    ):
        source = save(tmp_path / f"{name}", "ForSequenceClassification", name=name, **changes)
        complete_folder(source, tmp_path / f"{name}-there", "org/name")
        for folder in (source, tmp_path / f"{name}-there"):
            target = tmp_path / f"{folder.name}-{form}"
            given = Completion(serving=("sentence-transformers",))
            complete_folder(folder, target, "org/name", form=form, completion=given)
            pooling = json.loads((target / "1_Pooling" / "config.json").read_text())
            chosen = [key for key, value in pooling.items() if value is True]
            assert chosen == [{"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[expected]]


def test_a_native_model_that_came_with_code_is_published_without_it(tmp_path):
    """Its config.json goes on naming the code that was beside the weights, which transformers itself does not need."""
    folder = tmp_path / "native"
    model = to_native(make_model(name="bert-base"))
    model.config.auto_map = {"AutoConfig": "configuration_theirs.TheirConfig"}
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    assert "auto_map" in json.loads((folder / "config.json").read_text())
    done = publish(folder, "org/name", dry_run=True, output_dir=tmp_path / "copy")
    assert done.form == "native"
    assert "auto_map" not in json.loads((tmp_path / "copy" / "config.json").read_text())


def test_native_is_refused_where_nothing_equals(saved, tmp_path):
    with pytest.raises(ValueError, match=r"no native architecture equals .* instead \(publish: --format bundle\)"):
        complete_folder(saved, tmp_path / "copy", "org/name", form="native")


def test_completing_twice_gives_the_same_bytes(saved, tmp_path):
    for name in ("one", "two"):
        complete_folder(saved, tmp_path / name, "org/name", completion=Completion(license="mit"))
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two


def test_card_is_completed_and_keeps_what_it_said(saved, tmp_path):
    given = Completion(license="mit", language="en", datasets=["org/text"], data_statement="Docstrings of the 1990s.")
    _, notes = complete_folder(saved, tmp_path / "copy", "org/name", completion=given)
    text = (tmp_path / "copy" / "README.md").read_text()
    data = ModelCard.load(tmp_path / "copy" / "README.md").data
    assert notes == []
    assert (data.license, data.language, data.datasets) == ("mit", "en", ["org/text"])
    assert '.from_pretrained("org/name", trust_remote_code=True)' in text
    for part in ("# name", "Reads docstrings.", "Docstrings of the 1990s.", "| tokens | 77 |", "| 2.5 |", "## Limits"):
        assert text.count(part) == 1, part
    assert is_ours(text)
    # Publishing what was downloaded keeps it, too.
    complete_folder(tmp_path / "copy", tmp_path / "again", "org/name")
    assert (tmp_path / "again" / "README.md").read_text() == text
    complete_folder(tmp_path / "copy", tmp_path / "repeated", "org/name", completion=given)
    assert (tmp_path / "repeated" / "README.md").read_text() == text


def test_a_model_that_answers_with_tuples_is_refused_before_work(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "return_dict": False}))
    with pytest.raises(ValueError, match=r"config\.json has return_dict: false, with which pipelines fail"):
        check_request(saved, form="auto", completion=Completion(), public=False)


def test_int8_is_refused_before_work_where_it_cannot_be_compared(tmp_path):
    given = Completion(serving=("int8",), int8_texts=("a b",))
    for head in ("ForQuestionAnswering", "ForMultipleChoice"):
        folder = save(tmp_path / head, head)
        with pytest.raises(ValueError, match=f"holds a ClozeBert{head}: leave out --int8_texts"):
            check_request(folder, form="auto", completion=given, public=False)
    folder = save(tmp_path / "pairs", "ForSequenceClassification")
    (folder / "finetuning_settings.json").write_text('{"text_column": "0", "text_pair_column": "1"}')
    with pytest.raises(ValueError, match="the model takes pairs; put a tab between the two texts of 'a b'"):
        check_request(folder, form="auto", completion=given, public=False)


def test_scores_of_the_model_index_stay(tmp_path):
    """Fine-tuning writes them; a copy of a copy still holds them."""
    folder = save(tmp_path / "run", "ForTokenClassification")
    score = {"dataset_type": "conll", "dataset_name": "dev.conll", "metric_type": "f1", "metric_value": 0.75}
    write_card(folder, {"eval_results": [{**score, "metric_name": "F1 of whole entities"}]})
    complete_folder(folder, tmp_path / "copy", "org/name")
    complete_folder(tmp_path / "copy", tmp_path / "again", "org/other", form="bundle")
    for name, place in (("name", "copy"), ("other", "again")):
        data = ModelCard.load(tmp_path / place / "README.md").data
        (result,) = data.eval_results
        assert (data.model_name, result.task_type, result.metric_value) == (name, "token-classification", 0.75)
        assert (result.dataset_name, result.metric_name) == ("dev.conll", "F1 of whole entities")


def test_card_of_a_person_goes_up_to_the_letter(saved, tmp_path):
    (saved / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    _, notes = complete_folder(saved, tmp_path / "copy", "org/name", completion=Completion(license="apache-2.0"))
    assert (tmp_path / "copy" / "README.md").read_text() == "---\nlicense: mit\n---\n# Mine\n"
    assert "its text stays as it is; say license there yourself" in notes[0]
    assert "names no licence" not in notes[0]
    (saved / "README.md").write_text("# Mine\n")
    _, notes = complete_folder(saved, tmp_path / "again", "org/name")
    assert notes[0].endswith("its text stays as it is; it names no licence: give --license")


def test_what_a_card_of_a_person_cannot_say_of_the_forms_is_a_note(saved, tmp_path, monkeypatch):
    (saved / "README.md").write_text("# Mine\n")
    monkeypatch.setattr(publishing, "_write_serving", lambda *_: ["int8: 3 of 4 answers are the same"])
    _, notes = complete_folder(saved, tmp_path / "copy", "org/name")
    assert notes[1:] == ["int8: 3 of 4 answers are the same"]


def test_the_card_of_a_branch_loads_the_branch(saved, tmp_path):
    complete_folder(saved, tmp_path / "copy", "org/name", revision="checkpoint-30")
    card = (tmp_path / "copy" / "README.md").read_text()
    # A model and a tokenizer, in two ways, and the example.
    assert card.count('"org/name", revision="checkpoint-30"') == card.count('"org/name"') == 5
    complete_folder(tmp_path / "copy", tmp_path / "main", "org/name")
    assert "revision" not in (tmp_path / "main" / "README.md").read_text()


@pytest.mark.parametrize(
    ("ending", "example"), [("ForMaskedLM", 'w3 {mask} "w5"'), ("ForTokenClassification", "w3 w5")]
)
def test_an_example_stays_where_a_model_is_published_or_converted_again(ending, example, tmp_path):
    run = save(tmp_path / "run", ending, name="bert-base")
    complete_folder(run, tmp_path / "one", "org/name", completion=Completion(example=example))
    shown = (tmp_path / "one" / "README.md").read_text()
    text = example.replace("{mask}", "[MASK]").replace('"', '\\"')
    assert text in shown
    convert_folder(tmp_path / "one", tmp_path / "back", to="clozebert")
    assert text in (tmp_path / "back" / "README.md").read_text()
    complete_folder(tmp_path / "one", tmp_path / "two", "org/name")
    assert (tmp_path / "two" / "README.md").read_text() == shown
    other = Completion(example="w7 w3 {mask}" if "{mask}" in example else "w7")
    complete_folder(tmp_path / "two", tmp_path / "three", "org/name", completion=other)
    assert 'run("w7' in (tmp_path / "three" / "README.md").read_text()


def test_an_example_that_no_pipeline_answers_is_said(tmp_path):
    folder = save(tmp_path / "run", "ForQuestionAnswering")
    _, notes = complete_folder(folder, tmp_path / "copy", "org/name", completion=Completion(example="Who?"))
    assert "the card shows no example: no pipeline answers for a model with this head" in notes


def test_a_page_for_a_model_that_it_has_no_view_for_is_refused(tmp_path):
    check_space(save(tmp_path / "good"))
    with pytest.raises(UserError, match=r"with_space: the page shows .* holds a ClozeBertForQuestionAnswering: leave"):
        check_space(save(tmp_path / "bad", "ForQuestionAnswering"))


def test_a_card_of_another_program_gets_the_metadata_that_it_lacks(saved, tmp_path):
    """Such as the one that Trainer writes."""
    (saved / "README.md").write_text("---\nlibrary_name: transformers\nlanguage: no\n---\n# Trained\n\nBy Trainer.\n")
    given = Completion(license="mit", language="en", datasets=["org/data"], example="A text.")
    _, notes = complete_folder(saved, tmp_path / "copy", "org/name", completion=given)
    card = ModelCard.load(tmp_path / "copy" / "README.md")
    assert card.text == "# Trained\n\nBy Trainer.\n"
    assert card.data.to_dict() == {
        "library_name": "transformers", "language": "no", "license": "mit", "datasets": ["org/data"]
    }  # fmt: skip
    assert "its metadata get license, datasets; say language, example there yourself" in notes[0]
    check_request(saved, form="auto", completion=given, public=True)


def test_the_licence_of_a_public_model_stands_on_the_card_that_is_pushed(tmp_path):
    folder = tmp_path / "saved"
    make_model().save_pretrained(folder)
    (folder / "README.md").write_text("# Mine\n")
    given = {"form": "auto", "completion": Completion(), "public": True}
    with pytest.raises(UserError, match="a public model needs a licence: give --license"):
        check_request(folder, **given)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    check_request(folder, **given)


def test_missing_licence_and_data_are_said(tmp_path):
    folder = save(tmp_path / "run")
    (folder / "all_results.json").write_text(json.dumps({"eval_accuracy": 0.75, "eval_runtime": 3.0, "epoch": 2}))
    _, notes = complete_folder(folder, tmp_path / "copy", "org/name")
    assert ["licence" in notes[0], "trained on" in notes[1]] == [True, True]
    text = (tmp_path / "copy" / "README.md").read_text()
    assert "| eval_accuracy | 0.75 |" in text
    assert "runtime" not in text


def test_evaluation_in_the_hubs_form(saved, tmp_path):
    (saved / "all_results.json").write_text(json.dumps({"test_f1": 0.5, "note": "x"}))
    given = Completion(evaluation=("org/data", "ner", "test_f1"))
    complete_folder(saved, tmp_path / "copy", "org/name", completion=given)
    written = yaml.safe_load((tmp_path / "copy" / ".eval_results" / "data.yaml").read_text())
    entry = huggingface_hub.EvalResultEntry(dataset_id="org/data", task_id="ner", value=0.5, notes="test_f1")
    assert written == huggingface_hub.eval_result_entries_to_yaml([entry])
    (saved / "all_results.json").write_text('{"test_f1": 0.5, "test_accuracy": NaN, "test_done": true}')
    with pytest.raises(ValueError, match=r"'test_accuracy' is not a number .*these are: test_f1$"):
        publish(saved, "org/name", completion=Completion(evaluation=("org/data", "ner", "test_accuracy")), dry_run=True)


def test_results_that_are_damaged_are_named(saved):
    (saved / "all_results.json").write_text('{"test_f1": 0.5')
    with pytest.raises(ValueError, match=r"all_results\.json is not JSON"):
        publish(saved, "org/name", completion=Completion(evaluation=("org/data", "ner", "test_f1")), dry_run=True)


def test_tokenizer_is_needed_and_knows_its_length(tmp_path):
    make_model().save_pretrained(tmp_path / "run")
    with pytest.raises(ValueError, match="has no tokenizer"):
        complete_folder(tmp_path / "run", tmp_path / "copy", "org/name")
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = int(1e30)
    tokenizer.save_pretrained(tmp_path / "run")
    complete_folder(tmp_path / "run", tmp_path / "again", "org/name")
    values = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert values["model_max_length"] == 41
    assert "is_local" not in values
    # A native RoBERTa has rows of positions that no token reads: two of them, for the padding id 1.
    native = to_native(make_model(name="roberta-base", pad_token_id=1, position_offset=2))
    native.save_pretrained(tmp_path / "run")
    assert native.config.max_position_embeddings == 43
    complete_folder(tmp_path / "run", tmp_path / "native", "org/name")
    values = json.loads((tmp_path / "native" / "tokenizer_config.json").read_text())
    assert values["model_max_length"] == 41


def test_weights_that_are_not_the_fingerprints(saved, tmp_path):
    complete_folder(saved, tmp_path / "copy", "org/name")
    make_model(seed=3).save_pretrained(tmp_path / "copy")
    with pytest.raises(ValueError, match="not those that its fingerprint"):
        complete_folder(tmp_path / "copy", tmp_path / "again", "org/name")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "onnx"}, "format='onnx' must be one of auto, native, bundle"),
        ({"public": True}, "needs a licence"),
        ({"completion": Completion(license="My License")}, "not a name the Hub knows"),
        ({"completion": Completion(language="English")}, "language='English' is not a code"),
        ({"completion": Completion(language="en,de")}, "language='en,de' is not a code"),
        ({"completion": Completion(datasets=["org/text", "my own texts"])}, "datasets='my own texts' is not a name"),
        ({"repo_id": "../name"}, "must be ORG/NAME"),
        ({"repo_id": "org/na..me"}, "must be ORG/NAME"),
        ({"repo_id": "name"}, "must be ORG/NAME"),
        ({"repo_id": "org/name/more"}, "must be ORG/NAME"),
        ({"source": "nowhere"}, "no folder"),
        ({"completion": Completion(evaluation=("glue", "sst2", "x"))}, "eval_dataset='glue': it must be ORG/NAME"),
    ],
)
def test_mistakes_come_before_work(saved, options, message, unverified):
    source = saved / options.pop("source") if "source" in options else saved
    with pytest.raises(ValueError, match=message):
        publish(source, **{"repo_id": "org/name", "dry_run": True, **options})
