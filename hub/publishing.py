"""Publishes a saved model: completes its folder, verifies it, and pushes it to the Hub.

The source folder is only read. A separate copy is completed, of known files only, so pickles and the state for resuming
are never published.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..utils.errors import UserError, as_user_errors, check_choice
from ..utils.files import disk_errors, whole_files, write_text
from ..utils.hub_names import is_hub_name
from ..utils.input_length import announce_length
from ..utils.output_folders import check_output_dir
from ..utils.tokenizer_files import read_tokenizer_settings
from ..utils.untrusted import check_model_folder, read_json_object
from .card import CARD_NAME, Card, below_headings, read_card, write_card
from .convert import convert_from_native, to_native
from .convert_config import config_from_native
from .example import SHOWN_HEADS, text_of_example
from .fingerprint import find_differences, make_fingerprint, read_fingerprint, write_fingerprint
from .loading import load_clozebert, load_native, read_config
from .natives import NATIVE
from .processors import (
    CODE_LICENSE_NAME,
    LICENSE_FILES,
    copy_beside,
    copy_processors,
    copy_reading_settings,
    takes_pairs,
)
from .pushing import Push, check_access, check_repo_id, push_folder
from .verification import Verification, verify_folder

FORMATS = ("auto", "native", "bundle")
SERVING = ("onnx", "int8", "sentence-transformers")
_METADATA = ("license", "language", "datasets")  # of a card
_BRANCH = re.compile(r"(?!refs/)[A-Za-z0-9](?:[A-Za-z0-9_-]|[./](?![./]))*(?<![./])")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")
# A folder of sentence-transformers says in these how it pools.
_OF_SENTENCE_TRANSFORMERS = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
                             "[0-9]_*/*.json", "[0-9]_*/*.safetensors")  # fmt: skip
_COPIED = ("*.png", *LICENSE_FILES, ".eval_results/*.yaml", *_OF_SENTENCE_TRANSFORMERS)


@dataclass(frozen=True)
class Completion:
    """What a user states about a model in addition to what its folder says.

    Attributes:
        license: its name on the Hub, such as `apache-2.0`. language: such as `en`.
        datasets: Hub names of the training data. data_statement: sentences about the training data.
        evaluation: (dataset on the Hub, its task, a number of all_results.json): a result for the Hub's tables.
        example: a text for the card, which shows the model's output for it; None: a sentence of ours.
        serving: additional forms for servers, of `SERVING`. int8_texts: texts on which int8 is compared.
    """

    license: str | None = None
    language: str | None = None
    datasets: list[str] = field(default_factory=list)
    data_statement: str | None = None
    evaluation: tuple[str, str, str] | None = None
    example: str | None = None
    serving: tuple[str, ...] = ()
    int8_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Publication:
    """The result of publishing a folder.

    Attributes:
        form: `native` or `bundle`. files: name -> bytes. report: the result of the verification.
        push: None in a dry run. notes: what the user should know.
    """

    form: str
    files: dict[str, int]
    report: Verification
    push: Push | None
    notes: list[str]


def publish(
    source: Path,
    repo_id: str,
    *,
    form: str = "auto",
    completion: Completion | None = None,
    public: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
    output_dir: Path | None = None,
) -> Publication:
    """Complete a copy of a saved model, load it as a user would, and push it in one commit.

    Args:
        source: a folder with a ClozeBERT model or any encoder of transformers; it is only read.
        repo_id: ORG/NAME.
        form: `native` (transformers' own architecture), `bundle` (with our code), or `auto`: native if the
            configuration equals one.
        completion: what the folder does not say.
        public: if False, a new repository is private.
        revision: a branch; None: main.
        dry_run: stop before the push, without any request to the Hub.
        output_dir: where to write and keep the completed copy; None: a temporary folder.

    Raises:
        UserError: something is missing, verification fails, or the Hub refuses. Then nothing is pushed, and nothing is
            left in output_dir.
    """
    completion = completion or Completion()
    check_repo_id(repo_id)
    if revision is not None and not _BRANCH.fullmatch(revision):
        raise UserError(
            f"revision={revision!r} is no name of a branch: letters, digits and the signs . _ - /, not refs/"
        )
    check_request(source, form=form, completion=completion, public=public)
    if not dry_run:
        check_access(repo_id, public=public, revision=revision)
    with _staging(output_dir) as folder:
        form, notes = complete_folder(source, folder, repo_id, form=form, completion=completion, revision=revision)
        report = verify_folder(folder)
        files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
        push = None
        if not dry_run:
            push = push_folder(
                folder, repo_id, public=public, revision=revision, message=f"Publish {source.resolve().name}"
            )
            notes = [*notes, *push.notes]
    return Publication(form, files, report, push, notes)


def check_request(source: Path, *, form: str, completion: Completion, public: bool) -> None:
    """Check the request before any work starts.

    Raises:
        UserError: something that was asked for is missing, or a value is unknown.
        MissingPackageError: a package that writes ONNX is missing.
    """
    check_choice("format", form, FORMATS)
    if not source.is_dir():
        raise UserError(f"there is no folder {source}")
    check_model_folder(source)
    if read_config(source).get("return_dict") is False:
        raise UserError(f"{source / 'config.json'} has return_dict: false, with which pipelines fail: take it out")
    licence = _licence_of(source)  # raises, public or not, if the card's metadata cannot be read
    _check_names(completion)
    if public and not completion.license and not licence:
        raise UserError("a public model needs a licence: give --license, such as apache-2.0")
    if completion.evaluation is not None:
        _evaluation_value(source, completion.evaluation)
    for name in completion.serving:
        check_choice("serving", name, SERVING)
    if "int8" in completion.serving and not completion.int8_texts:
        raise UserError(
            "the card of an int8 form says how answers change: give --int8_texts, a file with a text on each line"
        )
    if "int8" in completion.serving:
        _check_int8(source, completion.int8_texts)
    if completion.serving:
        _check_forms(source, completion.serving)


def _check_forms(source: Path, forms: Sequence[str]) -> None:
    """Raise if a package that writes one of the forms is missing, or the form has no counterpart of the pooling."""
    from . import serving

    if {"onnx", "int8"} & set(forms):
        serving.find_exporter()
    if "sentence-transformers" in forms and (source / "modules.json").is_file():
        raise UserError(
            f"{source} is a folder of sentence-transformers already, and its modules.json says how it pools: leave the "
            f"form out; these files are published as they are"
        )
    if "sentence-transformers" in forms and read_config(source).get("image_size") is not None:
        raise UserError("sentence-transformers: the model reads images and has no sentences: leave the form out")
    if "sentence-transformers" in forms and _is_native(source):
        _check_pooling_is_known(read_config(source).get("model_type", ""))
    elif "sentence-transformers" in forms:
        serving.check_pooling(read_config(source).get("classifier_pooling", "cls"))


def _check_int8(source: Path, texts: Sequence[str]) -> None:
    """Raise if int8 cannot be compared with float by the answers to some texts."""
    architecture = (read_config(source).get("architectures") or ["no model"])[0]
    if not architecture.endswith(SHOWN_HEADS):
        raise UserError(
            f"int8 is compared by its answers to texts, and {source} holds a {architecture}: leave out --int8_texts"
        )
    if takes_pairs(source) and (single := next((text for text in texts if "\t" not in text), None)) is not None:
        raise UserError(f"int8_texts: the model takes pairs; put a tab between the two texts of {single[:60]!r}")


def _check_names(completion: Completion) -> None:
    """Raise for metadata that the Hub does not accept."""
    if completion.license is not None and not _LICENSE.fullmatch(completion.license):
        raise UserError(f"license={completion.license!r} is not a name the Hub knows, such as apache-2.0 or mit")
    if completion.language is not None and not _LANGUAGE.fullmatch(completion.language):
        raise UserError(f"language={completion.language!r} is not a code the Hub knows, such as en: of ISO 639")
    for name in completion.datasets:
        if not is_hub_name(name):
            raise UserError(f"datasets={name!r} is not a name on the Hub, such as owner/data")


@contextlib.contextmanager
def _staging(output_dir: Path | None) -> Iterator[Path]:
    """An empty folder: `output_dir`, or a temporary one."""
    if output_dir is not None:
        check_output_dir(output_dir, way_out="give another folder")
        with disk_errors(output_dir), whole_files(output_dir) as folder:
            yield folder
        return
    way_out = "free some space, or set TMPDIR or --output_dir"
    with (
        disk_errors(Path(tempfile.gettempdir()), way_out=way_out),
        # Windows does not delete files that are still mapped.
        tempfile.TemporaryDirectory(prefix="clozebert-publish-", ignore_cleanup_errors=True) as temporary,
    ):
        yield Path(temporary)


def completion_of_checkpoints(completion: Completion, source: Path) -> Completion:
    """The completion for a run's checkpoints: that of the run, without the evaluation of the final model."""
    license = completion.license or _licence_of(source)
    return dataclasses.replace(completion, license=license, evaluation=None)


def complete_folder(
    source: Path,
    folder: Path,
    repo_id: str,
    *,
    form: str = "auto",
    completion: Completion | None = None,
    revision: str | None = None,
) -> tuple[str, list[str]]:
    """Write everything of `source` that is published into `folder`; returns the form and notes for the user.

    Args:
        revision: the branch that the card's code loads.

    Raises:
        UserError: `source` is not a complete model, or `form` is native and no architecture equals its configuration.
    """
    completion = completion or Completion()
    model, form = _load(source, form)
    model.save_pretrained(folder)
    if form == "bundle" and (text := code_license()) is not None:
        (folder / CODE_LICENSE_NAME).write_text(text, encoding="utf-8", newline="\n")
    copy_processors(source, folder)
    if getattr(model.config, "image_size", None) is None:
        _check_tokenizer(source, folder, model)
    copy_beside(source, folder, _COPIED)
    _check_modules(folder)
    copy_reading_settings(source, folder)
    if completion.evaluation is not None:
        _write_evaluation(source, folder, completion.evaluation)
    model = model.float()
    forms = _write_serving(source, folder, model, completion)
    notes = _write_card(source, folder, repo_id, completion, forms, revision)
    _write_fingerprint(source, folder, model)
    return form, notes


def _check_modules(folder: Path) -> None:
    """Raise if a module of sentence-transformers lacks its weights: those in a pickle are not copied."""
    if not (folder / "modules.json").is_file():
        return
    for config in sorted(folder.glob("[0-9]_Dense/config.json")):
        if not (config.parent / "model.safetensors").is_file():
            raise UserError(
                f"{config.parent.name} has no model.safetensors, and pickles are not published: save it anew"
            )


def _is_native(source: Path) -> bool:
    return read_config(source).get("model_type") != "clozebert"


def _load(source: Path, form: str) -> tuple[Any, str]:
    """Load the model as the class that it is published as, and its form."""
    if _is_native(source):
        native = load_native(source, any_architecture=form != "bundle")
        return (convert_from_native(native, copy_tensors=False), form) if form == "bundle" else (native, "native")
    ours = load_clozebert(source)
    if form == "bundle":
        return ours, form
    try:
        return to_native(ours, copy_tensors=False), "native"
    except ValueError:
        if form == "native":
            raise
        return ours, "bundle"


def code_license() -> str | None:
    """The licence of the code in a bundle, which may differ from that of the weights."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        text = importlib.metadata.distribution("clozebert").read_text("licenses/LICENSE")
        if text:
            return text
    in_checkout = Path(__file__).parents[1] / "LICENSE"
    return in_checkout.read_text(encoding="utf-8") if in_checkout.is_file() else None


def _check_tokenizer(source: Path, folder: Path, model: Any) -> None:
    if not (folder / "tokenizer_config.json").is_file():
        raise UserError(f"{source} has no tokenizer: save it there with tokenizer.save_pretrained({str(source)!r})")
    announce_length(folder, model)


def _write_fingerprint(source: Path, folder: Path, model: Any) -> None:
    with as_user_errors():
        values, stored = make_fingerprint(model), read_fingerprint(source)
    if stored is not None and (differences := find_differences(stored, values)):
        raise UserError(
            f"the weights of {source} are not those that its fingerprint.json was made of ({'; '.join(differences)}): "
            f"delete that file if the model was trained on since, or bring the weights back"
        )
    card = (folder / CARD_NAME).read_bytes()
    # For the next push: it sees whether somebody edited the card on the Hub, and which files there are of this one.
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    values.update(clozebert=__version__, card_sha256=hashlib.sha256(card).hexdigest(), files=files)
    write_fingerprint(folder, values)


def _write_serving(source: Path, folder: Path, model: Any, completion: Completion) -> list[str]:
    """Write the forms for servers; returns a line of the card for each."""
    from . import serving

    lines = []
    if {"onnx", "int8"} & set(completion.serving):
        worst = serving.export_onnx(model, folder)
        lines.append(f"`{serving.ONNX_NAME}`: within {worst:.1g} of PyTorch in onnxruntime, any batch and length")
    if "int8" in completion.serving:
        from transformers import AutoTokenizer

        serving.quantize_int8(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        report = serving.compare_int8(
            folder,
            completion.int8_texts,
            tokenizer,
            problem_type=model.config.problem_type,
            pairs=takes_pairs(source),
        )
        lines.append(f"`{serving.INT8_NAME}`, for CPUs, on {len(completion.int8_texts)} texts: {report}")
    if "sentence-transformers" in completion.serving:
        pooling = _pooling(source, model)
        length = min(read_tokenizer_settings(folder).get("model_max_length", 512), 1_000_000)
        serving.write_sentence_transformers(
            folder, pooling=pooling, hidden_size=model.config.hidden_size, length=int(length)
        )
        lines.append(f"sentence-transformers: the folder opens there, with {pooling} pooling")
    return lines


def _check_pooling_is_known(model_type: str) -> None:
    if model_type not in NATIVE:
        raise UserError(
            f"serving='sentence-transformers': how a {model_type} pools is not known here, but only of "
            f"{', '.join(NATIVE)}; leave it out"
        )


def _pooling(source: Path, model: Any) -> str:
    """How the model's classifiers pool a text, for every published architecture."""
    if not _is_native(source):
        return read_config(source).get("classifier_pooling", "cls")
    if model.config.model_type == "clozebert":
        return model.config.classifier_pooling
    _check_pooling_is_known(model.config.model_type)
    ending = NATIVE[model.config.model_type].heads[type(model).__name__].ours
    return config_from_native(model.config, ending).classifier_pooling


def _evaluation_value(source: Path, evaluation: tuple[str, str, str]) -> float:
    dataset, _, metric = evaluation
    check_repo_id(dataset, name="eval_dataset")
    path = source / "all_results.json"
    if not path.is_file():
        raise UserError(f"eval_metric={metric!r} is read from {path}, which does not exist")
    results = _numbers_in(path)
    if metric not in results:
        raise UserError(f"eval_metric={metric!r} is not a number of {path}; these are: {', '.join(sorted(results))}")
    return results[metric]


def _write_evaluation(source: Path, folder: Path, evaluation: tuple[str, str, str]) -> None:
    """Write `.eval_results/NAME.yaml`, which the Hub shows and adds to the dataset's table."""
    import yaml

    dataset, task, metric = evaluation
    entry = {"dataset": {"id": dataset, "task_id": task}, "value": _evaluation_value(source, evaluation)}
    path = folder / ".eval_results" / f"{dataset.split('/')[-1]}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump([{**entry, "notes": metric}], sort_keys=False), encoding="utf-8", newline="\n")


# The card


def _licence_of(source: Path) -> str | None:
    """The licence named by a folder's card."""
    card = read_card(source)
    return None if card is None else card.data.get("license")


def _write_card(
    source: Path, folder: Path, repo_id: str, completion: Completion, serving: list[str], revision: str | None
) -> list[str]:
    """Write the card of the copy: the folder's card, completed. Of one that we did not write, the text stays.

    Returns:
        notes for the user.
    """
    old = read_card(source)
    if old is not None and not old.is_ours:
        return [_write_foreign_card(source, folder, old, completion), *serving]
    facts: dict[str, Any] = {"metrics": _scores(source)} if old is None else old.facts()
    facts.update(name=repo_id.split("/")[-1], repo_id=repo_id, revision=revision, serving=serving)
    kept = None if old is None else text_of_example(old.parts.get("example", ""))
    facts["example"] = completion.example or kept or True
    if completion.license not in (None, facts.get("license")):
        facts["license_name"] = facts["license_link"] = None  # they are those of the licence before
    for key in _METADATA:
        facts[key] = getattr(completion, key) or facts.get(key)
    history = None if old is None else old.history()
    if completion.data_statement and history is None:
        facts["data_statement"] = completion.data_statement
    elif completion.data_statement and history is not None:
        recorded = history.get("training_data", "").replace("Not recorded.", "")
        if below_headings(completion.data_statement) not in recorded:
            history["training_data"] = f"{below_headings(completion.data_statement)}\n\n{recorded}".strip()
    write_card(folder, facts, history=history)
    return _missing_on_the_card(folder, facts)


def _write_foreign_card(source: Path, folder: Path, card: Card, completion: Completion) -> str:
    """Write a card that we did not write, or that was edited since, with the metadata that it lacks.

    Returns:
        a note on what was added, and on what could not be.
    """
    fields = (*_METADATA, "data_statement", "example")
    given = {name: value for name in fields if (value := getattr(completion, name))}
    added = {name: value for name, value in given.items() if name in _METADATA and not card.data.get(name)}
    write_text(folder / CARD_NAME, card.with_metadata(added) if added else card.text)
    left_out = [name for name, value in given.items() if name not in added and card.data.get(name) != value]
    return (
        f"{source / CARD_NAME} was not written by ClozeBERT, or was edited since: its text stays as it is"
        + (f"; its metadata get {', '.join(added)}" if added else "")
        + (f"; say {', '.join(left_out)} there yourself" if left_out else "")
        + ("" if card.data.get("license") or "license" in added else "; it names no licence: give --license")
    )


def _missing_on_the_card(folder: Path, facts: Mapping[str, Any]) -> list[str]:
    card = read_card(folder)
    assert card is not None
    notes = [] if facts["license"] else ["the card names no licence: give --license"]
    if isinstance(facts["example"], str) and "example" not in card.parts:
        notes.append("the card shows no example: no pipeline answers for a model with this head")
    if "training_data" not in card.parts and not facts["datasets"]:
        notes.append("the card does not say what the model was trained on: give --data_statement or --datasets")
    return notes


def _scores(source: Path) -> Mapping[str, float]:
    """The measurements of a fine-tuning or pretraining run for the card."""
    path = source / "all_results.json"
    if not path.is_file():
        return {}
    speeds = ("_runtime", "_per_second", "_samples")
    return {
        key: value
        for key, value in _numbers_in(path).items()
        if key.startswith(("eval_", "test_")) and not key.endswith(speeds)
    }


def _numbers_in(path: Path) -> dict[str, float]:
    """The finite numbers in a file of results, by name."""
    return {
        key: value
        for key, value in read_json_object(path).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
