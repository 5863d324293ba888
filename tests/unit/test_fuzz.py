"""Whatever is written over the headers of a container: one line refuses it, or what it says is read
and nothing else.

The examples are the same in every run. More of them, drawn anew: NORMGAUGE_FUZZ_EXAMPLES=5000
pytest tests/unit/test_fuzz.py -s
"""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from test_packages import make_wheel
from test_readers import ct2_bytes, ct2_string, whisper_variables

from gguf_files import make_model, write_model
from normgauge.checkpoints.packages import unpack
from normgauge.checkpoints.readers import (
    STORED_NAMES,
    Weights,
    ctranslate2_reader,
    gguf_reader,
    safetensors_reader,
    torch_reader,
)
from normgauge.checkpoints.readers.gguf_container import check_header
from normgauge.errors import InputError

EXAMPLES = int(os.environ.get("NORMGAUGE_FUZZ_EXAMPLES", "200"))
# Values at which sizes, offsets, counts and types break.
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    64,
    127,
    128,
    255,
    256,
    1 << 15,
    1 << 16,
    1 << 31,
    (1 << 31) - 1,
    (1 << 32) - 1,
    1 << 33,
)
NUMBERS += (1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

WORDS = (
    b'"',
    b"{}",
    b"[]",
    b"null",
    b"-1",
    b"1e999",
    b"\xff\xfe",
    b"..",
    b"/",
    b"9" * 25,
    b"F16",
    b"BF16",
)

generator = torch.Generator().manual_seed(3)
TENSORS = {
    "a.weight": torch.randn(4, 6, generator=generator),
    # of the same size: to take one for the other would show
    "b.weight": torch.randn(4, 6, generator=generator),
    "c.bias": torch.randn(5, generator=generator).half(),
}
PAGES = {
    f"toy/{name}": bytes(range(number, number + 100))
    for number, name in enumerate(("model.safetensors", "config.json", "vocab.txt"))
}


@dataclass(frozen=True)
class Container:
    """A file as it should be, where its headers are, and what is read of it: a key for what it
    says, and the values by name.

    `reference` reads a damaged file otherwise, where its headers may say that a tensor is another
    part of the values; without it the values under the same name, shape and type must be those of
    the file as it should be.
    """

    content: bytes
    headers: tuple[range, ...]
    name: str
    read: Callable[[Path], tuple[object, dict[object, bytes]]]
    reference: Callable[[Path], dict[object, bytes]] | None = None


def values_of(weights) -> dict[object, bytes]:
    """Bytes by name, shape and stored type: under the same three there is one right content."""
    named = {}
    for name, tensor in weights.tensors.items():
        named[(name, tuple(tensor.shape), weights.stored[name])] = (
            tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return named


def reading(reader, with_config: bool) -> Callable[[Path], tuple[object, dict[object, bytes]]]:
    def read(path: Path) -> tuple[object, dict[object, bytes]]:
        config = reader.stored_config(path.parent) if with_config else None
        return config, values_of(reader.read(path.parent))

    return read


def unpacked(path: Path) -> tuple[object, dict[object, bytes]]:
    target = path.parent / "out"
    unpack(path, ("toy",), target)
    found: dict[object, bytes] = {
        file.relative_to(target).as_posix(): file.read_bytes()
        for file in target.rglob("*")
        if file.is_file()
    }
    return None, found


def unmapped(path: Path) -> dict[object, bytes]:
    """What torch copies out of the file, every record checked against its hash; nothing where one
    is another's.
    """
    try:
        tensors = torch.load(path, weights_only=True, map_location="cpu")
    except RuntimeError:
        return {}
    return values_of(
        Weights(
            tensors, {name: STORED_NAMES[tensor.dtype] for name, tensor in tensors.items()}, (path,)
        )
    )


def archive_headers(content: bytes) -> tuple[range, ...]:
    headers = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            end = member.header_offset + 30 + len(member.filename)
            headers.append(range(member.header_offset, end + 200 * member.filename.endswith("pkl")))
        return (*headers, range(archive.start_dir, len(content)))


def variable_headers(content: bytes) -> tuple[range, ...]:
    headers, start = [], 0
    for name, values in whisper_variables().items():
        end = (
            content.index(ct2_string(name), start) + len(ct2_string(name)) + 1 + 4 * values.ndim + 5
        )
        headers.append(range(start, end))
        start = end + values.nbytes
    return (*headers, range(start, len(content)))


def make(kind: str, folder: Path) -> Container:
    if kind == "safetensors":
        content = save(TENSORS, metadata={"format": "pt"})
        header = range(8 + int.from_bytes(content[:8], "little"))
        return Container(
            content, (header,), "model.safetensors", reading(safetensors_reader, False)
        )
    if kind.startswith("gguf"):
        family = kind.split()[1]
        content = write_model(folder, family, make_model(family)).read_bytes()
        header = min(entry.start for entry in check_header(folder / "tiny.gguf").tensors)
        return Container(content, (range(header),), "tiny.gguf", reading(gguf_reader, True))
    if kind == "ctranslate2":
        content = ct2_bytes(whisper_variables())
        return Container(
            content, variable_headers(content), "model.bin", reading(ctranslate2_reader, True)
        )
    if kind == "wheel":
        content = make_wheel(folder, PAGES).read_bytes()
        return Container(content, archive_headers(content), "toy.whl", unpacked)
    saved = io.BytesIO()
    torch.save(TENSORS, saved, _use_new_zipfile_serialization=kind == "torch zip")
    content = saved.getvalue()
    # Of the older kind, the values follow the fifth pickle, each storage behind the number of its
    # values.
    headers = (
        archive_headers(content) if kind == "torch zip" else (range(content.rindex(b"e.") + 2),)
    )
    return Container(content, headers, "pytorch_model.bin", reading(torch_reader, False), unmapped)


@st.composite
def damaged(draw: st.DrawFn, container: Container) -> bytes:
    """The file with up to two places of its headers overwritten, and perhaps one cut out, repeated
    or filled; never its values.
    """
    data = bytearray(container.content)
    own = [place.start for place in container.headers]  # a record's place instead of another's
    overwriting = draw(st.integers(0, 2))
    for number in range(overwriting + 1):
        place = draw(st.sampled_from(container.headers))
        start = draw(st.integers(place.start, place.stop - 1))
        room = place.stop - start
        length = min(draw(st.integers(1, 24)), room)
        last = ["none"] * 8 * bool(overwriting) + ["cut", "repeat", "fill", "end"]
        match draw(
            st.sampled_from(
                ["byte"] * 3 + ["number"] * 2 + ["word"] if number < overwriting else last
            )
        ):
            case "byte":
                data[start] = draw(st.integers(0, 255))
            case "number":
                width = draw(st.sampled_from([width for width in (1, 2, 4, 8) if width <= room]))
                chosen = draw(st.sampled_from([*NUMBERS, *own, len(data), len(data) - 1]))
                data[start : start + width] = (chosen % (1 << 8 * width)).to_bytes(width, "little")
            case "word":
                word = draw(st.sampled_from(WORDS))[:room]
                data[start : start + len(word)] = word
            case "cut":
                del data[start : start + length]
            case "repeat":
                data[start:start] = data[start : start + length]
            case "fill":
                data[start:start] = draw(st.binary(min_size=1, max_size=length))
            case "end":
                del data[start:]
    return bytes(data)


KINDS = (
    "safetensors",
    "gguf llama",
    "gguf gpt2",
    "ctranslate2",
    "torch zip",
    "torch older",
    "wheel",
)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_headers_are_refused_or_say_what_is_read(tmp_path, kind):
    container = make(kind, tmp_path)
    outcomes: Counter[str] = Counter()

    def outcome(content: bytes) -> tuple[object, dict[object, bytes], dict[object, bytes]] | None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            path = Path(folder) / container.name
            path.write_bytes(content)
            try:
                config, values = container.read(path)
            except InputError as error:
                outcomes["too long"] += len(str(error)) > 500 or "\n" in str(error)
                return None
            return config, values, container.reference(path) if container.reference else {}

    said, true, _ = outcome(container.content) or (None, {}, {})
    assert true

    @settings(
        max_examples=EXAMPLES,
        derandomize="NORMGAUGE_FUZZ_EXAMPLES" not in os.environ,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(container))
    def law(content: bytes) -> None:
        found = outcome(content)
        if found is None:
            outcomes["refused"] += 1
            return
        config, values, reference = found
        outcomes["equal" if values == true else "says otherwise"] += 1
        if reference:
            assert values == reference
        elif config == said:
            for place in values.keys() & true.keys():
                assert values[place] == true[place], place

    law()
    assert not outcomes.pop("too long", 0)
    print(f"\n{kind}: {dict(outcomes)}")
    assert outcomes["refused"] > EXAMPLES / 4  # the damage is seen
