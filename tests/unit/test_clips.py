"""Which frames the clips of a query hold, under which crops, and how short videos are treated."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from oracles.coded_videos import packet_places, read_numbers, write_video
from rince import ConfigError, DataError, ShapeError
from rince.config import load_recipe
from rince.sources import videos as videos_module
from rince.sources.clips import ClipSampler, long_enough, read_strip, read_test_clips
from rince.sources.feed import made_ahead
from rince.sources.video_file import read_frames
from rince.sources.video_index import build_index
from rince.sources.video_layouts import VideoList
from rince.sources.videos import Videos
from rince.views.pixels import PixelViews

IDS = torch.arange(400)
TINY = {"frames": 3, "stride": 2, "gap": 4}
RANGES = ((2, 15), (20, 27), (40, 70))


def naive(length, ranges=None, *, frames, stride, gap):
    """All (query, shot, video) that are allowed, as starts, by trying all; None stands for a positive left out."""
    ranges = ranges or [(0, length)]

    def frames_of(start):
        return [start + i * stride for i in range(frames)]

    def where(start):
        """The range a clip lies in."""
        return [i for i, (a, b) in enumerate(ranges) if all(a <= f < min(b, length) for f in frames_of(start))]

    clips = [start for start in range(-length, length) if where(start)]
    pairs = [
        (q, s)
        for q in clips
        for s in clips
        if stride in (frames_of(s)[0] - frames_of(q)[-1], frames_of(q)[0] - frames_of(s)[-1])
        if where(q) == where(s)
    ]

    def between(one, other):
        return min(abs(f - g) for f in frames_of(one) for g in frames_of(other)) - 1

    triples = [(q, s, v) for q, s in pairs for v in clips if between(v, q) >= gap and between(v, s) >= gap]
    return clips, pairs, triples


@pytest.mark.parametrize("ranges", [None, RANGES])
@pytest.mark.parametrize("length", [20, 21, 27, 50])
def test_clips_lie_where_a_naive_search_finds_room(length, ranges):
    clips, pairs, triples = naive(length, ranges, **TINY)
    sampler = ClipSampler(**TINY, short="drop-rank")
    drawn = sampler.draw(5, 2, torch.arange(1500), [length] * 1500, [ranges] * 1500)
    assert drawn.shape == (1500, 3, 3)
    assert drawn.dtype == torch.int64
    starts = [tuple(row) for row in drawn[:, :, 0].tolist()]
    outcome = next(name for name, number in sampler.report([length], [ranges]).items() if number)
    if triples:
        assert set(starts) <= set(triples)
        assert {q for q, _, _ in starts} == {q for q, _, _ in triples}  # every place is taken, up to the ends
        assert {(q, s) for q, s, _ in starts} == {(q, s) for q, s, _ in triples}
        assert {v for _, _, v in starts} == {v for _, _, v in triples}
        assert outcome == "whole"
    elif pairs:
        assert {(q, s) for q, s, _ in starts} == set(pairs)
        assert outcome == "dropped_video"
    else:
        assert {q for q, _, _ in starts} == set(clips)
        assert outcome == "dropped_shot"
    present = [True, bool(pairs), bool(triples)]
    assert ((drawn >= 0).all(2) == torch.tensor(present)).all()
    assert (drawn.diff(dim=2)[:, present] == 2).all()


def test_the_papers_numbers():
    """16 frames, every third, the shot adjacent, 48 frames between: 94 + 48 + 46 = 188 frames are enough."""
    sampler = ClipSampler()
    assert (sampler.frames, sampler.stride, sampler.gap) == (16, 3, 48)
    drawn = sampler.draw(0, 0, IDS, torch.full((400,), 300))
    query, shot, video = drawn.unbind(1)
    assert (drawn.diff(dim=2) == 3).all()
    assert drawn.min() >= 0
    assert drawn.max() < 300
    assert set((shot - query)[:, 0].tolist()) == {-48, 48}
    for other in (query, shot):
        apart = (video[:, :, None] - other[:, None, :]).abs().amin(dim=(1, 2))
        assert apart.min() >= 49
    assert sampler.report([188, 187]) == {"whole": 1, "shrunk": 0, "dropped_video": 0, "dropped_shot": 0, "left_out": 1}
    assert set(sampler.draw(0, 0, IDS, [188] * 400)[:, 2, 0].tolist()) == {0, 142}


def test_draws_are_a_function_of_seed_epoch_and_sample():
    sampler = ClipSampler(**TINY)
    whole = sampler.draw(1, 2, IDS, [90] * 400)
    some = torch.tensor([7, 399, 3])
    assert torch.equal(sampler.draw(1, 2, some, [90] * 3), whole[some])
    for other in (sampler.draw(0, 2, IDS, [90] * 400), sampler.draw(1, 3, IDS, [90] * 400)):
        assert (other[:, 0, 0] == whole[:, 0, 0]).float().mean() < 0.1


def test_places_are_drawn_evenly():
    sampler = ClipSampler(**TINY, short="drop-rank")
    ids = torch.arange(6000)
    drawn = sampler.draw(0, 0, ids, [15] * 6000)  # no room for a video positive
    queries = Counter(drawn[:, 0, 0].tolist())
    assert set(queries) == set(range(11)) - {5}  # from where a shot fits on neither side
    assert max(abs(count - 600) for count in queries.values()) < 4 * 600**0.5
    drawn = sampler.draw(0, 0, ids, [40] * 6000)
    middle = drawn[(drawn[:, 0, 0] >= 6) & (drawn[:, 0, 0] <= 12)]
    after = (middle[:, 1, 0] > middle[:, 0, 0]).float().mean()
    assert abs(after - 0.5) < 0.06


@pytest.mark.parametrize("length", range(1, 30))
def test_short_videos(length):
    """Lengths that a query (5), with its shot (11), with a video positive (20) needs; 3, 6 and 13 at stride 1."""
    strides = {s: naive(length, frames=3, stride=s, gap=4) for s in (1, 2)}
    sampler = {short: ClipSampler(**TINY, short=short) for short in ("leave-out", "shrink-stride", "drop-rank")}
    whole = length >= 20
    assert bool(strides[2][2]) == whole
    assert sampler["leave-out"].plan(length) == ((2, True, True) if whole else (0, False, False))
    shrunk = (2, True, True) if whole else (1, True, True) if strides[1][2] else (0, False, False)
    assert bool(strides[1][2]) == (length >= 13)
    assert sampler["shrink-stride"].plan(length) == shrunk
    dropped = (2, length >= 11, whole) if length >= 5 else (0, False, False)
    assert sampler["drop-rank"].plan(length) == dropped
    for each in sampler.values():
        assert each.fits([length]).tolist() == [each.plan(length).stride > 0]
        if each.plan(length).stride:
            drawn = each.draw(0, 0, IDS[:50], [length] * 50)
            assert drawn.max() < length
            assert (drawn[:, 0].diff(dim=1) == each.plan(length).stride).all()
        else:
            with pytest.raises(DataError, match=f"sample 0 has {length} frames, too few for clips"):
                each.draw(0, 0, IDS[:1], [length])


def test_counts_per_outcome():
    lengths = torch.tensor([20, 19, 13, 12, 11, 10, 5, 4])
    counts = {
        "leave-out": [1, 0, 0, 0, 7],
        "shrink-stride": [1, 2, 0, 0, 5],
        "drop-rank": [1, 0, 4, 2, 1],
    }
    for short, expected in counts.items():
        assert list(ClipSampler(**TINY, short=short).report(lengths).values()) == expected
    ranges = [None, ((0, 6), (7, 19))] + [None] * 6
    assert list(ClipSampler(**TINY, short="drop-rank").report(lengths, ranges).values()) == [1, 0, 4, 2, 1]


def test_ranges_beyond_the_end_of_a_video():
    sampler = ClipSampler(**TINY, short="drop-rank")
    assert sampler.plan(10, ((20, 90),)).stride == 0
    assert sampler.plan(30, ((20, 90),)) == (2, False, False)
    assert sampler.draw(0, 0, IDS, [30] * 400, [((20, 90),)] * 400).max() == 29


def test_test_clips_are_spread_evenly():
    sampler = ClipSampler(frames=4, stride=3)
    assert sampler.test_positions(10, 1).tolist() == [[0, 3, 6, 9]]
    assert sampler.test_positions(30, 3)[:, 0].tolist() == [0, 10, 20]
    assert sampler.test_positions(30, 1)[:, 0].tolist() == [10]
    assert sampler.test_positions(9, 2).tolist() == [[0, 2, 4, 6], [2, 4, 6, 8]]
    assert sampler.test_positions(4, 2).tolist() == [[0, 1, 2, 3]] * 2
    assert sampler.test_positions(2, 2).tolist() == [[0, 1, 1, 1]] * 2
    assert sampler.test_positions(40, 2, ((0, 12), (25, 36))).tolist() == [[0, 3, 6, 9], [26, 29, 32, 35]]
    assert sampler.test_positions(40, 1, ((0, 2), (25, 28))).tolist() == [[25, 26, 27, 27]]
    with pytest.raises(ShapeError, match="got 0 frames and 1 clips"):
        sampler.test_positions(0, 1)


def test_settings_that_make_no_sense():
    for wrong in ({"frames": 0}, {"stride": 0}, {"gap": -1}):
        with pytest.raises(ConfigError, match="a clip needs at least one frame"):
            ClipSampler(**wrong)
    with pytest.raises(ConfigError, match="short must be one of leave-out, shrink-stride, drop-rank; got 'drop'"):
        ClipSampler(short="drop")
    with pytest.raises(ShapeError, match=r"one length .* per sample: got 2 for 1 samples"):
        ClipSampler().draw(0, 0, torch.tensor([0]), [300, 300])


# Pixels ---------------------------------------------------------------------------------------------------------------

SAMPLER = ClipSampler(frames=4, stride=3, gap=10, short="drop-rank")  # 23 + 10 + 10 frames for all


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Three videos long enough for all positives, one of them with ranges; one without video positive, one without shot."""
    folder = tmp_path_factory.mktemp("films")
    times = list(itertools.accumulate([40, 80, 20, 130] * 25))
    paths = (
        write_video(folder / "0.mp4", 100),
        write_video(folder / "1.mkv", 90, times=times),
        write_video(folder / "2.avi", 60, codec="mpeg4"),
        write_video(folder / "3.mp4", 30),
        write_video(folder / "4.mp4", 12, width=48, height=64),
        write_video(folder / "5.mp4", 5),
    )
    ranges = (None, ((5, 30), (50, 65)), None, None, None, None)
    videos = VideoList(paths, torch.arange(6), tuple("abcdef"), ranges, source=str(folder))
    return build_index(videos, None, short_side=48)


def whole_frames(size=48):
    """A view that takes the whole frame, so that its number can be read in it."""
    return PixelViews(
        size=size, crop_scale=(1, 1), crop_ratio=(0.75, 4 / 3), jitter=None, grayscale=0, mean=[0] * 3, std=[1] * 3
    )


def videos_of(index, views):
    return Videos(long_enough(index, SAMPLER), SAMPLER, views, {})


def clips_of(videos, epoch, sample, numbers=(0, 1, 2, 3)):
    """The clips of one sample's views under their crops, and which of them are there."""
    made = videos.load(torch.tensor([sample]), numbers, seed=3, epoch=epoch)
    return made.crops[0], made.present[0]


def numbers_in(clip):
    return read_numbers(clip.permute(1, 2, 3, 0).numpy())


def test_too_short_videos_are_left_out(index):
    usable = long_enough(index, SAMPLER)
    assert usable.labels.tolist() == [0, 1, 2, 3, 4]
    assert [(path.name, reason) for path, reason in usable.left_out] == [("5.mp4", "too short: 5 frames")]
    views = PixelViews(size=16, mean=[0.5] * 3, std=[0.25] * 3)
    found = [Videos(videos, sampler, views, outcomes).fingerprint for videos, sampler, outcomes in (
        (index, SAMPLER, {}), (usable, SAMPLER, {}), (usable, SAMPLER, {"whole": 5}), (usable, ClipSampler(), {"whole": 5}),
        (usable, ClipSampler(), {}),
    )]  # fmt: skip
    assert found[1] == found[4]  # what draws clips matters in training alone
    assert len(set(found)) == 4
    with pytest.raises(DataError, match=r"none of the 6 videos of .* is long enough for ClipSampler"):
        long_enough(index, ClipSampler())


def test_every_epoch_has_crops_of_its_own(index):
    views = PixelViews(size=16, mean=[0.5] * 3, std=[0.25] * 3)
    videos, ids = videos_of(index, views), torch.arange(5)
    sides = [torch.tensor([videos._side(row)[side] for row in range(5)]) for side in (0, 1)]
    drawn = [videos.load(ids, (1,), seed=3, epoch=epoch).parameters[0].boxes for epoch in range(3)]
    for epoch, boxes in enumerate(drawn):
        assert boxes.equal(views.draw_parameters(*sides, seed=3, epoch=epoch, view=1, sample_ids=ids).boxes)
    assert not drawn[0].equal(drawn[1])


@pytest.mark.parametrize("epoch", range(4))
def test_clips_hold_the_frames_that_were_drawn(index, epoch, monkeypatch):
    monkeypatch.setattr(PixelViews, "draw_parameters", whole_boxes)
    videos = videos_of(index, whole_frames())
    assert len(videos) == 5
    for sample in range(5):
        pixels, present = clips_of(videos, epoch, sample)
        assert (pixels.shape, pixels.dtype) == ((4, 3, 4, 48, 48), torch.uint8)
        assert present.tolist() == [True, True, sample < 4, sample < 3]
        ranges = index.ranges[sample : sample + 1]
        drawn = SAMPLER.draw(3, epoch, torch.tensor([sample]), index.lengths[sample : sample + 1], ranges)[0].tolist()
        for clip, expected in zip(pixels, [drawn[0], *drawn], strict=True):
            if expected[0] >= 0:
                assert numbers_in(clip) == expected
            else:
                assert not clip.any()


def whole_boxes(self, heights, widths, *, seed, epoch, view, sample_ids):
    class Drawn:
        boxes = torch.stack([torch.zeros_like(heights), torch.zeros_like(heights), heights, widths], dim=1)

    return Drawn


def test_a_crop_is_that_of_its_view(index):
    """The views make the same crops on whole frames, bilinear too; crops are enlarged here, so no filter differs."""
    views = PixelViews(
        size=96, crop_scale=(0.2, 0.9), flip=0, jitter=None, grayscale=0, mean=[0] * 3, std=[1 / 255] * 3
    )
    pixels, _ = clips_of(videos_of(index, views), 1, 0)
    drawn = SAMPLER.draw(3, 1, torch.tensor([0]), [100])[0]
    for view, clip in enumerate((0, 0, 1, 2)):
        order = drawn[clip].tolist()
        frames = read_frames(index.videos.paths[0], index.tracks[0], order, short_side=48)
        batch = torch.from_numpy(frames).permute(3, 0, 1, 2)[None]
        expected = views(batch, seed=3, epoch=1, view=view, sample_ids=torch.tensor([0]))[0]
        assert (pixels[view].float() - expected).abs().max() <= 1.5
    assert not torch.equal(pixels[0], pixels[1])


def test_one_pass_serves_all_positives(index, monkeypatch):
    asked = []

    def told(path, track, wanted, *, short_side):
        asked.append(wanted)
        return read_frames(path, track, wanted, short_side=short_side)

    monkeypatch.setattr(videos_module, "read_frames", told)
    videos = videos_of(index, whole_frames())
    clips_of(videos, 0, 0)
    assert [len(wanted) for wanted in asked] == [3 * 4]  # the frame positive has the query's frames
    clips_of(videos, 0, 0, (0, 1))
    assert len(asked[1]) == 4
    pixels, present = clips_of(videos, 0, 0, (3, 0))
    assert len(asked[2]) == 8
    assert pixels.shape[0] == len(present) == 2


def test_a_video_has_four_views_and_no_more():
    """0 query, 1 frame, 2 shot, 3 video; which views are made follows from the ranks, so a recipe is refused."""
    assert load_recipe("video/rince-uni").view_numbers == (0, 1, 2, 3)
    with pytest.raises(ConfigError, match="ranks of 4 keys of a sample's own need data that has them"):
        load_recipe("video/rince-uni", ["ranks={kind: given, own: [1, 2, 3, 3]}"])


def test_any_number_of_workers_gives_the_same_clips(index):
    videos = videos_of(index, whole_frames(24))

    def load(batch):
        epoch, ids = batch
        return videos.load(torch.tensor(ids, dtype=torch.int64), (0, 1, 2, 3), seed=1, epoch=epoch)

    batches = [(0, (4, 0, 2)), (1, (4, 0, 2)), (2, (1, 3)), (3, ())]  # the last of several processes may get none
    runs = [list(made_ahead(load, batches, workers)) for workers in (0, 1, 2)]
    assert runs[0][0].crops.shape == (3, 4, 3, 4, 24, 24)
    assert runs[0][0].present.shape == (3, 4)
    assert [tuple(part.shape) for part in (runs[0][3].crops, runs[0][3].present)] == [(0, 4, 3, 4, 24, 24), (0, 4)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert torch.equal(one.crops, other.crops)
            assert torch.equal(one.present, other.present)


def test_a_frame_that_breaks_during_training_does_not_stop_it(tmp_path):
    path = write_video(tmp_path / "0.mp4", 60, gop=1, b_frames=0)
    index = build_index(VideoList((path,), torch.tensor([0]), ("a",)), None, short_side=48)
    videos = Videos(index, SAMPLER, whole_frames(), {})
    before, _ = clips_of(videos, 0, 0)
    data = bytearray(path.read_bytes())
    number = int(SAMPLER.draw(3, 0, torch.tensor([0]), [60])[0, 1, 2])
    start, size = packet_places(path)[number]
    data[start : start + size] = bytes(size)
    path.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="0.mp4' has frames that do not decode"):
        after, present = clips_of(videos, 0, 0)
    assert present.all()
    changed = [
        (view, frame)
        for view, frame in np.ndindex(4, 4)
        if not torch.equal(after[view, :, frame], before[view, :, frame])
    ]
    assert changed == [(2, 2)]


def test_clips_for_testing(index):
    clips = read_test_clips(index, 0, frames=4, stride=3, clips=3, size=24)
    assert (clips.shape, clips.dtype) == ((3, 3, 4, 24, 24), torch.uint8)
    frames = read_frames(index.videos.paths[0], index.tracks[0], [0, 3, 6, 9], short_side=24)
    assert frames.shape == (4, 24, 32, 3)
    assert torch.equal(clips[0], torch.from_numpy(frames[:, :, 4:28]).permute(3, 0, 1, 2))
    portrait = read_test_clips(index, 4, frames=4, stride=3, clips=2, size=24)
    assert portrait.shape == (2, 3, 4, 24, 24)
    in_ranges = read_test_clips(index, 1, frames=4, stride=3, clips=2, size=48)
    expected = read_frames(index.videos.paths[1], index.tracks[1], [5, 8, 11, 14], short_side=48)
    assert torch.equal(in_ranges[0], torch.from_numpy(expected[:, :, 8:56]).permute(3, 0, 1, 2))
    assert read_test_clips(index, 5, frames=16, stride=3, clips=1, size=24).shape == (1, 3, 16, 24, 24)


def test_a_strip_of_a_video(index):
    strip = read_strip(index, 0, frames=4, short_side=24)
    assert (strip.shape, strip.dtype) == ((4, 3, 24, 32), torch.uint8)
    assert read_numbers(strip.permute(0, 2, 3, 1).numpy()) == [12, 37, 62, 87]
    assert len(read_strip(index, 5, frames=9, short_side=24)) == 5
