"""Steps as the loop gets them: the same views whether made one after the other or side by side."""

import pytest
import torch

from rince.config import validate
from rince.train.feed import Feed
from rince.train.setup import build_parts
from train.tiny import TINY


@pytest.fixture
def two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_cores")
def test_views_made_side_by_side_are_those_made_one_by_one():
    parts = build_parts(validate(TINY | {"views": TINY["views"] | {"jitter": [0.4, 0.4, 0.4, 0.1]}}, "test"))
    arguments = (parts.images, parts.labels, parts.views, parts.order)
    feed = Feed(*arguments, seed=3, device=torch.device("cpu"))
    assert feed._pool is not None
    assert torch.get_num_threads() == 2
    for step in feed.steps(0, 10):
        ids = parts.order.ids(step.epoch, step.step % parts.order.steps_per_epoch)
        for number, view in enumerate(step.views):
            alone = parts.views(parts.images.images[ids], seed=3, epoch=step.epoch, view=number, sample_ids=ids)
            assert torch.equal(view, alone)
    assert torch.get_num_threads() == 2
