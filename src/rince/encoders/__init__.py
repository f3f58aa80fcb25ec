"""Encoders: the network that makes features, and the head that turns them into embeddings."""

from rince.encoders.encoder import Encoder
from rince.encoders.heads import mlp_head

__all__ = ["Encoder", "mlp_head"]
