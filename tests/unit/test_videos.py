"""Videos from folders, manifests and official lists; the index of them; single frames by number."""

import itertools
import random
import struct
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from oracles.coded_videos import coded_frame, packet_places, read_numbers, write_packed_avi, write_video
from rince import ConfigError, DataError
from rince.sources import video_file, video_index, videos
from rince.sources.clips import ClipSampler
from rince.sources.video_file import Track, inspect, pack, read_frames, scaled, unpack
from rince.sources.video_index import VideoIndex, build_index
from rince.sources.video_layouts import VideoList, list_videos
from rince.sources.videos import Videos
from rince.views.pixels import PixelViews

IRREGULAR = list(itertools.accumulate(random.Random(0).choices([20, 40, 90, 200], k=100)))
OPEN_GOP = {"preset": "medium", "x264-params": "bframes=3:open-gop=1:keyint=20:min-keyint=20:scenecut=0"}
KINDS = {
    "plain.mp4": {},
    "plain.mkv": {},  # its header has no number of frames
    "no-b.avi": {"codec": "mpeg4", "b_frames": 0},
    "b.avi": {"codec": "mpeg4"},
    "irregular.mp4": {"times": IRREGULAR},
    "irregular.mkv": {"times": IRREGULAR},
    "raw.h264": {"format": "h264"},  # has no times at all
    "portrait.mp4": {"width": 48, "height": 64},
    "one-keyframe.mp4": {"gop": 250},
    "all-keyframes.mp4": {"gop": 1, "b_frames": 0},
    "open-gop.mp4": {"options": OPEN_GOP},
    "stream.ts": {},
    "packed.avi": None,
}
NOT_SEEKABLE = ("raw.h264", "stream.ts", "packed.avi")  # no times; no way to find keyframes; wrong times


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every kind of video, 100 frames of each."""
    folder = tmp_path_factory.mktemp("videos")
    return {
        name: write_packed_avi(folder / name, 100) if options is None else write_video(folder / name, 100, **options)
        for name, options in KINDS.items()
    }


@pytest.mark.parametrize("name", KINDS)
def test_every_frame_is_found_by_its_number(made, name, monkeypatch):
    def never(*_):
        raise AssertionError("a frame was missed after seeking")

    monkeypatch.setattr(video_file, "_nearest", never)
    track = inspect(made[name])
    assert track.frames == 100
    assert (track.width, track.height) == ((48, 64) if name == "portrait.mp4" else (64, 48))
    assert (track.times == "") == (name in NOT_SEEKABLE)
    generator = random.Random(1)
    for count in (1, 1, 1, 2, 5, 16, 40, 100):
        wanted = sorted(generator.sample(range(100), count))
        frames = read_frames(made[name], track, wanted, short_side=48)
        assert read_numbers(frames) == wanted
        assert frames.shape == ((count, 64, 48, 3) if name == "portrait.mp4" else (count, 48, 64, 3))


@pytest.mark.parametrize("name", ["plain.mp4", "irregular.mp4", "open-gop.mp4", "b.avi"])
def test_frames_are_those_of_a_whole_decoding_to_the_bit(made, name):
    track = inspect(made[name])
    with av.open(str(made[name])) as container:
        container.streams.video[0].codec_context.thread_count = 1
        whole = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    for wanted in ([0, 50, 99], [17, 18, 19], list(range(1, 100, 7))):
        assert np.array_equal(read_frames(made[name], track, wanted, short_side=48), [whole[n] for n in wanted])


@pytest.mark.parametrize("name", ["plain.mp4", "irregular.mp4", "irregular.mkv"])
def test_no_more_is_decoded_than_is_needed(made, name, monkeypatch):
    given, plain = [], video_file._frames

    def counted(stream, packet):
        given.append(packet.pts)
        return plain(stream, packet)

    monkeypatch.setattr(video_file, "_frames", counted)
    track = inspect(made[name])  # keyframes at 0, 12, …, 96; two B-frames between others
    for first in range(2, 70):
        given.clear()
        read_frames(made[name], track, [first, first + 1, first + 25], short_side=48)
        # From the keyframes before; the decoder holds back a few frames before it gives the first.
        needed = [*range(first // 12 * 12, first + 2), *range((first + 25) // 12 * 12, first + 26)]
        assert len(given) == len(set(given)) <= len(needed) + 2 * 4, first


def test_times_of_frames_tell_the_rate(made):
    assert inspect(made["plain.mp4"]).fps == pytest.approx(25)
    assert inspect(made["irregular.mkv"]).fps == pytest.approx(99_000 / (IRREGULAR[-1] - IRREGULAR[0]))
    assert unpack(inspect(made["irregular.mkv"]).times) == IRREGULAR
    assert unpack(inspect(made["one-keyframe.mp4"]).keyframes) == [0]
    assert unpack(inspect(made["open-gop.mp4"]).keyframes) == [0, 20, 40, 60, 80]


@pytest.mark.parametrize("values", [[], [7], [-3, 0, 3, 6, 7], IRREGULAR])
def test_packed_numbers_come_back(values):
    assert unpack(pack(values)) == values
    assert len(pack(range(0, 10**6, 512))) < 20


@pytest.mark.parametrize("upright", [False, True])
def test_of_a_long_strip_the_middle_is_seen_and_the_rest_never_scaled(tmp_path, upright):
    """Scaled whole, a frame of 2 × 10,000 pixels would take 768 MB at a short side of 160."""
    assert scaled(10_000, 2, 160) == (8 * 160, 160)
    width, height = (48, 1024) if upright else (1024, 48)
    path = write_video(tmp_path / "strip.mp4", 3, first=1365, width=width, height=height, options={"qp": "0"})
    track = inspect(path)
    assert (track.width, track.height) == (width, height)
    frames = read_frames(path, track, [0, 2], short_side=48)
    for frame, number in zip(frames, (1365, 1367), strict=True):
        whole = coded_frame(number, width, height)
        seen = whole[320:704] if upright else whole[:, 320:704]
        assert np.abs(frame.astype(int) - seen).mean() < 3


def test_a_frame_is_scaled_to_its_short_side(made):
    assert scaled(320, 240, 128) == (171, 128)
    assert scaled(240, 320, 128) == (128, 171)
    assert scaled(7, 1, 1) == (7, 1)
    frames = read_frames(made["portrait.mp4"], inspect(made["portrait.mp4"]), [33], short_side=24)
    assert frames.shape == (1, 32, 24, 3)
    assert read_numbers(frames) == [33]


@pytest.mark.parametrize(("matrix", "turns"), [((0, 1, -1, 0), -1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)])
def test_a_film_held_sideways_is_set_upright(made, tmp_path, matrix, turns):
    data = bytearray(made["plain.mp4"].read_bytes())
    a, b, c, d = (value << 16 for value in matrix)
    place = data.index(b"tkhd") + 4 + 40  # the matrix of the track header, ISO 14496-12
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    (path := tmp_path / "turned.mp4").write_bytes(data)
    track, plain = inspect(path), inspect(made["plain.mp4"])
    assert (track.width, track.height) == ((48, 64) if turns % 2 else (64, 48))
    upright = read_frames(path, track, [5, 50], short_side=48)
    stored = read_frames(made["plain.mp4"], plain, [5, 50], short_side=48)
    assert np.array_equal(upright, np.rot90(stored, turns, axes=(1, 2)))  # to the left, as numpy counts


def test_the_nearest_frame_stands_in_for_a_broken_one(made, tmp_path):
    data = bytearray(made["all-keyframes.mp4"].read_bytes())
    for start, size in packet_places(made["all-keyframes.mp4"])[10:13]:
        data[start : start + size] = bytes(size)
    (path := tmp_path / "broken.mp4").write_bytes(data)
    track = inspect(path)
    assert track.frames == 100
    with pytest.warns(RuntimeWarning, match=r"broken.mp4' has frames that do not decode"):
        frames = read_frames(path, track, [9, 10, 11, 12, 13], short_side=48)
    assert read_numbers(frames) == [9, 9, 9, 13, 13]
    with pytest.warns(RuntimeWarning, match="do not decode"):
        assert read_numbers(read_frames(path, track, [12], short_side=48)) == [13]
    assert read_numbers(read_frames(path, track, [13, 60], short_side=48)) == [13, 60]  # and no warning


def test_a_file_that_breaks_off_after_it_was_indexed(made, tmp_path):
    data = made["plain.mkv"].read_bytes()
    (path := tmp_path / "film.mkv").write_bytes(data)
    track = inspect(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.warns(RuntimeWarning, match="do not decode"):
        numbers = read_numbers(read_frames(path, track, [5, 98, 99], short_side=48))
    assert numbers[0] == 5
    assert 20 < numbers[1] == numbers[2] < 80
    path.unlink()
    with pytest.raises(DataError, match=r"film.mkv' cannot be read any more \(No such file or directory\)"):
        read_frames(path, track, [5], short_side=48)


@pytest.mark.parametrize("wanted", [[], [-1, 4], [4, 100], [4, 4], [5, 4]])
def test_frames_that_make_no_sense(made, wanted):
    with pytest.raises(DataError, match="must be increasing numbers from 0 to 99"):
        read_frames(made["plain.mp4"], inspect(made["plain.mp4"]), wanted, short_side=48)


def test_without_pyav_one_says_what_to_install(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigError, match=r'videos need PyAV: pip install "rince\[video\]"'):
        build_index(listed(made["plain.mp4"]), None, short_side=48)


# The index ------------------------------------------------------------------------------------------------------------


def listed(*paths, **options):
    return VideoList(tuple(paths), torch.zeros(len(paths), dtype=torch.int64), ("a",), **options)


@pytest.fixture
def shelf(made, tmp_path):
    """Four good videos and five bad ones."""
    whole = made["plain.mp4"].read_bytes()
    contents = {
        "0.mp4": whole,
        "1.mp4": b"",
        "2.mp4": b"this is a text\n" * 100,
        "3.mkv": made["plain.mkv"].read_bytes()[:-900],
        "4.mp4": whole[: len(whole) // 2],  # what is in it is told at the end of the file
        "5.mp4": b"ffconcat version 1.0\nfile 0.mp4\n",  # names another file, which FFmpeg would read
        "6.mp4": made["irregular.mp4"].read_bytes(),
        "7.mp4": bytes(1000),
        "8.avi": made["b.avi"].read_bytes(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return listed(*(tmp_path / name for name in contents))


def test_bad_files_are_left_out_with_the_reason(shelf):
    done = []
    index = build_index(shelf, None, short_side=32, progress=lambda *state: done.append(state))
    assert [path.name for path in index.videos.paths] == ["0.mp4", "3.mkv", "6.mp4", "8.avi"]
    assert index.lengths[[0, 2, 3]].tolist() == [100, 100, 100]
    assert 30 < index.lengths[1] < 100
    reasons = {path.name: reason for path, reason in index.left_out}
    assert list(reasons) == ["1.mp4", "2.mp4", "4.mp4", "5.mp4", "7.mp4"]
    assert reasons["1.mp4"] == "the file is empty"
    assert all("Invalid data" in reasons[name] for name in ("2.mp4", "4.mp4", "7.mp4"))
    assert reasons["5.mp4"] == "Invalid argument"
    assert done == [(n, 9) for n in range(1, 10)]
    last = int(index.lengths[1]) - 1
    frames = read_frames(shelf.paths[3], index.tracks[1], [0, last], short_side=48)
    assert read_numbers(frames) == [0, last]


def test_a_file_with_sound_alone_and_one_that_is_gone(tmp_path, made):
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    index = build_index(listed(tmp_path / "sound.mp4", tmp_path / "gone.mp4", made["plain.mp4"]), None, short_side=9)
    assert [reason for _, reason in index.left_out] == ["it has no video stream", "No such file or directory"]
    with pytest.raises(DataError, match=r"none of the 1 videos of 'videos' can be read; the first, .*gone.mp4'"):
        build_index(listed(tmp_path / "gone.mp4"), None, short_side=9)
    with pytest.raises(ConfigError, match="short_side must be at least one pixel, got 0"):
        build_index(listed(made["plain.mp4"]), None, short_side=0)


@pytest.fixture
def looked(monkeypatch):
    """Names of the files that were looked into."""
    names = []

    def inspect_and_tell(path):
        if names[-1:] != [path.name]:  # a second time, for what did not read the first time
            names.append(path.name)
        return inspect(path)

    monkeypatch.setattr(video_index, "inspect", inspect_and_tell)
    return names


def test_building_goes_on_where_it_was_stopped(shelf, tmp_path, looked):
    cache = tmp_path / "new" / "index.jsonl"

    def killed(done, _):
        assert len(cache.read_text().splitlines()) == done  # on disk at once
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(shelf, cache, short_side=32, progress=killed)
    assert looked == ["0.mp4", "2.mp4", "3.mkv"]  # the empty file is not opened
    cache.write_bytes(cache.read_bytes()[:-9])  # the kill came while the last line was written
    looked.clear()
    index = build_index(shelf, cache, short_side=32)
    assert looked == ["3.mkv", "4.mp4", "5.mp4", "6.mp4", "7.mp4", "8.avi"]
    looked.clear()
    again = build_index(shelf, cache, short_side=32)
    assert looked == []
    fresh = build_index(shelf, None, short_side=32)
    assert fresh.tracks == index.tracks == again.tracks
    assert fresh.left_out == index.left_out == again.left_out


@pytest.mark.parametrize("refuses", ["inspect", "file_digest", "stat"])
def test_what_the_system_did_not_give_is_not_remembered_as_damage(refuses, made, tmp_path, monkeypatch):
    path, cache = tmp_path / "film.mp4", tmp_path / "index.jsonl"
    path.write_bytes(made["plain.mp4"].read_bytes() if refuses != "file_digest" else b"no video")
    place = Path if refuses == "stat" else video_index
    real, asked = getattr(place, refuses), []

    def refusing(given, *more, **others):
        if given.name == "film.mp4" and not asked:
            asked.append(given)
            raise DataError("Input/output error") if refuses == "inspect" else OSError(5, "Input/output error")
        return real(given, *more, **others)

    monkeypatch.setattr(place, refuses, refusing)
    if refuses != "inspect":
        with pytest.raises(DataError, match=r"film.mp4' cannot be read: Input/output error; try again"):
            build_index(listed(path), cache, short_side=32)
    path.write_bytes(made["plain.mp4"].read_bytes())
    assert build_index(listed(path), cache, short_side=32).left_out == ()


def test_a_file_that_has_changed_is_looked_into_again(shelf, tmp_path, looked, made):
    cache = tmp_path / "index.jsonl"
    build_index(shelf, cache, short_side=32)
    looked.clear()
    shelf.paths[1].write_bytes(made["portrait.mp4"].read_bytes())
    index = build_index(shelf, cache, short_side=32)
    assert looked == ["1.mp4"]
    assert index.tracks[1].height == 64
    cache.write_text("no JSON\n" + '{"path": "a"}\n' + '{"path": "b", "size": 1, "changed": 1, "track": {"x": 1}}\n')
    looked.clear()
    assert build_index(shelf, cache, short_side=32).tracks == index.tracks
    assert len(looked) == 9


def test_the_fingerprint_sees_names_labels_content_and_ranges(tmp_path):
    def fingerprint(name="a/1.mp4", label=0, content=b"frames", ranges=None, names=("a", "b"), source="x"):
        path = tmp_path / source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        rows = VideoList((path,), torch.tensor([label]), names, ranges, (), str(tmp_path / source))
        index = VideoIndex(rows, (Track(100, 25.0, 64, 48),), (), 32)
        return Videos(index, ClipSampler(), PixelViews(size=16, mean=[0.5], std=[0.5]), {}).fingerprint

    plain = fingerprint()
    assert fingerprint(source="y") == fingerprint() == plain  # a copy elsewhere, or written again, is the same data
    others = {
        fingerprint("a/2.mp4"), fingerprint(label=1), fingerprint(content=b"framed"), fingerprint(ranges=(((0, 9),),)),
        fingerprint(names=("a", "c")),
    }  # fmt: skip
    assert len(others | {plain}) == 6


# Layouts --------------------------------------------------------------------------------------------------------------


def put(root, *names):
    """Files that need not be videos: listing opens none."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def told(found):
    """File names and the names of their classes."""
    return [(path.name, found.class_names[label]) for path, label in zip(found.paths, found.labels, strict=True)]


def test_class_folders(tmp_path):
    put(tmp_path, "b/2.avi", "a/1.MP4", "a/notes.txt", "a/.hidden.mp4", ".git/c/3.mp4")
    found = list_videos(tmp_path, "train")
    assert told(found) == [("1.MP4", "a"), ("2.avi", "b")]
    assert (found.labels.dtype, found.ranges, found.absent) == (torch.int64, None, ())
    with pytest.raises(DataError, match="has no split 'test'; there are 'train'"):
        list_videos(tmp_path, "test")


def test_split_folders_share_their_classes(tmp_path):
    put(tmp_path, "train/b/1.mp4", "Validate/c/2.mp4", "test/a/deep/3.mp4")
    assert told(list_videos(tmp_path, "train")) == [("1.mp4", "b")]
    assert told(list_videos(tmp_path, "train+validation")) == [("2.mp4", "c"), ("1.mp4", "b")]  # as they are listed
    assert list_videos(tmp_path, "test").class_names == ("a/deep", "b", "c")
    put(tmp_path, "val/c/2.mp4")
    with pytest.raises(DataError, match="has two folders for split 'val', 'Validate' and 'val'"):
        list_videos(tmp_path, "train")


def test_videos_without_class_folders_are_unlabelled(tmp_path):
    put(tmp_path, "2.mp4", "1.mp4")
    assert told(list_videos(tmp_path, "train")) == [("1.mp4", "unlabelled"), ("2.mp4", "unlabelled")]
    put(tmp_path, "a/3.mp4")
    with pytest.raises(DataError, match=r"has videos in class folders \(.*3.mp4\) and in none"):
        list_videos(tmp_path, "train")


def test_links_are_followed_but_not_in_circles(tmp_path):
    put(tmp_path, "elsewhere/1.mp4", "data/b/2.mp4")
    (tmp_path / "data" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "b" / "up").symlink_to(tmp_path / "data")
    assert told(list_videos(tmp_path / "data", "train")) == [("1.mp4", "a"), ("2.mp4", "b")]


def test_a_manifest(tmp_path):
    put(tmp_path, "v/1.avi", "v/2.avi", "v/3.avi")
    text = (
        "split,path,person,label,action_ranges\n"
        "train,v/1.avi,7,run,1-95 96-185 200-210\n"
        "Test,v/2.avi,8,jog,\n"
        'training,v/3.avi,9,box,"270-332, 194-264; 260-268"\n'
        "train,v/4.avi,9,box,\n"
    )
    (tmp_path / "manifest.csv").write_text("\ufeff" + text)
    found = list_videos(tmp_path, "train")
    assert told(found) == [("1.avi", "run"), ("3.avi", "box")]
    assert found.class_names == ("box", "jog", "run")
    assert found.ranges == (((0, 185), (199, 210)), ((193, 268), (269, 332)))
    assert found.absent == ("4.avi",)
    assert list_videos(tmp_path / "manifest.csv", "test").ranges is None
    both = list_videos(tmp_path, "train+test")
    assert both.ranges[1] is None
    assert told(both.subset([2, 0])) == [("3.avi", "box"), ("1.avi", "run")]
    assert both.subset([2, 0]).ranges == (found.ranges[1], found.ranges[0])


def test_groups_are_those_of_the_manifest_or_of_the_names_of_ucf101(tmp_path):
    put(tmp_path / "listed", *(f"{number}.avi" for number in "12345"))
    rows = "1.avi,run,train,7", "2.avi,run,train,", "3.avi,box,train,7", "4.avi,box,test,b", "5.avi,run,train,7"
    (tmp_path / "listed" / "manifest.csv").write_text("\n".join(["path,label,split,group", *rows]))
    train = list_videos(tmp_path / "listed", "train")
    assert train.groups == ("run/7", "", "box/7", "run/7")  # a group is one within its class
    assert train.subset([3, 1]).groups == ("run/7", "")
    assert list_videos(tmp_path / "listed", "test").groups == ("box/b",)

    put(tmp_path / "named", "Biking/v_Biking_g01_c01.avi", "Biking/v_Biking_g10_c01.avi", "Biking/other.avi")
    assert list_videos(tmp_path / "named", "train").groups == ("", "Biking/1", "Biking/10")
    assert list_videos(put(tmp_path / "plain", "a/1.mp4"), "train").groups is None


def test_a_video_without_a_group_is_one_of_its_own(made):
    paths = (made["plain.mp4"], made["b.avi"], made["stream.ts"])
    listed = VideoList(paths, torch.arange(3), ("a", "b", "c"), groups=("a/1", "", "a/1"))
    videos = Videos(build_index(listed, None, short_side=24), ClipSampler(4, 2, 5), None, {})
    assert videos.sample_groups == ("a/1", "b.avi", "a/1")


def test_labels_that_are_numbers_are_in_the_order_of_numbers(tmp_path):
    put(tmp_path, "1.avi")
    (tmp_path / "manifest.csv").write_text("path,label,split\n1.avi,10,train\n1.avi,9,train\n")
    found = list_videos(tmp_path, "train")
    assert (found.class_names, found.labels.tolist()) == (("9", "10"), [1, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n", "has no column 'split'; its columns are path, label"),
        ("path,label,split\n1.avi,a,\n", "line 2 of .* lacks a path, a label or a split"),
        ("path,label,split,ranges\n1.avi,a,train,5-3\n", "line 2 of .* has the frame range '5-3'"),
        ("path,label,split,ranges\n1.avi,a,train,0-3\n", "has the frame range '0-3'; ranges are such as '1-95"),
        ("path,label,split\n9.avi,a,train\n", "none of the 1 videos that split 'train' of .* lists is there"),
        ("path,label,split\n", "has no split 'train'; there are none: nothing is listed, or no file ends in .avi"),
    ],
)
def test_bad_manifests(tmp_path, text, message):
    put(tmp_path, "1.avi")
    (tmp_path / "manifest.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        list_videos(tmp_path, "train")


@pytest.mark.parametrize("beside", [False, True])
def test_ucf101(tmp_path, beside):
    root = put(tmp_path / "UCF-101", "Biking/v_Biking_g01_c01.avi", "Archery/v_Archery_g08_c02.avi", "Diving/v.avi")
    splits = put(root.parent if beside else root, "ucfTrainTestlist/x") / "ucfTrainTestlist"
    (splits / "classInd.txt").write_text("1 Archery\n2 Biking\n3 Diving\n\n")
    (splits / "trainlist01.txt").write_text("Archery/v_Archery_g08_c02.avi 1\nDiving/v_gone.avi 3\n")
    (splits / "testlist01.txt").write_text("Biking/v_Biking_g01_c01.avi\n")
    (splits / "trainlist02.txt").write_text("Biking/v_Biking_g01_c01.avi 2\n")
    (splits / "testlist02.txt").write_text("Diving/v.avi\n")
    train, test = list_videos(root, "train"), list_videos(root, "test", layout="ucf101")
    assert train.class_names == test.class_names == ("Archery", "Biking", "Diving")
    assert told(train) == [("v_Archery_g08_c02.avi", "Archery")]
    assert train.absent == ("v_gone.avi",)
    assert told(test) == [("v_Biking_g01_c01.avi", "Biking")]
    assert told(list_videos(root, "test", split_number=2, splits=splits)) == [("v.avi", "Diving")]
    with pytest.raises(DataError, match=r"has no 'trainlist03.txt'"):
        list_videos(root, "train", split_number=3)
    with pytest.raises(DataError, match="has no split 'val'; there are 'test', 'train'"):
        list_videos(root, "val")
    joined = list_videos(root, "train+val")  # there is no such split, and what is there is enough
    assert told(joined) == told(train)
    assert joined.lacking == ("val",)


def test_hmdb51(tmp_path):
    root = put(tmp_path / "hmdb", "wave/a b.avi", "wave/2.avi", "wave/3.avi", "brush_hair/4.avi")
    splits = put(tmp_path, "lists/x") / "lists"
    (splits / "wave_test_split1.txt").write_text("a b.avi 1 \n2.avi 2 \n3.avi 0 \n")
    (splits / "brush_hair_test_split1.txt").write_text("4.avi 1\n")
    found = list_videos(root, "train", splits=splits)
    assert told(found) == [("4.avi", "brush_hair"), ("a b.avi", "wave")]
    assert told(list_videos(root, "test", splits=splits)) == [("2.avi", "wave")]
    (splits / "wave_test_split1.txt").write_text("1.avi 3\n")
    with pytest.raises(DataError, match=r"has the flag '3' for '1.avi'; flags are 0, 1 and 2"):
        list_videos(root, "train", splits=splits)
    for layout in ("hmdb51", "ucf101"):
        with pytest.raises(DataError, match=r"in or beside .* name it with `splits`"):
            list_videos(root, "train", layout=layout)


def test_kinetics(tmp_path):
    root = put(tmp_path, "train/abc_000012_000022.mp4", "val/x-_1.mp4", "train/other.mp4", "test/t_000001_000011.mp4")
    head = "label,youtube_id,time_start,time_end,split\n"
    annotations = put(root, "annotations/x") / "annotations"
    (annotations / "train.csv").write_text(head + "riding a bike,abc,12,22,train\nabseiling,gone,0,10,train\n")
    (annotations / "validate.csv").write_text(head + "zumba,x-_1,5,15,validate\n")
    (annotations / "test.csv").write_text("youtube_id,time_start,time_end,split\nt,1,11,test\n")
    train = list_videos(root, "train")
    assert told(train) == [("abc_000012_000022.mp4", "riding a bike")]
    assert train.absent == ("gone_000000_000010.mp4",)
    assert train.class_names == ("abseiling", "riding a bike", "unlabelled", "zumba")
    assert told(list_videos(root, "val")) == [("x-_1.mp4", "zumba")]
    assert told(list_videos(root, "test")) == [("t_000001_000011.mp4", "unlabelled")]
    put(tmp_path / "tree", "train/a/1.mp4", "val/a/2.mp4")
    assert told(list_videos(tmp_path / "tree", "val", layout="kinetics400")) == [("2.mp4", "a")]


def test_kth_by_its_original_names(tmp_path):
    put(tmp_path, *(f"walking/person{person:02}_walking_d1_uncomp.avi" for person in range(1, 26)))
    (tmp_path / "00sequences.txt").write_text("Some words\n\nperson11_walking_d1\t\tframes\t1-75, 152-225\n")
    people = {
        split: [int(path.name[6:8]) for path in list_videos(tmp_path, split).paths]
        for split in ("train", "val", "test")
    }
    assert people == {
        "train": [11, 12, 13, 14, 15, 16, 17, 18],
        "val": [1, 4, 19, 20, 21, 23, 24, 25],
        "test": [2, 3, 5, 6, 7, 8, 9, 10, 22],
    }
    train = list_videos(tmp_path, "train", layout="kth")
    assert train.class_names == ("walking",)
    assert train.ranges == (((0, 75), (151, 225)),) + (None,) * 7
    put(tmp_path, "walking/person26_walking_d1.avi")
    with pytest.raises(DataError, match=r"person26_walking_d1.avi' is not named as KTH's videos are"):
        list_videos(tmp_path, "train")


def test_settings_that_make_no_sense(tmp_path):
    with pytest.raises(ConfigError, match="there is no layout 'ucf'; there are auto, folders, manifest"):
        list_videos(tmp_path, "train", layout="ucf")
    with pytest.raises(ConfigError, match="split_number is 1, 2 or 3, got 4"):
        list_videos(tmp_path, "train", split_number=4)
    with pytest.raises(DataError, match=r"has no manifest.csv"):
        list_videos(tmp_path, "train", layout="manifest")
    (tmp_path / "list.csv").write_text("")
    with pytest.raises(DataError, match="is a file, but layout 'folders' is a folder"):
        list_videos(tmp_path / "list.csv", "train", layout="folders")


def test_videos_that_fit_are_decoded_once_and_give_the_same_pixels(made, monkeypatch):
    paths = (made["plain.mp4"], made["b.avi"], made["stream.ts"])
    listed = VideoList(paths, torch.arange(3), ("a", "b", "c"))
    index = build_index(listed, None, short_side=24)
    sampler, views = ClipSampler(4, 2, 5), PixelViews(size=16, mean=[0.5] * 3, std=[0.25] * 3)
    to_train, read_again = (Videos(index, sampler, views, outcomes) for outcomes in ({"whole": 3}, {}))
    reads = []

    def counted(path, *rest, **named):
        reads.append(path)
        return read_frames(path, *rest, **named)

    monkeypatch.setattr(videos, "read_frames", counted)
    drawn = [
        [source.load(torch.arange(3), range(4), seed=1, epoch=epoch).crops for epoch in range(3)]
        for source in (to_train, read_again)
    ]
    assert all(torch.equal(*pair) for pair in zip(*drawn, strict=True))
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert reads == [*paths, *paths * 3]  # once each, and once an epoch
    assert to_train.decoded_bytes == 3 * sum(3 * 100 // 3 * 24 * 32 for _ in paths)
    assert "decoded once, and held in memory: 0.0 GB" in to_train.notes()
    assert not read_again.notes()
    monkeypatch.setattr(videos, "HELD", to_train.decoded_bytes - 1)
    assert not to_train.is_held
    assert not to_train.notes()[1:]
