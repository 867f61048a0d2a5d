"""Makes the model that continued pretraining starts from: converted, its vocabulary swapped, extended or trimmed."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from transformers import PreTrainedTokenizerFast

from ..configuration import ClozeBertConfig
from ..corpus.encoding import Encoder, split_encoded
from ..corpus.readers.inputs import Reader
from ..corpus.tokenizer import load_tokenizer, tokenizer_differences, tokenizer_facts
from ..corpus.vocabulary.changes import EXTENDED, TRIMMED, NewVocabulary, check_algorithm, extend, trim
from ..hub.convert import load_clozebert_masked_lm
from ..hub.convert_config import choose_architecture, config_from_native
from ..hub.loading import find_folder, read_config
from ..hub.natives import architecture_of
from ..modeling import ClozeBertForMaskedLM
from ..training.initialization.initial_model import load_configuration, set_token_ids
from ..training.initialization.rebuilding import config_of_layers, evenly_spaced, take_layers, take_rows
from ..utils.errors import UserError
from ..utils.files import hash_model
from ..utils.progress_bar import quiet
from .arguments import AdaptationArguments
from .vocabulary_transfer import swap

_SAMPLED_DOCUMENTS, _SAMPLED_CHARACTERS = 200, 1 << 20
_MOST_UNKNOWN = 0.2
_AT_ONCE = 1 << 12


@dataclass
class SourceModel:
    """The model to adapt, not loaded yet.

    Attributes:
        model_type: its architecture, which the result has, too.
        tokenizer: its own. longest: the most tokens that it takes at once.
        layers: how many of its layers to load, evenly spaced.
    """

    folder: Path
    model_type: str
    tokenizer: PreTrainedTokenizerFast
    longest: int
    layers: int

    def fingerprint(self) -> dict[str, Any]:
        """Hashes of its files and tokenizer, which show whether these have changed."""
        return hash_model(self.folder) | tokenizer_facts(self.tokenizer)

    def load(self) -> ClozeBertForMaskedLM:
        """Load the model in float32 and convert it to ClozeBERT."""
        model = load_clozebert_masked_lm(self.folder).float()
        if self.layers < model.config.num_hidden_layers:
            model = take_layers(model, evenly_spaced(model.config.num_hidden_layers, self.layers))
        set_token_ids(model.config, self.tokenizer)
        return model


def open_source_model(name_or_path: str) -> SourceModel:
    """Check a model without loading its weights.

    Raises:
        UserError: the architecture cannot be converted, the model has another head, or no tokenizer fits.
    """
    folder = find_folder(name_or_path)
    values = read_config(folder)
    model_type = str(values.get("model_type"))
    if model_type != "clozebert":
        architecture_of(values.get("model_type"), where=f" of model_name_or_path={name_or_path}")
    names = values.get("architectures") or ["model without a head"]
    if not names[0].endswith("ForMaskedLM"):
        raise UserError(f"model_name_or_path={name_or_path!r} holds a {names[0]}, and a masked-LM model is needed")
    tokenizer = load_tokenizer(str(folder), flag="model_name_or_path")
    rows = values.get("vocab_size")
    if isinstance(rows, int) and len(tokenizer) > rows:
        raise UserError(
            f"model_name_or_path={name_or_path!r} has embeddings for {rows} tokens, and its tokenizer {len(tokenizer)} "
            f"tokens: it is not the model's own"
        )
    config = _configuration(folder, model_type)
    if config.position_rule == "non_pad" and config.pad_token_id != tokenizer.pad_token_id:
        raise UserError(
            f"model_name_or_path={name_or_path!r} has padding id {config.pad_token_id}, and its tokenizer "
            f"{tokenizer.pad_token_id}: its positions begin after that id, so set pad_token_id in config.json, or "
            f"take the model's own tokenizer"
        )
    return SourceModel(folder, model_type, tokenizer, config.max_position_embeddings, config.num_hidden_layers)


def _configuration(folder: Path, model_type: str) -> ClozeBertConfig:
    if model_type == "clozebert":
        return load_configuration(str(folder))
    native = getattr(transformers, architecture_of(model_type).config_class).from_pretrained(folder)
    return config_from_native(native, "ForMaskedLM")


def check_vocabulary_flags(arguments: AdaptationArguments, source: SourceModel) -> PreTrainedTokenizerFast:
    """The tokenizer for the text, before it is extended or trimmed.

    Raises:
        UserError: the tokenizer does not allow what the flags ask for.
    """
    tokenizer = source.tokenizer if arguments.tokenizer_name is None else load_tokenizer(arguments.tokenizer_name)
    if arguments.extend_vocabulary:
        check_algorithm(tokenizer, EXTENDED, flag="extend_vocabulary")
    if arguments.trim_vocabulary:
        check_algorithm(tokenizer, TRIMMED, flag="trim_vocabulary")
    return tokenizer


def check_known_tokens(reader: Reader, tokenizer: PreTrainedTokenizerFast, *, flag: str) -> None:
    """Check that the tokenizer knows the text of the first documents.

    Raises:
        UserError: too many of their tokens are unknown, or stand for too much of the text.
    """
    texts, size = [], 0
    for text in islice(reader.texts(), _SAMPLED_DOCUMENTS):
        texts.append(text)
        size += len(text)
        if size > _SAMPLED_CHARACTERS:
            break
    # Not the tokenizer itself: its padding and truncation would count.
    encoder = Encoder(tokenizer.backend_tokenizer.to_str(), unk_token_id=tokenizer.unk_token_id)
    encoded = encoder.encode_counting(texts)
    ids = np.concatenate([split_encoded(document)[0] for document, _ in encoded]) if encoded else np.zeros(0)
    unknown = float((ids == tokenizer.unk_token_id).mean()) if len(ids) else 0.0
    # One token may stand for a word of hundreds of letters.
    covered = sum(count for _, count in encoded) / max(1, sum(len(text.encode("utf-8")) for text in texts))
    if max(unknown, covered) > _MOST_UNKNOWN:
        raise UserError(
            f"{flag}: {unknown:.0%} of its first tokens are unknown to the model's tokenizer, and stand for "
            f"{covered:.0%} of the bytes, so the text needs another one: give that as --tokenizer_name"
        )


@dataclass
class Start:
    """The model and the tokenizer that training starts with, and how the vocabulary was changed."""

    model: ClozeBertForMaskedLM
    tokenizer: PreTrainedTokenizerFast
    facts: dict[str, Any] = field(default_factory=dict)


def make_start(
    arguments: AdaptationArguments, source: SourceModel, *, texts: Iterable[str], kept_texts: Iterable[str]
) -> Start:
    """Swap, extend and trim the vocabulary, in this order, as the flags say.

    Args:
        texts: the new text. kept_texts: the texts whose entries are kept in trimming, including the new text.
    """
    start = Start(source.load(), source.tokenizer)
    if arguments.tokenizer_name is not None:
        new, counts = swap(start.tokenizer, load_tokenizer(arguments.tokenizer_name))
        start.facts["rows of the new tokenizer"] = counts
        _apply(start, new, spare=0)
    if arguments.extend_vocabulary:
        new = extend(start.tokenizer, texts, arguments.extend_vocabulary)
        start.facts["new entries"] = len(new.merges)
        # A model may have more rows than its tokenizer has tokens; these spare rows are used first.
        _apply(start, new, spare=start.model.config.vocab_size)
    if arguments.trim_vocabulary:
        used = used_ids(start.tokenizer, kept_texts)
        new = trim(start.tokenizer, used)
        start.facts["entries dropped"] = len(start.tokenizer) - len(new.tokenizer)
        _apply(start, new, spare=0)
    return start


def open_student(student: str | None, source: SourceModel) -> SourceModel:
    """The model to train: a named student, or the source with all or some of its layers.

    Raises:
        UserError: the student has more layers than the source, or another tokenizer, or could not be saved.
    """
    if student is None:
        return source
    if student.isdecimal():
        if not 1 <= int(student) <= source.layers:
            raise UserError(f"student={student}: take 1 to {source.layers} of the model's layers")
        if source.model_type != "clozebert":
            _check_native_student(int(student), source)
        return replace(source, layers=int(student))
    opened = open_source_model(student)
    if differing := tokenizer_differences(source.tokenizer, tokenizer_facts(opened.tokenizer)):
        raise UserError(
            f"student={student!r} has another tokenizer than the model ({', '.join(differing)} differ): a student "
            f"needs its teacher's"
        )
    return opened


def _check_native_student(layers: int, source: SourceModel) -> None:
    """Some releases of transformers refuse a ModernBERT whose layers are all of one kind; those kept may be."""
    config = _configuration(source.folder, source.model_type)
    kept = config_of_layers(config, evenly_spaced(config.num_hidden_layers, layers))
    try:
        choose_architecture(kept, "ForMaskedLM", source.model_type)
    except UserError as error:
        raise UserError(
            f"student={layers}: transformers {transformers.__version__} has no {source.model_type} of the layers that "
            f"would be kept: take another number of layers, or a newer transformers ({error})"
        ) from error


def _apply(start: Start, new: NewVocabulary, *, spare: int) -> None:
    """Give the model the rows of a new vocabulary; rows beyond the tokenizer's stay, up to `spare` rows in all."""
    sources = new.sources + [[row] for row in range(len(new.sources), spare)]
    with quiet():  # until the next line, ids of special tokens may be outside the vocabulary
        start.model = take_rows(start.model, sources, pad_token_id=new.tokenizer.pad_token_id)
    set_token_ids(start.model.config, new.tokenizer)
    start.tokenizer = new.tokenizer


def used_ids(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> set[int]:
    """All token ids that occur in these texts."""
    encoder = Encoder(tokenizer.backend_tokenizer.to_str())
    used: set[int] = set()
    waiting = iter(texts)
    while batch := list(islice(waiting, _AT_ONCE)):
        for document in encoder.encode(batch):
            used.update(np.unique(split_encoded(document)[0]).tolist())
    return used
