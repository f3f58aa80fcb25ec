"""Encoders: the backbone that makes features, and the head that turns them into embeddings."""
