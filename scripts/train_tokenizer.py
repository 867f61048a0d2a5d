#!/usr/bin/env python
"""Train a WordPiece, BPE or Unigram tokenizer on text.

    clozebert train-tokenizer --input my_text/ --algorithm bpe --vocab_size 32768 --output_dir tokenizer

`AutoTokenizer.from_pretrained` loads the result.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from clozebert.corpus.readers.reading_flags import ReadingFlags
from clozebert.scripts._program import open_input, parse, run, say_left_out
from clozebert.utils.command_line import flag

if TYPE_CHECKING:
    from clozebert.corpus.readers.inputs import Reader


@dataclass
class Arguments(ReadingFlags):
    input: list[str] = flag(
        "files, folders, glob patterns, `installed-python`, or owner/name of a dataset on the Hub", ...
    )
    output_dir: str = flag("where the tokenizer goes", ...)
    algorithm: str = flag("wordpiece, bpe (on bytes) or unigram", "wordpiece")
    vocab_size: int = flag("entries, the special tokens included", 30_522)
    lowercase: bool = flag("lower-case the text; wordpiece deletes accents and vowel signs, too", False)
    model_max_length: int | None = flag(
        "longest input, in tokens, that the tokenizer states (default: each model saved with it states its own)"
    )
    dataset_config_name: str | None = flag("the configuration of a dataset on the Hub")
    overwrite_output_dir: bool = flag("write into a folder that is not empty; replace the tokenizer in it", False)
    disable_tqdm: bool = flag("show no progress bar", False)


def main(argv: Sequence[str] | None = None) -> None:
    """Read, train, save, and print the size of the vocabulary."""
    arguments = parse(Arguments, argv, doc=__doc__, verb="train-tokenizer")

    from pathlib import Path

    from clozebert.corpus.tokenizer import TOKENIZER_FILES, check_choices, train_tokenizer
    from clozebert.utils.files import whole_files
    from clozebert.utils.output_folders import check_output_dir
    from clozebert.utils.progress_bar import heartbeat
    from clozebert.utils.tokenizer_files import save_tokenizer

    check_choices(arguments.algorithm, arguments.vocab_size, arguments.model_max_length)
    check_place = partial(
        check_output_dir,
        arguments.output_dir,
        overwrite=arguments.overwrite_output_dir,
        written=TOKENIZER_FILES,
        holds_model=False,
        inputs=[("input", place) for place in arguments.input],
    )
    check_place()
    reader = open_input(arguments, dataset_config_name=arguments.dataset_config_name)
    with heartbeat("training the tokenizer"):
        tokenizer = train_tokenizer(
            _texts(reader, disable=arguments.disable_tqdm),
            algorithm=arguments.algorithm,
            vocab_size=arguments.vocab_size,
            lowercase=arguments.lowercase,
            model_max_length=arguments.model_max_length,
            progress=sys.stderr.isatty() and not arguments.disable_tqdm,
        )
    check_place()  # another program may have written there in the meantime
    with whole_files(Path(arguments.output_dir), replacing=TOKENIZER_FILES) as folder:
        save_tokenizer(tokenizer, folder)
    say_left_out(reader)
    if len(tokenizer) < arguments.vocab_size:
        print(f"the text holds enough for {len(tokenizer)} entries only, not for --vocab_size {arguments.vocab_size}")
    print(f"{arguments.algorithm} tokenizer of {len(tokenizer)} entries written to {arguments.output_dir}")


def _texts(reader: "Reader", *, disable: bool) -> Iterator[str]:
    """The texts, with a bar of the bytes read."""
    from clozebert.utils.progress_bar import progress_bar

    with progress_bar(
        description="reading", unit="B", unit_scale=True, total=reader.total_bytes, disable=disable, leave=False
    ) as bar:
        for text in reader.texts():
            bar.update(reader.bytes_read - bar.n)
            yield text


if __name__ == "__main__":
    run(main)
