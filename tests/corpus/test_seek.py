"""Seeking: any step of a corpus of a billion tokens at once, and in little memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clozebert.corpus import Corpus
from clozebert.corpus.manifest import format_manifest, shard_names
from clozebert.corpus.shards import SHARD_TOKENS
from clozebert.utils.files import sha256_of_file

from .conftest import FACTS

SEEK = """
import json, sys, time
from clozebert.corpus import BatchStream, Corpus, Masking
from clozebert.utils.memory import peak_memory

before, begun = peak_memory(), time.perf_counter()
options = {"max_seq_length": 512, "global_batch_size": 256, "masking": Masking(unit="span"), "seed": 0}
stream = BatchStream(Corpus(sys.argv[1]), **options)
opened = time.perf_counter() - begun
batch = stream.batch(10**6, world_size=8)
seconds = time.perf_counter() - begun
print(json.dumps({"opened": opened, "seconds": seconds, "megabytes": (peak_memory() - before) / 2**20,
                  "tokens": batch.input_ids.size, "rows": stream.rows_per_epoch}))
"""


def write_sparse(folder: Path, tokens: int) -> None:
    """A corpus of that many zeros, which take no room on disk, in documents of 600 tokens on average."""
    train = folder / "train"
    train.mkdir(parents=True)
    lengths = np.random.default_rng(0).geometric(1 / 600, size=tokens // 600)
    total = int(lengths.sum())
    np.concatenate([[0], np.cumsum(lengths)]).astype("<i8").tofile(train / "documents.bin")
    # Shards need not end where documents do for this: nothing is read across an edge but zeros.
    ends = [*range(SHARD_TOKENS, total, SHARD_TOKENS), total]
    sizes = np.diff([0, *ends]).tolist()
    for number, size in enumerate(sizes):
        for name, length in ((f"tokens-{number:05d}.bin", 2 * size), (f"word_starts-{number:05d}.bin", -(-size // 8))):
            with open(train / name, "wb") as file:
                file.truncate(length)
    manifest = {
        "documents": len(lengths), "tokens": total, "dtype": "<u2",
        "shards": [
            {"tokens": size, "files": {name: sha256_of_file(train / name) for name in shard_names(number)}}
            for number, size in enumerate(sizes)
        ],
        "files": {"documents.bin": sha256_of_file(train / "documents.bin")}, **FACTS,
    }  # fmt: skip
    (train / "manifest.json").write_bytes(format_manifest(manifest)[1])
    assert Corpus(folder).num_tokens == total


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory as Linux reports it")
@pytest.mark.parametrize("tokens", [3 * 10**6, pytest.param(10**9, marks=pytest.mark.slow)])
def test_any_step_is_found_without_those_before(tmp_path: Path, tokens: int) -> None:
    """Steps far beyond the first epoch. With 10^9 tokens: index built in 2.8 s and 173 MB, then 0.04 s and 55 MB."""
    write_sparse(tmp_path, tokens)
    runs = []
    for _ in range(2):  # the first one builds the row index
        done = subprocess.run([sys.executable, "-c", SEEK, tmp_path], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    print(runs)
    assert runs[0]["rows"] == runs[1]["rows"] >= tokens / 512
    assert runs[0]["tokens"] == runs[1]["tokens"] > 0.95 * 32 * 512
    assert runs[1]["megabytes"] < 200
    assert runs[1]["megabytes"] < 60 + tokens / 10**7  # a small share of the corpus' two bytes a token
