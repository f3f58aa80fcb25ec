"""Which samples of one source lie in another, too."""

import torch
from PIL import Image

from rince.sources import from_dataset
from rince.sources.image_files import ImageFiles
from rince.sources.images import load_images
from rince.sources.source import copies_in, rows_in


def files_of(*paths):
    labels = torch.zeros(len(paths), dtype=torch.int64)
    return ImageFiles(items=list(paths), labels=labels, class_names=("a",), source="files")


def test_samples_are_the_same_by_file_through_any_link(tmp_path):
    for name in "abc":
        Image.new("L", (4, 4), ord(name)).save(tmp_path / f"{name}.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "b.png")
    a, b, c, link = (tmp_path / f"{name}.png" for name in ("a", "b", "c", "link"))
    assert rows_in(files_of(c, a), files_of(a, b, c)).tolist() == [2, 0]
    assert rows_in(files_of(link, c), files_of(a, b)).tolist() == [1, -1]
    assert rows_in(files_of(a), files_of(b, c)) is None
    copy = tmp_path / "copy.png"
    copy.write_bytes(a.read_bytes())
    assert rows_in(files_of(copy), files_of(a, b)) is None  # another file, though it looks the same
    gone = files_of(tmp_path / "gone.png", a)
    assert rows_in(gone, files_of(tmp_path / "gone.png", a)).tolist() == [-1, 1]


def test_samples_without_files_are_the_same_by_row_of_the_same_data():
    one, two = (load_images("fashion", split, limit=20) for split in ("train", "test"))
    assert rows_in(one, load_images("fashion", "train", limit=20)).tolist() == list(range(20))
    assert rows_in(one, two) is None
    assert rows_in(one, load_images("fashion", "train", limit=30)) is None


def test_a_data_set_of_ones_own_is_the_same_only_as_itself():
    """Its fingerprint tells labels and name, not the samples: a training and a test set may agree in these."""
    made = [from_dataset(torch.full((6, 2), float(n)), labels=[0, 1] * 3, name="waves") for n in range(2)]
    assert made[0].fingerprint == made[1].fingerprint
    assert rows_in(*made) is None
    assert rows_in(made[0], made[0]).tolist() == list(range(6))
    again = from_dataset(made[0].dataset, labels=[0, 1] * 3, name="other views of the same")
    assert rows_in(made[0], again).tolist() == list(range(6))


def test_copies_under_other_names_are_found_by_content_and_links_to_a_file_are_no_copies(tmp_path):
    contents = {"a": b"one", "b": b"two", "copy": b"one", "c": b"three"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link").symlink_to("b")
    train, test = (files_of(*(tmp_path / name for name in names)) for names in (("a", "b"), ("copy", "link", "c")))
    assert copies_in(test.digests(), train.digests(), rows_in(test, train)) == 1
    assert copies_in(test.digests(), train.digests()) == 2
