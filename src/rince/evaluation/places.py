"""R@1 of an encoder before and after its head: what training is told of the samples it holds out."""

from __future__ import annotations

from torch import Tensor

from rince.encoders.encoder import Encoder
from rince.evaluation.retrieval import recall_at_k
from rince.evaluation.trained import embed_by
from rince.sources.source import Source
from rince.train.validation import Place, Recalls


def recall_by_place(encoder: Encoder, queries: Source, gallery: Source, groups: dict[str, Tensor]) -> Recalls:
    """R@1 of every level for both places; leaves the encoder as it was.

    Args:
        encoder: to judge; its state of testing is what counts.
        queries: that look for the nearest item.
        gallery: none of them a query.
        groups: level → `(classes,)`, the group of every class.
    """
    training = encoder.training
    encoder.eval()
    try:
        asking, asked = (embed_by(encoder, source) for source in (queries, gallery))
    finally:
        encoder.train(training)

    def at(place: Place) -> dict[str, float]:
        return {
            level: recall_at_k(
                getattr(asking, place),
                getattr(asked, place),
                query_labels=of_class[queries.labels],
                gallery_labels=of_class[gallery.labels],
            )
            for level, of_class in groups.items()
        }

    return {"features": at("features"), "embeddings": at("embeddings")}
