"""Writes what transformers makes of a tokenizer.json by its class: the parts that it takes from the class alone.

    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6 transformers==5.24.0
    venv/bin/python crates/tokenization/tests/rebuilt.py

The output is committed and compiled in. These are the classes of models that answer chats; of others nothing is known.
"""

import itertools
import json
import pathlib

import transformers
from transformers.models.auto import tokenization_auto as auto

CLASSES = [
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
]

# of a tokenizer_config.json
SETTINGS = {"add_prefix_space": [None, False, True], "legacy": [None, False, True]}


def build(name, settings):
    special = ["<unk>", "<s>", "</s>", "<pad>", "<|endoftext|>", "<bos>", "<eos>", "<mask>"]
    vocab = {token: number for number, token in enumerate([*special, "a", "b", "ab"])}
    tokenizer = auto.tokenizer_class_from_name(name)(vocab=vocab, merges=[("a", "b")], **settings)
    built = json.loads(tokenizer.backend_tokenizer.to_str())
    flags = {flag: built["model"][flag] for flag in ["byte_fallback", "ignore_merges"]}
    return {"normalizer": built["normalizer"], "pre_tokenizer": built["pre_tokenizer"], **flags}


def variants(name):
    """Each outcome once, with the settings that lead to it."""
    found = {}
    for values in itertools.product(*SETTINGS.values()):
        settings = dict(zip(SETTINGS, values))
        given = {key: value for key, value in settings.items() if value is not None}
        outcome = json.dumps(build(name, given), ensure_ascii=False)
        found.setdefault(outcome, []).append(settings)
    return [{"settings": settings, **json.loads(outcome)} for outcome, settings in found.items()]


def main():
    names = {key: name for key, name in auto.TOKENIZER_MAPPING_NAMES.items() if name}
    parts = {
        "version": transformers.__version__,
        "classes": {name: variants(name) for name in CLASSES},
        "model_types": dict(sorted(names.items())),
        "wrong_classes": sorted(auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS),
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in parts.items())
    path = pathlib.Path(__file__).parent.parent / "src" / "rebuilt" / "transformers.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\n" + lines + "\n}\n")


main()
