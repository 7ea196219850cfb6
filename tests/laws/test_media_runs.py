"""Laws 1 and 2 for pipelines over images: the same pixels wherever they are decoded, and after every stop."""

import pickle
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.made_media import audio, drawn, encoded, tone, video
from tests.made_rows import byte_tokenizer
from zephon_async import Batch, Dataset, PatchGrid, Pipeline, StaticMixtureWorkSource, TokenEstimation, global_digest

PAD, GRID = 7, PatchGrid(patch=2, merge=2, min_pixels=16, max_pixels=400)


def table(rows: int) -> pa.Table:
    """Rows of none to two images, a placeholder for each."""
    images = [[encoded(drawn(5 + n % 9, 6 + k), "JPEG" if n % 2 else "PNG") for k in range(n % 3)] for n in range(rows)]
    tokens = [[1, *[PAD, 2] * (n % 3), 3 + n % 4] for n in range(rows)]
    return pa.table({"images": pa.array(images, pa.list_(pa.binary())), "input_ids": pa.array(tokens, pa.list_(pa.int32()))})


TABLE = table(60)


def packed(ranks: int = 1, rank: int = 0, data: pa.Table = TABLE, epochs: int | None = None, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource([Dataset.from_arrow("a", data)], {"a": 1}, seed=3, epochs=epochs, unit="samples")
    return (
        Pipeline(source)
        .options(lanes=2, dp_size=ranks, dp_rank=rank, **{"workers": 2, **options})
        .expand_images(placeholder=PAD, grid=GRID)
        .refer(["images"])
        .pack_flat(64, algorithm="best_fit", on_long="drop", carry=["images"])
        .shuffle(4)
        .decode_image("images", size=GRID, field_out="pixels")
        .decode_image("images", size=(4, 4), crop="random", shortest=9, field_out="crops")
        .batch(1)
    )


def steps(batches: list[Batch]) -> list[str]:
    by_step: dict[int, list[Batch]] = {}
    for batch in batches:
        by_step.setdefault(batch.step, []).append(batch)
    return [global_digest(each) for each in by_step.values()]


def run(most: int = 12, state: bytes | None = None, **options: Any) -> tuple[list[Batch], bytes]:
    """Up to so many microbatches, from a state on, and the state behind them."""
    with packed(**options) as pipeline:
        if state is not None:
            pipeline.restore(state)
        return list(islice(pipeline, most)), pipeline.checkpoint()


@pytest.fixture(scope="module")
def wanted() -> list[str]:
    return steps(run(runner="inline")[0])


@pytest.mark.parametrize(
    "options", [{"runner": "threads", "chunk_rows": 1}, {"runner": "threads", "chunk_rows": 7}, {"runner": "processes"}], ids=str
)
def test_every_runner_and_chunk_gives_the_same(options: dict[str, Any], wanted: list[str]) -> None:
    assert len(wanted) == 6
    assert steps(run(**options)[0]) == wanted


def test_ranks_and_stops_change_nothing(wanted: list[str]) -> None:
    assert steps([batch for rank in range(2) for batch in run(6, ranks=2, rank=rank)[0]]) == wanted
    got: list[Batch] = []
    state: bytes | None = None
    for _ in range(4):
        batches, state = run(3, state)
        got += batches
    assert steps(got) == wanted


def test_pixels_and_tokens_agree_in_every_row() -> None:
    for batch in run()[0]:
        pixels, crops = batch.ragged("pixels"), batch.ragged("crops")
        visual = np.count_nonzero(batch.columns["input_ids"] == PAD, axis=1)
        patches = pixels.shapes[:, :2].prod(axis=1) // GRID.patch**2 // GRID.merge**2
        assert visual.tolist() == np.diff(np.concatenate(([0], np.cumsum(patches)))[pixels.row_offsets]).tolist()
        assert crops.padded().shape == (len(pixels), 4, 4, 3)
        again = pickle.loads(pickle.dumps(batch))
        assert again.digest() == batch.digest()


def test_bad_images_are_left_out_with_their_rows() -> None:
    rows = TABLE.to_pylist()
    rows[10]["images"] = [b"no image"]
    rows[20]["images"] = []
    data = pa.Table.from_pylist(rows, schema=TABLE.schema)
    digests = []
    for runner in ("inline", "processes"):
        with packed(data=data, epochs=2, runner=runner, on_bad_record="quarantine") as pipeline:
            batches = list(pipeline)
            assert pipeline.statistics().counts["records_quarantined"] == 4
        seen = {document.row for batch in batches for row in batch.documents() for document in row}
        assert seen == set(range(60)) - {10, 20}
        digests.append(steps(batches))
    assert digests[0] == digests[1]


def test_sound_and_video_wherever_they_are_decoded() -> None:
    columns = {"audio": [audio(tone(0.1, 8000), 8000)] * 6, "video": [video(6, 10)] * 6}
    found = []
    for runner in ("inline", "threads", "processes"):
        source = StaticMixtureWorkSource([Dataset.from_dict("a", columns)], {"a": 1}, seed=1, unit="samples")
        pipeline = Pipeline(source).options(runner=runner, workers=2, chunk_rows=1).decode_audio(rate=4000)
        with pipeline.decode_video(fps=5, size=(8, 8), crop="random").batch(2) as pipeline:
            found.append([batch.digest() for batch in pipeline])
    assert len(found[0]) == 3
    assert found == [found[0]] * 3


def test_visual_tokens_count_in_a_mixture() -> None:
    columns = {"text": ["xAy"] * 9, "images": [encoded(drawn(8, 8))] * 9}  # 4 visual tokens in the place of A, and <|endoftext|>
    source = StaticMixtureWorkSource([Dataset.from_dict("a", columns)], {"a": 1}, seed=1, token_estimation=TokenEstimation())
    pipeline = Pipeline(source).tokenize(byte_tokenizer(), field="text", keep_columns=["images"])
    with pipeline.expand_images(placeholder=ord("A"), grid=GRID).pack_flat(64).batch(1) as pipeline:
        assert "2.3333 tokens per byte" in str(pipeline.explain())


def test_a_short_step_is_filled_up() -> None:
    columns = {"image": [encoded(drawn(4, 4))] * 5}
    shapes: dict[str, list[int]] = {}
    for name, settings in (("fixed", {"size": (2, 2)}), ("ragged", {})):
        source = StaticMixtureWorkSource([Dataset.from_dict("a", columns)], {"a": 1}, seed=1, unit="samples")
        with Pipeline(source).options(on_end="pad").decode_image(**settings).batch(3) as pipeline:  # type: ignore[arg-type]
            batches = list(pipeline)
        assert [int(batch.mask.sum()) for batch in batches] == [3, 2]
        face = batches[-1].columns["image"]
        shapes[name] = list(face.shape) if name == "fixed" else batches[-1].ragged("image").row_offsets.tolist()
    assert shapes == {"fixed": [3, 2, 2, 3], "ragged": [0, 1, 2, 2]}
