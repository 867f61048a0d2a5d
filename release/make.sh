#!/usr/bin/env bash
# How release/clozebert-books was made, from the books' text to the folder. Stop it at any time: it goes on where it was.
#
#   release/make.sh BOOKS [FLAGS]     BOOKS holds the files named in release/books.tsv; FLAGS are pretraining's, such as
#                                     --max_minutes 60, in place of --max_steps 49300 --decay_steps 31000
#
# Everything is written to $WORK (default: runs/release). PYTHON is the Python with clozebert in it. release/training.md
# says on what machine the weights in the repository were trained; other machines give other weights. Scores of
# fine-tuning and BLiMP are in release/scores.json; this script puts them on the card and makes none.
set -euo pipefail
cd "$(dirname "$0")/.."
BOOKS=${1:?"give the folder that holds the books: release/make.sh BOOKS [FLAGS]"}
shift
[ $# -gt 0 ] || set -- --max_steps 49300 --decay_steps 31000  # as the weights in the repository were trained
WORK=${WORK:-runs/release}
PYTHON=${PYTHON:-python}
run() { "$PYTHON" -m clozebert "$@"; }

mkdir -p "$WORK"
# The very texts: name and checksum of each.
(cd "$BOOKS" && tail -n +2 "$OLDPWD/release/books.tsv" | awk -F '\t' '{print $8 "  " $2}' | sha256sum --check --quiet)
books() { awk -F '\t' -v split_="$1" -v folder="$BOOKS/" '$1 == split_ {print folder $2}' release/books.tsv; }
mapfile -t train < <(books train)
mapfile -t validation < <(books validation)

[ -e "$WORK/tokenizer/tokenizer.json" ] ||
  run train-tokenizer --input "${train[@]}" --algorithm bpe --vocab_size 12288 --output_dir "$WORK/tokenizer"
[ -e "$WORK/corpus/train" ] ||
  run prepare-corpus --input "${train[@]}" --validation_input "${validation[@]}" --tokenizer_name "$WORK/tokenizer" \
    --output_dir "$WORK/corpus"
[ -e "$WORK/clozebert-books/all_results.json" ] ||
  run pretrain --config release/books.yaml --corpus "$WORK/corpus" --tokenizer_name "$WORK/tokenizer" \
    --output_dir "$WORK/clozebert-books" --seed 1 "$@" --resume_from_checkpoint latest
[ -e "$WORK/rounded/tokenizer.json" ] ||
  "$PYTHON" release/complete.py --run "$WORK/clozebert-books" --output_dir "$WORK/rounded"
[ -e "$WORK/masked_lm.json" ] ||
  run evaluate "$WORK/rounded" --corpus "$WORK/corpus" --max_seq_length 128 --pseudo_perplexity_documents 0 \
    --output_file "$WORK/masked_lm.json"
rm -rf "$WORK/complete" "$WORK/published"
"$PYTHON" release/complete.py --run "$WORK/clozebert-books" --masked_lm "$WORK/masked_lm.json" --output_dir "$WORK/complete"
run publish "$WORK/complete" --repo_id release/clozebert-books --format native --dry_run \
  --license cc-by-4.0 --language en --data_statement @"$WORK/complete/statement.md" \
  --example "In the nineteenth [MASK], many people moved to the cities." --output_dir "$WORK/published"
# The file stays small in bf16. But transformers loads a model in the type that config.json names, and who trains it on
# in bf16 loses most updates to rounding.
sed -i 's/"dtype": "bfloat16"/"dtype": "float32"/' "$WORK/published/config.json"
rm -rf release/clozebert-books
cp -r "$WORK/published" release/clozebert-books
