"""Networks of Hugging Face with random weights, small enough to be made and saved in a test; and data for them."""

import csv
import json

import numpy as np
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, ResNetConfig, ResNetModel, ViTConfig, ViTModel

WORDS = [
    "cat",
    "kitten",
    "dog",
    "puppy",
    "oak",
    "birch",
    "tulip",
    "rose",
    "purrs",
    "barks",
    "grows",
    "stands",
    "near",
    "the",
    "old",
    "house",
    "and",
    "sleeps",
]
SIDE = 32


def text_model(folder):
    """A BERT of two layers whose tokeniser knows a few words."""
    torch.manual_seed(0)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*specials, *WORDS])}
    tokeniser = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokeniser.pre_tokenizer = Whitespace()
    tokeniser.post_processor = TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokeniser,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=16,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    BertModel(config).eval().save_pretrained(folder)
    return folder


def sentence_model(folder, network):
    """The same for sentence-transformers, with a prompt and vectors of unit length."""
    transformer = Transformer(str(network), max_seq_length=14)
    modules = [transformer, Pooling(16, pooling_mode="mean"), Normalize()]
    prompts = {"aged": "the old ", "other": "house"}
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder), create_model_card=False)
    return folder


def image_model(folder, kind):
    """A ViT or a ResNet for images of 32 pixels."""
    torch.manual_seed(0)
    if kind == "vit":
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        model = ViTModel(ViTConfig(image_size=SIDE, patch_size=8, **sizes))
    else:
        model = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))
    model.eval().save_pretrained(folder)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": SIDE, "width": SIDE},
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def write_texts(path, number=36):
    """Four classes in two groups; some texts are longer than the tokeniser allows."""
    draw = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "group"])
        for row in range(number):
            kind = ("cat", "dog", "oak", "rose")[row % 4]
            words = draw.choice(WORDS, size=draw.integers(1, 20))
            rows.writerow([f"{kind} {' '.join(words)}", kind, "animal" if row % 4 < 2 else "plant"])
    return path


def write_images(folder, number=20):
    """Four classes in two groups, in colour, as files."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for row in range(number):
            place = folder / split / ("animal/cat", "animal/dog", "plant/oak", "plant/rose")[row % 4]
            place.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (40, 44, 3), dtype=np.uint8) // 2 + np.uint8(20 * (row % 4))
            Image.fromarray(pixels).save(place / f"{row}.png")
    return folder
