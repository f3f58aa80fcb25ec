"""Clips as features of frames: which frame of which version a clip holds, and the network over time."""

import pytest
import torch
from torch import nn

from oracles.coded_videos import write_video
from rince.encoders import frames
from rince.encoders.frames import FrameFeatures, OverTime
from rince.encoders.pretrained import at_hand
from rince.sources.clips import ClipSampler
from rince.sources.video_index import build_index
from rince.sources.video_layouts import VideoList
from rince.sources.videos import Videos
from rince.views.pixels import PixelViews

SAMPLER = ClipSampler(frames=3, stride=4, gap=10)


@pytest.fixture
def clips(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = tuple(write_video(tmp_path / f"{n}.mp4", n) for n in (90, 101))
    listed = VideoList(paths, torch.arange(2), ("a", "b"), source=str(tmp_path))
    views = PixelViews(size=16, mean=[0.5] * 3, std=[0.25] * 3)
    network = at_hand(nn.Flatten(), 3 * 16 * 16, "flat", lambda source: source, "pixels")
    videos = Videos(build_index(listed, None, short_side=16), SAMPLER, views, {"whole": 2}, copies=2)
    return FrameFeatures(videos, network, versions=3, seen={}, drawn={})


def test_a_clip_holds_the_features_of_its_frames_in_one_version_and_a_key_is_of_another(clips):
    # A feature that tells what it is of: version, video, place on the grid of every fourth frame.
    clips.augmented_rows = [
        [torch.tensor([[v, row, place] for place in range(-(-n // 4))]).float() for row, n in enumerate((90, 101))]
        for v in range(3)
    ]
    for epoch in range(8):
        made = clips.finish(clips.load(torch.tensor([1, 0]), (0, 1, 2, 3), seed=5, epoch=epoch), torch.device("cpu"))
        drawn = SAMPLER.draw(5, epoch, torch.tensor([1, 0]), [101, 90])
        assert made.present.all()
        for view, clip in zip(made.views, (0, 0, 1, 2), strict=True):
            assert torch.equal(view[:, 2], (drawn[:, clip] // 4).float())
            assert torch.equal(view[:, 1], torch.tensor([[1.0] * 3, [0.0] * 3]))
            assert (view[:, 0] == view[:, 0, :1]).all()
        query, *keys = (view[:, 0, 0] for view in made.views)
        assert all((key != query).all() for key in keys)


def test_features_are_made_once_and_testing_sees_the_plain_frames(clips, monkeypatch):
    plain = clips.plain(torch.tensor([1]))
    assert plain.shape == (2, 768, 3)
    pixels = frames.read_frames(clips.file(1), clips.inner.index.tracks[1], range(0, 101, 4), short_side=16)
    places = SAMPLER.test_positions(101, 2) // 4
    centre = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()[..., 2:18] / 255  # of 16 × 21 pixels
    expected = ((centre - 0.5) / 0.25).flatten(1)[places].transpose(1, 2)
    assert torch.allclose(plain, expected, atol=1e-5)
    monkeypatch.setattr(frames, "read_frames", None)
    again = FrameFeatures(clips.inner, clips.network, versions=3, seen={}, drawn={})
    assert torch.equal(again.plain(torch.tensor([1])), plain)


def test_augmented_versions_differ_and_do_not_depend_on_the_place_in_the_list(clips):
    first, second, _ = clips.augmented_rows
    assert not torch.allclose(first[1], second[1])
    alone = Videos(clips.inner.index.subset([1]), SAMPLER, clips.inner.maker, {})
    made = FrameFeatures(alone, clips.network, versions=3, seen={}, drawn={"again": True})  # not from the cache
    assert torch.equal(made.augmented_rows[0][0], first[1])


def test_over_time_starts_at_the_mean_and_sees_order():
    network, batch = OverTime(5, 7), torch.randn(4, 5, 6) * 3 + 1
    network.start_on(batch)
    mean, spread = batch.mean(dim=(0, 2)), batch.std(dim=(0, 2), correction=0)
    expected = ((batch - mean[:, None]) / spread[:, None]).mean(dim=2)
    assert torch.allclose(network(batch), expected, atol=1e-5)
    nn.init.normal_(network.outer.weight)
    assert not torch.allclose(network(batch), network(batch.flip(2)), atol=1e-3)
