"""Sources: samples of every kind, in order and under views."""

from rince.sources.given import from_dataset
from rince.sources.source import Batch, Made, Preview, Source

__all__ = ["Batch", "Made", "Preview", "Source", "from_dataset"]
