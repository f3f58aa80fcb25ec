"""Pretrained networks small enough to run a thousand times a second, in folders as libraries save them; and data."""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

GROUPS = {"poodle": "dogs", "pug": "dogs", "manx": "cats", "oak": "trees"}
WORDS = [*"abcdefghijklmnopqrstuvwxyz", *GROUPS, *GROUPS.values(), "small", "large", "green", "old", "find", ":"]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SIZE, MEAN, STD = 16, [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def write_processor(folder, **changes):
    said = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": SIZE, "width": SIZE},
        "image_mean": MEAN,
        "image_std": STD,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(said | changes))


def write_vit(folder, seed=0, **changes):
    """A transformer for images of 16 × 16."""
    torch.manual_seed(seed)
    config = transformers.ViTConfig(**SHAPE, image_size=SIZE, patch_size=8, **changes)
    transformers.ViTModel(config).save_pretrained(folder)
    write_processor(folder)
    return folder


def write_resnet(folder, seed=0):
    """A network of convolutions, whose output is maps, with batch normalisation that has seen something."""
    torch.manual_seed(seed)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetModel(config)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    model.save_pretrained(folder)
    write_processor(folder)
    return folder


def write_bert(folder, seed=0, longest=12, **changes):
    """A transformer for texts of at most 12 tokens, with its tokeniser."""
    torch.manual_seed(seed)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=longest, **SHAPE, **changes)
    model = transformers.BertModel(config)
    for parameter in model.parameters():  # far from the start of training, where all texts are alike
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.6)
    model.save_pretrained(folder)
    tokeniser = transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    tokeniser.model_max_length = longest
    tokeniser.save_pretrained(folder)
    return folder


def write_sentence_model(folder, mode="mean", **changes):
    """The same as a model of sentence-transformers, with prompts, that gives vectors of unit length."""
    inner = folder.with_name(f"{folder.name}-inner")
    write_bert(inner)
    transformer = modules.Transformer(str(inner), max_seq_length=12)
    parts = [transformer, modules.Pooling(16, pooling_mode=mode, **changes), modules.Normalize()]
    model = SentenceTransformer(modules=parts, prompts={"query": "find : ", "plain": ""}, device="cpu")
    model.save_pretrained(str(folder))
    return folder


def sentences(number, seed=0, longest=9):
    """Texts of unlike length, each with a word that tells its class."""
    random, classes = np.random.default_rng(seed), list(GROUPS)
    labels = [classes[i % len(classes)] for i in range(number)]
    texts = []
    for label in labels:
        words = [str(word) for word in random.choice(WORDS[:26], size=random.integers(1, longest))]
        words.insert(int(random.integers(len(words) + 1)), label)
        texts.append(" ".join(words))
    return texts, labels


def write_texts(folder, number=60):
    """train.csv and test.csv with text, label and group."""
    folder.mkdir(exist_ok=True)
    for split, seed in (("train", 1), ("test", 2)):
        rows = [f"{text},{label},{GROUPS[label]}" for text, label in zip(*sentences(number, seed), strict=True)]
        (folder / f"{split}.csv").write_text("\n".join(["text,label,group", *rows]) + "\n")
    return folder


def write_images(folder, number=40, size=(24, 20)):
    """train/dogs/pug/3.png and so on: colours that tell the class."""
    for split, seed in (("train", 1), ("test", 2)):
        random = np.random.default_rng(seed)
        for i in range(number):
            label = list(GROUPS)[i % 4]
            colour = np.array([[200, 30, 30], [180, 60, 30], [30, 200, 30], [30, 30, 200]])[i % 4]
            pixels = np.clip(colour + random.normal(scale=40, size=(size[1], size[0], 3)), 0, 255).astype(np.uint8)
            place = Path(folder) / split / GROUPS[label] / label / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place)
    return folder
