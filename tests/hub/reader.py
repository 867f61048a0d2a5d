"""Run as a program by the tests: a hash of every output of every Auto class, as a reader gets them.

python reader.py installed|absent '[{"source": …, "auto_classes": […], "revision": …, "trust_remote_code": …}, …]'

Prints a line of JSON: for each source, Auto class -> [module of the model's class, SHA-256 of its outputs' bytes].
"""

import hashlib
import json
import sys

import torch

WITHOUT_TOKENIZER = "AutoModelForImageClassification"


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "clozebert":
            raise ModuleNotFoundError(f"{name} is not installed here")


@torch.no_grad()
def hash_outputs(model):
    """A SHA-256 of all that a model answers to a fixed input."""
    if getattr(model.config, "image_size", None):
        size = model.config.image_size
        inputs = {"pixel_values": torch.arange(2 * 3 * size * size).view(2, 3, size, size) % 17 / 8 - 1}
    else:
        ids = (torch.arange(22) * 7 % 36 + 5).view(2, 11)
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0
        inputs = {"input_ids": ids, "attention_mask": mask}
        if type(model).__name__.endswith("ForMultipleChoice"):
            inputs = {key: value.unsqueeze(0) for key, value in inputs.items()}
    digest = hashlib.sha256()
    for key, value in sorted(model.eval()(**inputs).items()):
        digest.update(key.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def read(source, auto_classes, revision=None, trust_remote_code=False):
    import transformers

    options = {"trust_remote_code": trust_remote_code, "revision": revision or "main"}
    found = {}
    for name in auto_classes:
        torch.manual_seed(0)  # of heads that the checkpoint does not have, or has in another shape
        model = getattr(transformers, name).from_pretrained(source, ignore_mismatched_sizes=True, **options)
        found[name] = [type(model).__module__, hash_outputs(model)]
    if WITHOUT_TOKENIZER not in auto_classes:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        found["AutoTokenizer"] = ["", tokenizer("the river stone")["input_ids"]]
    return found


def main(package, sources):
    if package == "installed":
        import clozebert  # noqa: F401
    else:
        sys.meta_path.insert(0, NotInstalled())
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    print(json.dumps([read(**source) for source in json.loads(sources)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
