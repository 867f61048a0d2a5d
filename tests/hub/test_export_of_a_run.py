"""A run of the pretraining program under a natively shaped recipe, exported: plain transformers answers the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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

_ANSWER = """
import json, sys
if sys.argv[2] == "without":
    sys.modules["clozebert"] = None
else:
    import clozebert
from transformers import pipeline
fill = pipeline("fill-mask", model=sys.argv[1], tokenizer=sys.argv[1])
print(json.dumps([[answer["token"], answer["score"]] for answer in fill("w1 w4 [MASK] w10 w13")]))
"""


def answers(folder: Path, how: str) -> list[tuple[int, float]]:
    done = subprocess.run(
        [sys.executable, "-c", _ANSWER, str(folder), how],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("model_type", SHAPES)
def test_same_answers_where_clozebert_is_not_installed(tmp_path: Path, model_type: str) -> None:
    prepared = make_corpus(tmp_path / "prepared")
    architecture, changes = SHAPES[model_type]
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump({"architecture": architecture, "model": {**SMALL, **changes}, **RUN}))
    run, native = tmp_path / "run", tmp_path / "native"
    pretrain(["--config", str(recipe), "--corpus", str(prepared / "corpus"),
              "--tokenizer_name", str(prepared / "tokenizer"), "--output_dir", str(run)])  # fmt: skip
    convert(["--input", str(run), "--output_dir", str(native), "--to", "native"])
    assert json.loads((native / "config.json").read_text())["model_type"] == model_type
    assert not list(native.glob("*.py"))
    here, there = answers(run, "with"), answers(native, "without")
    assert [token for token, _ in here] == [token for token, _ in there]
    assert [score for _, score in here] == pytest.approx([score for _, score in there], abs=1e-6)
