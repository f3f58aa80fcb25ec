"""One bit that is not as it was written is noticed, wherever in a file it is, and anybody can still read the file."""

import io

import pytest
import torch
from safetensors.torch import load

from rince import seals
from rince.errors import DataError
from rince.seals import read_tensors, seal_holds, sealed, sealed_tensors

TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([True, False])}
NOTED = {"of": 'ein "Netz" ü', "made_from": "0" * 64}


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_flipped_bit_of_a_safetensors_file_is_noticed(tmp_path):
    whole, path = sealed_tensors(TENSORS, NOTED), tmp_path / "kept.safetensors"
    path.write_bytes(whole)
    found = read_tensors(path)
    assert all(torch.equal(found.tensors[name], TENSORS[name]) for name in TENSORS)
    assert found.noted.items() > NOTED.items()
    for bit in range(8 * len(whole)):
        path.write_bytes(flipped(whole, bit))
        with pytest.raises(DataError, match=r"kept.safetensors is damaged"):
            read_tensors(path)
    for changed in (whole[:-1], whole + b"\0", b"", whole[:7]):
        path.write_bytes(changed)
        with pytest.raises(DataError, match="damaged"):
            read_tensors(path)


def test_others_read_it_and_the_same_is_the_same_to_the_byte():
    whole = sealed_tensors(TENSORS, NOTED)
    assert {name: value.tolist() for name, value in load(whole).items()} == {
        name: value.tolist() for name, value in TENSORS.items()
    }
    reordered = dict(reversed(NOTED.items()))
    assert all(sealed_tensors(TENSORS, noted) == whole for noted in (NOTED, reordered) * 5)


def test_every_flipped_bit_of_a_sealed_file_is_noticed():
    file = io.BytesIO()
    with sealed(file) as sealing:
        sealing.write(b"some ")
        sealing.write(b"content")
    whole = file.getvalue()
    assert whole.startswith(b"some content")
    assert seal_holds(io.BytesIO(whole)) is True
    assert not any(seal_holds(io.BytesIO(flipped(whole, bit))) for bit in range(8 * len(whole)))
    assert seal_holds(io.BytesIO(b"some content")) is None


def test_what_the_system_refuses_is_raised_when_all_is_written():
    class Full(io.BytesIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"), sealed(Full()) as sealing:
        torch.save({"weights": torch.ones(1000)}, sealing)  # torch itself would say 'unexpected pos'


@pytest.mark.parametrize("kind", [RuntimeError, FileNotFoundError])
def test_what_the_system_refuses_to_those_who_open_the_file_again_is_its_error(tmp_path, monkeypatch, kind):
    path = tmp_path / "kept.safetensors"
    path.write_bytes(sealed_tensors(TENSORS, NOTED))

    def refused(*_, **__):  # as torch and safetensors say it
        raise kind(f"unable to open file <{path}> in read-only mode: Permission denied (13)")

    monkeypatch.setattr(seals, "safe_open", refused)
    with pytest.raises(OSError, match="unable to open file") as found:
        read_tensors(path)
    assert not isinstance(found.value, FileNotFoundError)
