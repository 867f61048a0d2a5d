"""Complete a saved model, check that it loads in a clean process, and push it to the Hub in one commit.

clozebert publish tagger --repo_id my-org/my-tagger --dry_run
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clozebert.scripts._program import parse, read_file, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import UserError
from clozebert.utils.output_folders import check_output_dir
from clozebert.utils.wording import counted

if TYPE_CHECKING:
    from clozebert.hub.publishing import Completion, Publication


@dataclass
class PublishArguments:
    directory: str = flag("the folder of the model; can come first, without the flag", ...)
    repo_id: str = flag("the repository on the Hub, ORG/NAME; created if it does not exist", ...)
    format: Literal["auto", "native", "bundle"] = flag(
        "native: an architecture of transformers' own; bundle: with our code; auto: native where one fits", "auto"
    )
    dry_run: bool = flag("complete and verify, without contacting the Hub", False)
    output_dir: str | None = flag("write the completed copy here, and keep it (default: a temporary folder)")
    public: bool = flag("let everybody read it (default: private)", False)
    revision: str | None = flag("the branch to push to (default: main)")
    all_checkpoints: bool = flag("push each checkpoint-STEP of the folder too, as a branch of that name", False)
    license: str | None = flag("licence of the weights, as the Hub names it: apache-2.0, mit")
    language: str | None = flag("language of the model, such as en")
    datasets: list[str] | None = flag("datasets it was trained on, by their names on the Hub")
    data_statement: str | None = flag("sentences on the training data, for the card; @FILE reads them from a file")
    example: str | None = flag(
        "a text for the card, which shows the model's answer to it (default: a sentence of ours)"
    )
    with_onnx: bool = flag("write an ONNX form too, and check it in onnxruntime", False)
    with_sentence_transformers: bool = flag(
        "write what sentence-transformers needs, with the pooling of the model", False
    )
    int8_texts: str | None = flag(
        "write an int8 ONNX form too, and measure how answers change on this file, a text on each line", metavar="FILE"
    )
    with_space: str | None = flag("write a Space with a page to try the model on into this folder", metavar="DIR")
    eval_dataset: str | None = flag("dataset on the Hub, ORG/NAME, of a result that the Hub is to show")
    eval_task: str = flag("task of that dataset", "default")
    eval_metric: str | None = flag("that result: the name of a number in all_results.json")


def main(argv: list[str] | None = None) -> None:
    arguments = parse(PublishArguments, argv, doc=__doc__, verb="publish", first="directory")
    source = Path(arguments.directory)
    checkpoints = _checkpoints(arguments, source)
    completion = _completion(arguments)

    from transformers.utils import logging

    from clozebert.hub.publishing import check_request, completion_of_checkpoints, publish
    from clozebert.hub.space import check_space, write_space

    parts = [(source, arguments.revision, completion)]
    parts += [(path, path.name, completion_of_checkpoints(completion, source)) for path in checkpoints]
    for folder, _, said in parts:
        check_request(folder, form=arguments.format, completion=said, public=arguments.public)
    if arguments.with_space:
        check_space(source)
        check_output_dir(arguments.with_space, name="with_space", way_out="give another folder")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for folder, revision, said in parts:
        done = publish(
            folder,
            arguments.repo_id,
            form=arguments.format,
            completion=said,
            public=arguments.public,
            revision=revision,
            dry_run=arguments.dry_run,
            output_dir=Path(arguments.output_dir) if arguments.output_dir else None,
        )
        print(_describe(arguments.repo_id, revision, done))
    if arguments.with_space:
        write_space(arguments.with_space, arguments.repo_id)


def _checkpoints(arguments: PublishArguments, source: Path) -> list[Path]:
    """The training checkpoints to publish in addition to the folder; raises if any of them or the folder is damaged."""
    from clozebert.training.checkpoints.damage import find_damage
    from clozebert.training.checkpoints.folders import list_checkpoints

    found = list_checkpoints(source) if arguments.all_checkpoints else []
    if arguments.all_checkpoints:
        if not found:
            raise UserError(f"--all_checkpoints: {source} has no folder checkpoint-STEP")
        if arguments.output_dir or arguments.revision:
            raise UserError("--all_checkpoints gives each checkpoint a branch: leave out output_dir and revision")
    for path in [source, *found]:
        # Only our pretraining loop writes a manifest.
        if (path / "training_state").is_dir() and (damage := find_damage(path)):
            raise UserError(f"{path} is not whole: {damage}")
    return found


def _completion(arguments: PublishArguments) -> "Completion":
    from clozebert.hub.publishing import Completion

    evaluation = None
    if (arguments.eval_dataset is None) != (arguments.eval_metric is None):
        raise UserError("eval_dataset and eval_metric belong together: give both, or neither")
    if arguments.eval_dataset is None and arguments.eval_task != "default":
        raise UserError(f"eval_task={arguments.eval_task!r} needs eval_dataset: give that too")
    if arguments.eval_dataset is not None and arguments.eval_metric is not None:
        evaluation = (arguments.eval_dataset, arguments.eval_task, arguments.eval_metric)
    statement = arguments.data_statement
    if statement is not None and statement.startswith("@"):
        statement = read_file("data_statement", statement[1:])
    texts = "" if arguments.int8_texts is None else read_file("int8_texts", arguments.int8_texts)
    if arguments.int8_texts is not None and not texts.strip():
        raise UserError(f"int8_texts={arguments.int8_texts}: there is no text in it")
    forms = {"onnx": arguments.with_onnx, "int8": arguments.int8_texts is not None}
    forms["sentence-transformers"] = arguments.with_sentence_transformers
    return Completion(
        license=arguments.license,
        language=arguments.language,
        datasets=arguments.datasets or [],
        data_statement=statement,
        evaluation=evaluation,
        example=arguments.example,
        serving=tuple(name for name, is_wanted in forms.items() if is_wanted),
        int8_texts=tuple(line for line in texts.splitlines() if line.strip()),
    )


def _describe(repo_id: str, revision: str | None, done: "Publication") -> str:
    where = f"{repo_id} ({revision})" if revision else repo_id
    ready = [name for name in done.report.auto_classes if name not in done.report.new_heads]
    lines = [f"{where}: {done.form}, opens with {', '.join(ready)}"]
    if done.report.pipelines:
        lines.append(f"  pipelines that ran: {', '.join(done.report.pipelines)}")
    for auto_class, names in done.report.new_heads.items():
        lines.append(f"  opens with {auto_class}, too, which needs training: {', '.join(names)} are new")
    if done.push is None:
        lines.append("  files that a push uploads, unless they are there already:")
        lines += [f"    {name}  {size:,} bytes" for name, size in done.files.items()]
    elif not done.push.uploaded and not done.push.deleted:
        lines.append(f"  nothing changed since {done.push.commit}")
    else:
        changes = [f"{counted(len(done.push.uploaded), 'file')} uploaded"]
        changes += [f"{name} deleted" for name in done.push.deleted]
        lines.append(f"  {', '.join(changes)}; revision {done.push.commit}")
    return "\n".join([*lines, *(f"  note: {note}" for note in done.notes)])


if __name__ == "__main__":
    run(main)
