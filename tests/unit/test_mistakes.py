"""Queries that find another class first, against plain loops."""

import base64
import io
import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from rince.report.mistakes import mistakes, wrong_queries


@pytest.mark.parametrize("shared", [False, True])
def test_wrong_queries_are_those_of_a_plain_loop(shared):
    generator = torch.Generator().manual_seed(0)
    gallery = F.normalize(torch.randn(40, 4, generator=generator), dim=1)
    queries = gallery[:15] if shared else F.normalize(torch.randn(15, 4, generator=generator), dim=1)
    labels, of_gallery = torch.arange(15) % 3, torch.arange(40) % 3
    same = torch.arange(15) if shared else None
    expected = []
    for row in range(15):
        cosines = [(float(queries[row] @ item), at) for at, item in enumerate(gallery) if not (shared and at == row)]
        other = max((c, at) for c, at in cosines if of_gallery[at] != labels[row])
        own = max((c, at) for c, at in cosines if of_gallery[at] == labels[row])
        if other[0] > own[0]:
            expected.append((other[0] - own[0], row, other[1]))
    found = wrong_queries(queries, labels, gallery, of_gallery, same=same)
    assert 3 < len(found) < 15
    expected.sort(reverse=True)
    assert [(query.row, query.found) for query in found] == [(row, at) for _, row, at in expected]
    assert [query.behind for query in found] == pytest.approx([behind for behind, _, _ in expected], abs=1e-6)


def album(name, colour=None, words=None):
    picture = None if colour is None else torch.tensor(colour, dtype=torch.uint8)[:, None, None].expand(3, 90, 120)
    return SimpleNamespace(name=lambda row: f"{name}/{row}.jpg", picture=lambda row: picture, text=lambda row: words)


def listed(test, train):
    """Of a run whose only test sample, a cat, is nearest to a dog."""
    samples = [torch.tensor([[1.0, 0.2]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])]
    sides = [SimpleNamespace(features=each, labels=torch.arange(len(each)), same=None) for each in samples]
    data = SimpleNamespace(classes=["<cat>", "dog"], thing="image", test=test, train=train)
    return mistakes([SimpleNamespace(test=sides[0], train=sides[1], data=data, label="mine")])


def test_the_worst_queries_are_shown_beside_what_they_are_taken_for():
    html = listed(album("test/cat", (200, 10, 10), "test/cat/0.jpg"), album("train/dog", (10, 10, 200)))
    assert "1 of 1 test images is of another class" in html
    pictures = [Image.open(io.BytesIO(base64.b64decode(uri))) for uri in re.findall(r"base64,([^\"]+)", html)]
    assert [picture.size for picture in pictures] == [(72, 72), (72, 72)]
    assert [max(range(3), key=picture.getpixel((36, 36)).__getitem__) for picture in pictures] == [0, 2]
    assert re.findall(r"<div>([^<]*)<span>([^<]*)<", html) == [("&lt;cat&gt;", "0.jpg"), ("dog", "1.jpg")]
    assert html.count('<td class="text">') == 4  # what is no number stands at the left


def test_texts_are_read_and_what_is_gone_is_named():
    html = listed(album("test", words="purrs <b>"), album("train/dog"))
    assert "<img" not in html
    assert "<span>purrs &lt;b&gt;</span>" in html
    assert "<span>1.jpg</span>" in html
