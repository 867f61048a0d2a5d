"""A run of the pretraining program under a natively shaped recipe, exported: plain transformers answers the same."""

import json
import sys
from pathlib import Path

import pytest
import transformers
import yaml
from warm_python import WarmPython

sys.path.append(str(Path(__file__).parent.parent))
from pretraining_helpers import make_corpus

from clozebert.scripts.convert_checkpoint import main as convert
from clozebert.scripts.pretrain_mlm import main as pretrain

SMALL = {"vocab_size": 67, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 37,
         "num_hidden_layers": 3, "max_position_embeddings": 40}  # fmt: skip
RUN = {"max_seq_length": 40, "global_batch_size": 8, "per_device_train_batch_size": 8, "max_steps": 4,
       "warmup_steps": 1, "disable_tqdm": True, "mixed_precision": "no"}  # fmt: skip
SHAPES = {
    "bert": ("bert-base", {}),
    "roberta": ("roberta-base", {}),
    "modernbert": ("modernbert-base", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
}

_WITHOUT = """
import json, sys
sys.modules["clozebert"] = None  # importing it is an error from here on
from transformers import pipeline
for folder in sys.argv[1:]:
    answers = pipeline("fill-mask", model=folder, tokenizer=folder)("w1 w4 [MASK] w10 w13")
    print(json.dumps([[answer["token"], answer["score"]] for answer in answers]))
"""


def test_same_answers_where_clozebert_is_not_installed(tmp_path: Path, python: WarmPython) -> None:
    prepared = make_corpus(tmp_path / "prepared")
    here = []
    for model_type, (architecture, changes) in SHAPES.items():
        recipe, run, native = tmp_path / f"{model_type}.yaml", tmp_path / f"{model_type}-run", tmp_path / model_type
        recipe.write_text(yaml.safe_dump({"architecture": architecture, "model": {**SMALL, **changes}, **RUN}))
        pretrain(["--config", str(recipe), "--corpus", str(prepared / "corpus"),
                  "--tokenizer_name", str(prepared / "tokenizer"), "--output_dir", str(run)])  # fmt: skip
        convert(["--input", str(run), "--output_dir", str(native), "--to", "native"])
        assert json.loads((native / "config.json").read_text())["model_type"] == model_type
        assert not list(native.glob("*.py"))
        here.append(transformers.pipeline("fill-mask", model=str(run), tokenizer=str(run))("w1 w4 [MASK] w10 w13"))
    done = python.run(["-c", _WITHOUT, *(tmp_path / model_type for model_type in SHAPES)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for answers, line in zip(here, done.stdout.splitlines(), strict=True):
        there = json.loads(line)
        assert [token for token, _ in there] == [answer["token"] for answer in answers]
        assert [score for _, score in there] == pytest.approx([answer["score"] for answer in answers], abs=1e-6)
