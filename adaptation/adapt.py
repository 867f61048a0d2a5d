"""Domain adaptation by continued pretraining: makes an adapted encoder and a report from a trained encoder and text.

Each stage leaves its complete result in OUTPUT_DIR/adaptation, or nothing:

    teacher/        if a student is trained: the original model, converted to ClozeBERT
    start/          the model that training starts from, converted to ClozeBERT   start.py
    corpus/ …       the texts, tokenized                                          corpus/preparation/prepare.py
    before.json     the losses before training
    run/            the training run, with its checkpoints                        training/pretraining.py

Then the model is converted back to its own architecture and written to OUTPUT_DIR with report.md and README.md. After
a stop, the same command resumes and gives the same weights.
"""

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers

from ..configuration import ClozeBertConfig
from ..corpus import Corpus, Masking
from ..corpus.encoding import Encoder
from ..corpus.packing import RowIndex
from ..corpus.preparation.prepare import prepare, readers_in_order
from ..corpus.readers.inputs import refuse_unused
from ..corpus.shards import open_split
from ..corpus.tokenizer import load_tokenizer, tokenizer_facts
from ..hub.card import write_card
from ..hub.convert import save_native
from ..hub.origin import card_of_origin
from ..hub.processors import copy_beside
from ..modeling import ClozeBertForMaskedLM
from ..training.checkpoints.folders import newest_valid
from ..training.checkpoints.training_state import read_state
from ..training.checks import check_tokenizer
from ..training.evaluation import FEW_PREDICTIONS, NothingPredictedError
from ..training.planning.time_budget import FORWARD_SHARE
from ..training.pretraining import pretrain
from ..training.reporting.doctor import survey
from ..training.scoring import autocast_to, score_frozen_masks
from ..utils.device import choose_precision, find_device
from ..utils.errors import UserError, UserFileError
from ..utils.files import (
    OLD_SPECIAL_TOKENS,
    WEIGHTS,
    disk_errors,
    sha256_of_file,
    whole_files,
    whole_folder,
    write_json,
    write_text,
    written_in,
)
from ..utils.hub_names import hub_name
from ..utils.input_length import announce_length
from ..utils.locks import owned_folder
from ..utils.memory import memory_errors
from ..utils.output import outliving_readers
from ..utils.output_folders import folder_stays, remove_written
from ..utils.processes import LostProcessError, launched_processes
from ..utils.progress_bar import quiet
from ..utils.tokenizer_files import save_tokenizer
from ..utils.untrusted import read_json_object
from .arguments import (
    ADAPTATION_FILES,
    ADAPTATION_RESULTS,
    BEFORE,
    REPORT_NAME,
    TEACHER_FOLDER,
    TEXT_FLAGS,
    AdaptationArguments,
    check_place,
    write_settings,
)
from .overlap import documents_of, encoded_documents, measure_overlap, refuse_scored_text
from .report import TEXT_NAMES, adaptation_facts, render_report, warnings_of
from .start import check_known_tokens, check_vocabulary_flags, make_start, open_source_model, open_student

Say = Callable[[str], None]

_EVAL_RATE, _EVAL_ROWS = 0.15, 32
_LONGEST_ROW = 256


@outliving_readers()  # as for pretraining
def adapt(arguments: AdaptationArguments, say: Say = print) -> dict[str, Any]:
    """Adapt a model, or resume an adaptation that was stopped.

    Returns:
        the content of OUTPUT_DIR/adaptation_results.json. If a signal stopped training, `stopped_by` is its number;
        with `prepare_only`, empty.

    Raises:
        UserError: a model, a text or a flag does not fit; raised before any work.
    """
    with memory_errors(arguments.to_save_memory):
        return Adaptation(arguments, say).run()


class Adaptation:
    """One adaptation; see the module."""

    def __init__(self, arguments: AdaptationArguments, say: Say) -> None:
        self.begun = time.monotonic()
        self.arguments, self.say, self.work = arguments, say, arguments.work
        if arguments.overwrite_output_dir and launched_processes() > 1:
            raise UserError(
                "overwrite_output_dir=True would delete what was prepared for these processes: leave it out; to start "
                "over, give it to one process, with --prepare_only"
            )
        arguments.check_rows(launched_processes())
        self.source = open_source_model(arguments.model_name_or_path)
        # Asked now: at the end the folder may be gone, and would pass for a name on the Hub.
        self.base_model = hub_name(arguments.model_name_or_path)
        self.model_card = card_of_origin(self.source.folder)
        self.trained = open_student(arguments.student, self.source)
        first_tokenizer = check_vocabulary_flags(arguments, self.source)
        self.readers = {name: arguments.reader(places) for name in TEXT_FLAGS if (places := getattr(arguments, name))}
        refuse_unused(list(self.readers.values()), text_column=arguments.text_column)
        if "input" in self.readers:  # refuses a file that is held out, too
            readers_in_order(self.readers["input"], self.readers.get("validation_input"), arguments.deduplicate)
        refuse_scored_text(self.readers)
        for name in ("input", "replay_input"):
            if name in self.readers:
                check_known_tokens(self.readers[name], first_tokenizer, flag=f"{name}={getattr(arguments, name)}")
        if arguments.corpus is not None:
            self._check_corpus(arguments.corpus)
        self.device = find_device(use_cpu=arguments.use_cpu)
        self.precision = choose_precision(arguments.mixed_precision, self.device)
        longest = min(self.source.longest, self.trained.longest)
        if arguments.max_seq_length is not None and arguments.max_seq_length > longest:
            raise UserError(
                f"max_seq_length={arguments.max_seq_length} exceeds the {longest} tokens that the model takes"
            )
        self.row_length = arguments.max_seq_length or min(_LONGEST_ROW, longest)
        if not arguments.general_input and not arguments.replay_input:
            self.say("no --general_input and no --replay_input: what is forgotten is not measured")
        self.contents = self._fingerprints(first_tokenizer)
        check_place(arguments, self.contents)
        if arguments.overwrite_output_dir or not (self.work / BEFORE).is_file():
            self._read_smaller_texts()
        self.changes_vocabulary = bool(
            arguments.extend_vocabulary or arguments.trim_vocabulary or arguments.tokenizer_name
        )
        # Whether training starts from another model than the original one.
        self.changes_model = self.changes_vocabulary or arguments.student is not None

    def run(self) -> dict[str, Any]:
        output_dir = Path(self.arguments.output_dir)
        with owned_folder(output_dir) as is_main:
            if self.arguments.overwrite_output_dir and is_main:
                remove_written(output_dir, ADAPTATION_FILES)
            with folder_stays(output_dir, way_out="put it back and give the same command, or start anew"):
                return self._run(is_main=is_main)

    def _run(self, *, is_main: bool) -> dict[str, Any]:
        done = Path(self.arguments.output_dir) / ADAPTATION_RESULTS
        if done.is_file() and (self.work / BEFORE).is_file() and written_in(done.parent, [WEIGHTS]):
            self.say(f"{self.arguments.output_dir} is finished already")
            return read_json_object(done)
        if launched_processes() > 1:
            if not (self.work / BEFORE).is_file():
                raise UserError("several processes train, but one prepares: run the command once with --prepare_only")
        else:
            with disk_errors(self.work):
                self._prepare()
        if self.arguments.prepare_only:
            self.say("prepared; the same command without --prepare_only trains")
            return {}
        results = self._train()
        if "stopped_by" in results or not is_main:
            return results
        return self._finish(results)

    # Before training

    def _check_corpus(self, corpus: str) -> None:
        check_tokenizer(Corpus(corpus), self.source.tokenizer)
        if not open_split(corpus, "validation"):
            raise UserError(f"corpus={corpus} has no validation split: prepare it with one")

    def _fingerprints(self, first_tokenizer: Any) -> dict[str, Any]:
        """Hashes of the texts, models and tokenizer that the flags name, which show whether these have changed."""
        found: dict[str, Any] = {
            name: [*map(sha256_of_file, one.files), *one.other_inputs] for name, one in self.readers.items()
        }
        if self.arguments.corpus is not None:
            found["corpus"] = Corpus(self.arguments.corpus).fingerprint
            found["validation split of corpus"] = Corpus(self.arguments.corpus, "validation").fingerprint
        found["model_name_or_path"] = self.source.fingerprint()
        if self.trained.folder != self.source.folder:
            found["student"] = self.trained.fingerprint()
        if self.arguments.tokenizer_name is not None:
            found["tokenizer_name"] = tokenizer_facts(first_tokenizer)
        return found

    def _prepare(self) -> None:
        """Run all stages before training that are not done yet."""
        write_settings(self.arguments, self.contents)
        try:
            if not (self.work / "start").is_dir():
                self._make_start()
            self._make_corpora(load_tokenizer(str(self.work / "start")), "")
            if self.changes_vocabulary:
                self._make_corpora(self.source.tokenizer, "-before")
            if not (self.work / BEFORE).is_file():
                self._measure_before()
        except UserError as error:
            # The user has to change flags or text, and a folder that holds the old ones would reject the new ones; but
            # not where a disk or a process failed. A completed preparation is kept, as a run may depend on it.
            is_of_machine = isinstance(error, (UserFileError, LostProcessError))
            if not is_of_machine and not (self.work / BEFORE).is_file():
                shutil.rmtree(self.work)
            raise

    def _read_smaller_texts(self) -> None:
        """Read all texts but `input` to their ends: a fault in one must not be found after hours of work on `input`."""
        for name, reader in self.readers.items():
            if name != "input" and not sum(1 for _ in reader.texts()):
                raise UserError(f"{name}={getattr(self.arguments, name)} holds no text")

    def _measure_before(self) -> None:
        """Measure the losses before training, and set the rows per step, which may depend on the measured speed."""
        source = self.source.load()
        figures = {}
        if self.changes_model:
            figures["before"] = self._evaluate(source, "-before" if self.changes_vocabulary else "")
        begun = time.monotonic()
        start = figures["start" if self.changes_model else "before"] = self._evaluate(_load(self.work / "start"), "")
        for name, scores in start.items():
            if (count := scores["eval_predicted_tokens"]) < FEW_PREDICTIONS:
                self.say(
                    f"{TEXT_NAMES[name]}: its loss is a mean over only {count:,} predicted tokens, and says little: "
                    f"{self.arguments.way_to_more(name)}"
                )
        seconds = time.monotonic() - begun
        overlaps = self._overlaps(load_tokenizer(str(self.work / "start")))
        if self.arguments.max_minutes is not None:
            most = self.arguments.max_eval_batches * _EVAL_ROWS * self.row_length
            evaluated = sum(min(split.num_tokens, most) for split in self._splits().values())
            left = 60 * self.arguments.max_minutes - (time.monotonic() - self.begun) - seconds
            tokens = FORWARD_SHARE * evaluated / seconds * max(0.0, left)
        else:
            tokens = self._new_rows() * self.row_length
        rows = self.arguments.rows_for(tokens, max_seq_length=self.row_length)
        found = {
            "evaluation": figures, "vocabulary": len(self.source.tokenizer), "parameters": source.num_parameters(),
            "overlap": overlaps, "global_batch_size": rows, "seconds_afterwards": seconds,
            "seconds_before": time.monotonic() - self.begun,
        }  # fmt: skip
        write_json(self.work / BEFORE, found, allow_nan=True)

    def _make_start(self) -> None:
        if self.arguments.student is not None and not (self.work / TEACHER_FOLDER).is_dir():
            with whole_folder(self.work / TEACHER_FOLDER) as folder, quiet():
                self.source.load().save_pretrained(folder)
        texts = [reader for name, reader in self.readers.items() if name != "protect"]
        start = make_start(
            self.arguments,
            self.trained,
            texts=self.readers["input"].texts() if "input" in self.readers else [],
            kept_texts=chain.from_iterable(reader.texts() for reader in texts),
        )
        for name, value in start.facts.items():
            self.say(f"{name}: {value}")
        asked = self.arguments.extend_vocabulary
        if asked and start.facts["new entries"] < asked:
            self.say(f"extend_vocabulary={asked}: nothing else in the text occurs twice and is not an entry yet")
        with whole_folder(self.work / "start") as folder, quiet():
            start.model.save_pretrained(folder)
            copy_beside(self.source.folder, folder)
            save_tokenizer(start.tokenizer, folder)
            write_json(folder / "vocabulary.json", start.facts)

    def _make_corpora(self, tokenizer: Any, suffix: str) -> None:
        """Tokenize the texts; general text has no validation split, as all of it is used for evaluation."""
        arguments = self.arguments
        for name, folder in _FOLDERS.items():
            place = self.work / f"{folder}{suffix}"
            if name not in self.readers or place.is_dir():
                continue
            own_split = name == "input" and "validation_input" in self.readers
            manifests = prepare(
                self.readers[name],
                tokenizer=tokenizer,
                output_dir=place,
                validation_reader=self.readers["validation_input"] if own_split else None,
                validation_fraction=0.0 if name == "general_input" else arguments.validation_fraction,
                deduplicate=arguments.deduplicate,
                num_processes=arguments.num_processes,
            )
            of = f", with the {'old' if suffix else 'new'} vocabulary" if self.changes_vocabulary else ""
            train = manifests["train"]
            self.say(f"{name}{of}: {train['tokens']:,} tokens in {train['documents']:,} documents")
            if not train["documents"]:
                raise UserError(
                    f"every document of {name}={getattr(arguments, name)} is in --validation_input too, and none "
                    f"is left to train on: leave it out of one of them"
                )
            if name != "general_input" and not manifests["validation"]["documents"]:
                raise UserError(
                    f"{name}={getattr(arguments, name)} is a single document (copies not counted); none can be held "
                    f"out: give --validation_input, or --document_separator line if each line of a text file is one"
                )

    def _splits(self, suffix: str = "") -> dict[str, Corpus]:
        """The held-out texts: name in the report -> split."""
        place = self.arguments.corpus or str(self.work / f"corpus{suffix}")
        splits = {"new": Corpus(place, "validation")}
        if "general_input" in self.readers:
            splits["general"] = Corpus(self.work / f"general{suffix}")
        elif "replay_input" in self.readers:
            splits["general"] = Corpus(self.work / f"replay{suffix}", "validation")
        return splits

    def _evaluate(self, model: ClozeBertForMaskedLM, suffix: str) -> dict[str, dict[str, float]]:
        """The loss with fixed masks, and the tokens per word, of each held-out text."""
        arguments = self.arguments
        torch.nn.Module.to(model, self.device).eval()
        tokenizer = self.source.tokenizer if suffix else load_tokenizer(str(self.work / "start"))
        # As the original tokenizer counts them: in scripts without spaces, each token of another one would be a word.
        as_before = self._splits("-before" if self.changes_vocabulary else "")
        figures = {}
        for name, split in self._splits(suffix).items():
            try:
                with autocast_to(self.device, self.precision):
                    found: dict[str, float] = score_frozen_masks(
                        model,
                        split,
                        max_seq_length=self.row_length,
                        batch_size=_EVAL_ROWS,
                        masking=Masking(rate=_EVAL_RATE),
                        seed=arguments.seed,
                        max_batches=arguments.max_eval_batches,
                    )
            except NothingPredictedError:
                raise UserError(
                    f"the {name} text to score is too short, none of its tokens was masked: "
                    f"{self.arguments.way_to_more(name)}"
                ) from None
            known = survey([split], shares=[1.0], unk_token_id=tokenizer.unk_token_id)
            found["unknown_share"] = known.unknown_share
            found["tokens_per_word"] = split.num_tokens / max(1, as_before[name].manifest["words"])
            found["loss_per_word"] = found["eval_loss"] * found["tokens_per_word"]
            figures[name] = found
        return figures

    # Training, and after

    def _train(self) -> dict[str, Any]:
        arguments = self.arguments
        before = self._before()
        settings = self._run_settings()
        if arguments.max_minutes is None:
            run = arguments.for_pretraining(max_steps=self._steps(settings["rows"]), **settings)
        else:
            # A resumed run keeps its number of steps, however much time is left.
            spent = (time.monotonic() - self.begun + before["seconds_afterwards"]) / 60
            left = arguments.max_minutes - spent
            if left <= 0 and not (self.work / "run").is_dir():
                way_out = "give more, or less text with --overwrite_output_dir"
                if launched_processes() > 1:  # the others may not have looked for the file yet
                    way_out = "give more, or less text, with --prepare_only --overwrite_output_dir first"
                else:  # it depends on the time limit, which the user may raise now
                    (self.work / BEFORE).unlink(missing_ok=True)
                given = f"max_minutes={arguments.max_minutes:g}"
                raise UserError(f"{given} was used up before training ({spent:.3f} minutes): {way_out}")
            run = arguments.for_pretraining(max_minutes=max(round(left, 2), 0.1), **settings)
        starts_over = " without --overwrite_output_dir" if arguments.overwrite_output_dir else ""
        goes_on_by = f"the same command{starts_over}"
        return pretrain(run, ClozeBertConfig(), goes_on_by=goes_on_by, to_save_memory=arguments.to_save_memory)

    def _before(self) -> dict[str, Any]:
        return read_json_object(self.work / BEFORE)

    def _run_settings(self) -> dict[str, Any]:
        return {
            "hidden_size": read_json_object(self.work / "start" / "config.json")["hidden_size"],
            "rows": self._rows(),
            "processes": launched_processes(),
            "max_seq_length": self.row_length,
        }

    def _rows(self) -> int:
        """The rows of a step: of the run so far or the flag, else of the preparation, rounded up for the processes."""
        if checkpoint := newest_valid(self.work / "run"):
            return read_state(checkpoint)[0].arguments["global_batch_size"]
        return self.arguments.rows_for_processes(self._before()["global_batch_size"], launched_processes())

    def _new_rows(self) -> float:
        """The number of training rows, including replayed ones, if neither steps nor minutes are given."""
        rows = RowIndex(self._trained_on()["new text"], max_seq_length=self.row_length).num_rows
        return rows * self.arguments.num_train_epochs / (1 - self.arguments.replayed)

    def _steps(self, rows: int) -> int:
        if self.arguments.max_steps is not None:
            return self.arguments.max_steps
        return max(1, math.ceil(self._new_rows() / rows))

    def _finish(self, trained: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the model; write it in its original form, with its report and its card."""
        arguments, target, begun = self.arguments, Path(self.arguments.output_dir), time.monotonic()
        before = self._before()
        model = _load(self.work / "run")
        tokenizer = load_tokenizer(str(self.work / "start"))
        figures = {**before["evaluation"], "after": self._evaluate(model, "")}
        results = {
            # Of a folder only its own name, since paths are private.
            "model": self.base_model or Path(arguments.model_name_or_path).resolve().name,
            "model_type": self.trained.model_type,
            "student": None if arguments.student is None else f"{model.num_parameters():,} parameters",
            "evaluation": figures,
            "vocabulary": {"before": before["vocabulary"], "after": len(tokenizer)},
            "parameters": {"before": before["parameters"], "after": model.num_parameters()},
            "vocabulary_changes": read_json_object(self.work / "start" / "vocabulary.json"),
            "overlap": before["overlap"],
            "steps": trained["step"],
            "tokens": trained["tokens_seen"],
            "train_seconds": trained["train_runtime"],
            "corpora": {name: corpus.facts() for name, corpus in self._trained_on().items()},
            "settings": self._settings(trained["step"]),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        # Another process may have prepared, and others trained before they were stopped.
        parts = before.get("seconds_before", 0) + trained["train_runtime"] + time.monotonic() - begun
        results["seconds"] = max(time.monotonic() - self.begun, parts)
        torch.nn.Module.to(model, "cpu")
        with whole_files(target, replacing=[WEIGHTS, OLD_SPECIAL_TOKENS]) as partial:
            with quiet():
                if self.trained.model_type == "clozebert":
                    model.save_pretrained(partial)
                    save_tokenizer(tokenizer, partial)
                else:
                    save_native(model, partial, tokenizer, architecture=self.trained.model_type)
            copy_beside(self.work / "start", partial)
            announce_length(partial, model, trained_on=self.row_length)
            curve = self.work / "run" / "loss_curve.png"
            if curve.is_file():
                (partial / curve.name).write_bytes(curve.read_bytes())
            write_text(partial / REPORT_NAME, render_report(results))
        kept = {} if self.model_card is None else self.model_card.lasting_facts()
        base_model = self.base_model or kept.get("base_model")
        facts = adaptation_facts(results, name=target.resolve().name, base_model=base_model)
        write_card(target, {**kept, **facts})
        write_json(target / ADAPTATION_RESULTS, results, allow_nan=True)
        self.say("\n".join([render_report(results), *warnings_of(results)]))
        return results

    def _overlaps(self, tokenizer: Any) -> dict[str, str]:
        trained_on = list(self._trained_on().values())
        found = {
            TEXT_NAMES[name]: str(measure_overlap(documents_of(split), trained_on))
            for name, split in self._splits().items()
        }
        encoder = Encoder(tokenizer.backend_tokenizer.to_str())
        named: Counter[str] = Counter()
        for place in self.arguments.protect or []:
            reader = self.arguments.reader([place], document_separator="line")
            encoded = (document for text in reader.texts() for document in encoder.encode([text]))
            name = Path(place).name  # not its folders, as paths are private
            named[name] += 1
            shown = name if named[name] == 1 else f"{name} ({named[name]})"
            found[shown] = str(measure_overlap(encoded_documents(encoded), trained_on))
        return found

    def _trained_on(self) -> dict[str, Corpus]:
        """The training texts: name in the card -> corpus."""
        corpora = {"new text": Corpus(self.arguments.corpus or self.work / "corpus")}
        if "replay_input" in self.readers:
            corpora["replay"] = Corpus(self.work / "replay")
        return corpora

    def _settings(self, steps: int) -> dict[str, Any]:
        """The settings of the run as it was; with `max_minutes`, it counted its steps itself."""
        run = read_state(self.work / "run" / f"checkpoint-{steps}")[0].arguments
        names = ("learning_rate", "lr_scheduler_type", "warmup_steps", "decay_steps", "global_batch_size",
                 "max_seq_length", "mlm_probability", "masking_unit", "seed")  # fmt: skip
        shown = {name: run[name] for name in names}
        if "replay_input" in self.readers:
            shown["replay_share"] = self.arguments.replayed
        return shown


# The folders of the prepared texts.
_FOLDERS = {"input": "corpus", "replay_input": "replay", "general_input": "general"}


def _load(folder: Path) -> ClozeBertForMaskedLM:
    """Load one of our models with its fast attention, as in training."""
    with quiet():
        return ClozeBertForMaskedLM.from_pretrained(folder, dtype=torch.float32)
