"""Folders of Arrow files as the library `datasets` leaves them: what is data, and the rows as that library reads them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whole import schema_of, whole
from zephon_async import Dataset
from zephon_async.errors import DatasetError, MissingError
from zephon_async.io.formats.arrow_folders import pick

WRITTEN = Path(__file__).parent.parent / "written/hf_arrow"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
SCHEMA = pa.schema(
    {
        "text": pa.large_string(),
        "label": pa.int64(),  # ClassLabel
        "ids": pa.list_(pa.int32()),
        "columns": pa.struct({"a": pa.list_(pa.int8())}),
        "rows": pa.list_(pa.struct({"a": pa.int8()})),
        "grid": pa.list_(pa.list_(pa.float32())),  # Array2D
        "nested": pa.struct({"grid": pa.list_(pa.list_(pa.int16())), "score": pa.float64()}),
        "image": pa.struct({"bytes": pa.large_binary(), "path": pa.large_string()}),
        "audio": pa.struct({"bytes": pa.large_binary(), "path": pa.large_string()}),
        "said": pa.struct({"de": pa.large_string(), "en": pa.large_string()}),
        "when": pa.timestamp("s"),
        "day": pa.date32(),
        "raw": pa.large_binary(),
        "large": pa.large_string(),
        "any": pa.large_string(),  # Json, as it is stored
    }
)


def plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def rows_of(dataset: Dataset) -> Any:
    read, names = whole(dataset), schema_of(dataset).names
    rows = [dict(zip(names, values, strict=True)) for values in zip(*map(read.column, names), strict=True)]
    return json.loads(json.dumps(rows, default=plain))


def names(dataset: Dataset) -> list[str]:
    return [shard.name for shard in dataset.shards]


def said(path: Path) -> str:
    with pytest.raises(DatasetError) as caught:
        Dataset.from_path("d", path)
    return str(caught.value).removeprefix("dataset 'd': ")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(WRITTEN / "saved", tmp_path / "saved"))


class Grid(pa.ExtensionType):  # type: ignore[misc]
    """What `datasets` makes of an Array2D where it is loaded."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "datasets.features.features.Array2DExtensionType")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "Grid":
        return cls(storage)


@pytest.fixture(params=[False, True], ids=["alone", "with its types loaded"])
def registered(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param:
        pa.register_extension_type(Grid(pa.list_(pa.list_(pa.float32()))))
    yield
    if request.param:
        pa.unregister_extension_type("datasets.features.features.Array2DExtensionType")


def test_what_is_saved_is_read_as_datasets_reads_it(registered: None) -> None:
    dataset = Dataset.from_path("d", WRITTEN / "saved")
    assert names(dataset) == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    stale = sorted(path.name for path in (WRITTEN / "saved").glob("cache-*.arrow"))
    assert (len(stale), dataset.ignored) == (2, (*stale, "dataset_info.json"))
    schema = schema_of(dataset)
    assert {field.name: field.type for field in schema} == {field.name: field.type for field in SCHEMA}
    assert rows_of(dataset) == [{name: row[name] for name in schema.names} for row in EXPECTED["saved"]]


def test_splits_are_not_mixed(tmp_path: Path) -> None:
    splits = WRITTEN / "splits"
    assert said(splits) == ("dataset_dict.json says that the splits 'train', 'test' lie here: give the folder of one, '.../train'")
    assert whole(Dataset.from_path("d", splits / "train")).column("text") == ["a", "b"]
    assert whole(Dataset.from_path("d", splits / "test")).column("text") == ["b"]
    shutil.copytree(splits, tmp_path / "in/side")
    assert said(tmp_path).startswith("in/side/dataset_dict.json says that the splits 'train', 'test' lie here: ")
    (tmp_path / "in/side/dataset_dict.json").unlink()  # without which these are parts
    parts = Dataset.from_path("d", tmp_path)
    assert names(parts) == [f"in/side/{split}/data-00000-of-00001.arrow" for split in ("test", "train")]


def test_splits_of_the_cache_are_not_mixed() -> None:
    cache = WRITTEN / "cache"
    assert said(cache) == (
        "dataset_info.json says that the splits 'test', 'train' lie here: give the files of one, '.../json-test*'"
    )
    for split in ("train", "test"):
        assert rows_of(Dataset.from_path("d", cache / f"json-{split}*")) == EXPECTED[split]
        assert rows_of(Dataset.from_path("d", cache / f"json-{split}.arrow")) == EXPECTED[split]


def test_what_the_cache_remembers_beside_one_split_is_no_data(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(WRITTEN / "cache", tmp_path / "cache"))
    (folder / "json-test.arrow").unlink()
    dataset = Dataset.from_path("d", folder)
    stale = [path.name for path in folder.glob("cache-*.arrow")]
    assert (names(dataset), dataset.ignored) == (["json-train.arrow"], (*stale, "dataset_info.json"))
    assert len(stale) == 1


def test_a_shard_that_is_gone_is_missed(saved: Path) -> None:
    for name in ("data-00001-of-00002.arrow", "data-00000-of-00002.arrow"):
        (saved / name).unlink()
        assert said(saved) == f"state.json lists {name!r}, which is not there"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("{", "state.json is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ('{"_data_files": 5}', "state.json cannot be meant: its data files are 5"),
        ('{"_data_files": [{"file": "a"}]}', "state.json cannot be meant: its data files are [{'file': 'a'}]"),
        (
            '{"_data_files": [], "_indices_files": [{"filename": "indices.arrow"}]}',
            "state.json names a file of indices, by which rows are chosen: that is not read; save the dataset again "
            "behind `flatten_indices()`",
        ),
        (
            '{"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00000-of-00002.arrow"}]}',
            "state.json lists 'data-00000-of-00002.arrow' twice, so its rows would come twice; list it once",
        ),
        ('{"_data_files": [{"filename": "../other.arrow"}]}', "state.json lists '../other.arrow', which is not there"),
    ],
)
def test_a_state_that_cannot_be_meant_is_refused(saved: Path, state: str, says: str) -> None:
    (saved / "state.json").write_text(state)
    assert said(saved) == says


def test_a_state_of_somebody_else_says_nothing(saved: Path) -> None:
    for stale in saved.glob("cache-*.arrow"):
        stale.unlink()
    (saved / "state.json").write_text('{"step": 5}')
    assert len(Dataset.from_path("d", saved).shards) == 2
    (saved / "dataset_info.json").write_text("[")
    assert len(Dataset.from_path("d", saved).shards) == 2


STATES = st.recursive(
    st.none() | st.integers() | st.sampled_from(("a.arrow", "train", "")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("_data_files", "filename", "splits", "_indices_files", "train")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("state.json", "x/state.json", "dataset_dict.json", "dataset_info.json")), STATES))
def test_any_index_gives_files_that_are_there_or_is_refused(indexes: dict[str, Any]) -> None:
    def read(name: str) -> bytes:
        if name not in indexes:
            raise MissingError("there is no such file")
        return json.dumps(indexes[name]).encode()

    files = ["a.arrow", "b-train.arrow", "x/a.arrow"]
    try:
        picked = pick([*files, *(name for name in indexes if name.endswith("state.json"))], read)
    except DatasetError as error:
        assert indexes and any(name in str(error) for name in indexes), "without an index all is data"  # noqa: PT017, PT018
    else:
        assert len(picked) == len(set(picked))
        assert set(picked) <= set(files)
        assert picked or indexes
