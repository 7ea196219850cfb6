"""The values of LitData samples as Arrow columns, by the serializer that wrote them.

Takes the bytes of samples that lie one behind the other; gives arrays, made by array operations where values have one layout.

| serializer | column |
|---|---|
| str, text | text |
| bool, int, float | bool, int64, double |
| bytes, jpeg, image, file, video, audio, tifffile, pdf, mesh, nifti | the bytes as they were stored |
| pil | a PNG of the pixels, uncompressed |
| jpeg_array | a list of bytes |
| numpy, tensor | lists as deep as the array has dimensions; of rank 0 a number |
| no_header_numpy, no_header_tensor | a list |
| json | JSON text |

Pickles, graphs (which have pickles in them) and values of a user's own serializer are refused, by the name of their column.
Complex numbers are, too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.io.conform import LEAVE_OUT, fit, nulled
from zephon_async.io.formats.litdata_chunk import Samples
from zephon_async.io.formats.litdata_index import Leaf
from zephon_async.io.formats.litdata_nested import json_text
from zephon_async.io.formats.pieces import Ints, joined, nested
from zephon_async.io.formats.png import png_of
from zephon_async.kinds import is_list, json_field

Made: TypeAlias = tuple[pa.Array, dict[int, str]]
_NUMPY: dict[int, str] = dict(enumerate(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))) | {13: "?"}
_TORCH: dict[int, str] = {  # most have two numbers, as torch.float32 and torch.float
    **dict.fromkeys((0, 1), "f4"),
    **dict.fromkeys((2, 3), "f8"),
    **dict.fromkeys((8, 9), "f2"),
    **dict.fromkeys((13, 14), "i2"),
    **dict.fromkeys((15, 16), "i4"),
    **dict.fromkeys((17, 18), "i8"),
    **dict(zip((11, 12, 19, 20), ("u1", "i1", "?", "u2"), strict=True)),
}
_TEXTS = frozenset({"str", "text"})
_BYTES = frozenset({"bytes", "jpeg", "image", "file", "video", "audio", "tifffile", "tiff", "pdf", "mesh", "nifti"})
_NUMBERS = {"bool": "?", "int": "<i8", "float": "<f8"}
_FLAT = {"no_header_numpy": _NUMPY, "no_header_tensor": _TORCH}
_SHAPED = {"numpy": (_NUMPY, "<u4"), "tensor": (_TORCH, ">u4")}
_MOST_RANK = 32
_MOST_LISTS = 1 << 16  # of one array, beyond a list a byte


def refusal(leaf: Leaf) -> str | None:
    """Why a value is not read."""
    if leaf.kind in ("pickle", "graph"):
        return f"column {leaf.name!r} is a pickle ({leaf.kind}), which can run any code and is not read; {LEAVE_OUT}"
    if leaf.kind in _FLAT:
        known = leaf.of.isdecimal() and int(leaf.of) in _FLAT[leaf.kind]
    else:
        known = leaf.kind in {*_TEXTS, *_BYTES, *_NUMBERS, *_SHAPED, "pil", "jpeg_array", "json"}
    if known:
        return None
    written = f"{leaf.kind}:{leaf.of}" if leaf.of else leaf.kind
    return f"column {leaf.name!r} is written by the serializer {written!r}, which is not read; {LEAVE_OUT}"


def field_of(leaf: Leaf, first: bytes) -> pa.Field:
    """The column of a value. first: that of the first sample."""
    if leaf.kind == "json":
        return json_field(leaf.name)
    if leaf.kind in _SHAPED:
        return pa.field(leaf.name, _shaped_type(*_SHAPED[leaf.kind], first))
    if leaf.kind in _FLAT:
        return pa.field(leaf.name, pa.list_(_arrow(_FLAT[leaf.kind][int(leaf.of)])))
    if leaf.kind in _NUMBERS:
        return pa.field(leaf.name, _arrow(_NUMBERS[leaf.kind]))
    if leaf.kind == "jpeg_array":
        return pa.field(leaf.name, pa.list_(pa.large_binary()))
    return pa.field(leaf.name, pa.large_string() if leaf.kind in _TEXTS else pa.large_binary())


def columns_of(
    samples: Samples, leaves: Sequence[Leaf], wanted: Collection[str], kinds: pa.Schema, *, headed: bool
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Columns of samples, and which of them are bad.

    kinds: the types that are wanted of shaped values. headed: whether the sizes of the values lie before them, uint32 each.
    """
    body, offsets = samples.body, samples.places
    edges, wrong_sizes = _edges(np.frombuffer(body, np.uint8), offsets, len(leaves) if headed else 0)
    bad = wrong_sizes | samples.bad
    columns = {}
    for n, leaf in enumerate(leaves):
        if leaf.name in wanted:
            column, wrong = _convert(leaf, joined(body, edges[:, n], edges[:, n + 1]), kinds)
            for row in wrong:
                bad.setdefault(row, f"column {leaf.name!r}: {wrong[row]}")
            columns[leaf.name] = column
    return {name: nulled(column, np.array(list(bad))) if bad else column for name, column in columns.items()}, bad


def _edges(content: npt.NDArray[np.uint8], offsets: Ints, leaves: int) -> tuple[Ints, dict[int, str]]:
    """Where the values of samples begin, and the last ones end: int64[rows, leaves + 1]. Without a header there is one value."""
    if not leaves:
        return np.stack([offsets[:-1], offsets[1:]], 1), {}
    header = 4 * leaves
    begins, lengths = offsets[:-1], np.diff(offsets)
    sizes = np.zeros((len(begins), leaves), np.int64)
    long = lengths >= header
    sizes[long] = content[begins[long, None] + np.arange(header)].view("<u4").reshape(-1, leaves)
    total = sizes.sum(1) + header
    wrong = np.flatnonzero(total != lengths)
    said = {
        row: f"the sample has {lengths[row]:,} bytes, and {total[row]:,} by the sizes of its {leaves} values"
        for row in wrong.tolist()
    }
    padded = np.concatenate((np.zeros((len(begins), 1), np.int64), sizes), 1)
    edges: Ints = begins[:, None] + header + np.cumsum(padded, 1)
    edges[wrong] = begins[wrong, None]
    return edges, said


def _flat(raw: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The bytes of a large_binary, and where each value begins in them."""
    _, places, body = raw.buffers()
    edges = np.frombuffer(places, np.int64, len(raw) + 1, raw.offset * 8)
    content = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    return content[edges[0] : edges[-1]], edges - edges[0]


def _arrow(dtype: str) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(dtype))


def _convert(leaf: Leaf, raw: pa.Array, kinds: pa.Schema) -> Made:
    """A column of values as they lie there, and which are wrong."""
    if leaf.kind in _TEXTS:
        return raw.view(pa.large_string()), {}
    if leaf.kind in _BYTES:
        return raw, {}
    if leaf.kind in _NUMBERS:
        return _numbers(raw, np.dtype(_NUMBERS[leaf.kind]))
    if leaf.kind in _FLAT:
        return _lists(raw, np.dtype(_FLAT[leaf.kind][int(leaf.of)]))
    if leaf.kind in _SHAPED:
        return _shaped(raw, *_SHAPED[leaf.kind], kinds.field(leaf.name).type)
    one, kind = {
        "pil": (_png, pa.large_binary()),
        "jpeg_array": (_images, pa.list_(pa.large_binary())),
        "json": (json_text, pa.large_string()),
    }[leaf.kind]
    return _one_by_one(raw, one, kind)


def _one_by_one(raw: pa.Array, one: Callable[[bytes], Any], kind: pa.DataType) -> Made:
    values: list[Any] = []
    wrong: dict[int, str] = {}
    for row, each in enumerate(raw.to_pylist()):
        try:
            values.append(one(each))
        except ValueError as error:
            values.append(None)
            wrong[row] = str(error)
    return pa.array(values, kind), wrong


def _numbers(raw: pa.Array, dtype: np.dtype[Any]) -> Made:
    content, edges = _flat(raw)
    right = np.diff(edges) == dtype.itemsize
    wrong = {
        row: f"a number has {dtype.itemsize} bytes, not {edges[row + 1] - edges[row]}" for row in np.flatnonzero(~right).tolist()
    }
    if wrong:
        content = content[edges[:-1][right, None] + np.arange(dtype.itemsize)].ravel()
    values = np.zeros(len(raw), dtype)
    values[right] = content != 0 if dtype == np.bool_ else content.view(dtype)
    return pa.array(values), wrong


def _lists(raw: pa.Array, dtype: np.dtype[Any]) -> Made:
    content, edges = _flat(raw)
    width = dtype.itemsize
    wrong = {
        row: f"{edges[row + 1] - edges[row]} bytes are no whole number of {dtype}"
        for row in np.flatnonzero(np.diff(edges) % width).tolist()
    }
    if wrong:
        keep = pa.array([row not in wrong for row in range(len(raw))])
        content, edges = _flat(pc.if_else(keep, raw, pa.scalar(b"", pa.large_binary())))
    return pa.ListArray.from_arrays(pa.array(edges // width, pa.int32()), _values(content, dtype)), wrong


def _values(content: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> pa.Array:
    return pa.array(content != 0 if dtype == np.bool_ else content.view(dtype))


def _shaped_type(dtypes: Mapping[int, str], header: str, value: bytes) -> pa.DataType:
    """The type of an array of numpy or torch, from its header; null where it has none."""
    code, rank = np.frombuffer(value[:8], header).tolist() if len(value) >= 8 else (-1, 0)
    if code not in dtypes or rank > _MOST_RANK:
        return pa.null()
    kind = _arrow(dtypes[code])
    for _ in range(rank):
        kind = pa.list_(kind)
    return kind


def _depth(kind: pa.DataType) -> int:
    return 1 + _depth(kind.value_type) if is_list(kind) else 0


def _shaped(raw: pa.Array, dtypes: Mapping[int, str], header: str, wanted: pa.DataType) -> Made:
    """Arrays with a header of their own: number of the dtype, rank, and shape. Those of each dtype are made together."""
    rank = _depth(wanted)
    begin = 8 + 4 * rank
    content, edges = _flat(raw)
    lengths = np.diff(edges)
    heads = np.full((len(raw), 2 + rank), -1, np.int64)
    long = lengths >= begin
    heads[long] = content[edges[:-1][long, None] + np.arange(begin)].view(header).reshape(-1, 2 + rank)
    codes, shapes = heads[:, 0], heads[:, 2:]
    wide = np.array([np.dtype(dtypes[code]).itemsize if code in dtypes else 0 for code in codes.tolist()], np.int64)
    lists = np.cumprod(shapes.astype(np.float64), 1)  # floats do not turn over
    counts = lists[:, -1] if rank else np.ones(len(raw))
    right = long & (heads[:, 1] == rank) & (wide > 0) & (counts * wide == lengths - begin)
    if rank > 1:
        right &= lists[:, :-1].max(1) <= lengths + _MOST_LISTS
    wrong = dict.fromkeys(np.flatnonzero(~right).tolist(), f"is no array of {rank} dimensions as its header has it")
    parts, places = [pa.nulls(1, wanted)], np.zeros(len(raw), np.int64)
    for code in np.unique(codes[right]).tolist():
        rows = np.flatnonzero(right & (codes == code))
        values, _ = _flat(joined(content, edges[rows] + begin, edges[rows + 1]))
        array, misfits = fit(nested(_values(values, np.dtype(dtypes[code])), shapes[rows]), wanted)
        wrong |= {int(rows[n]): said for n, said in misfits.items()}
        places[rows] = np.arange(len(rows)) + sum(map(len, parts))
        parts.append(array)
    return pa.concat_arrays(parts).take(pa.array(places)), wrong


def _png(value: bytes) -> bytes:
    return png_of(value, ("1", "L", "P", "LA", "RGB", "RGBA"))


def _images(value: bytes) -> list[bytes]:
    """The images of a jpeg_array: how many, their sizes, themselves."""
    count = int.from_bytes(value[:4], "little")
    begin = 4 + 4 * count
    sizes = np.frombuffer(value[4:begin], "<u4").tolist() if begin <= len(value) else []
    if begin + sum(sizes) != len(value) or len(value) < 4:
        raise ValueError(f"{len(value):,} bytes are no {count:,} images as their header has it")
    images = []
    for size in sizes:
        images.append(value[begin : begin + size])
        begin += size
    return images
