"""What `simulate` says of a recipe against what a run of it gives, measured slowly."""

from itertools import combinations, groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from zephon_async import Dataset, Pipeline, RecipeError, StaticMixtureWorkSource
from zephon_async.cli import main
from zephon_async.io import Reader
from zephon_async.work import simulate

NEAR = 3


def source(sizes: dict[str, int], **settings: Any) -> StaticMixtureWorkSource:
    datasets = [
        Dataset.from_dict(name, {name: list(range(rows))}).with_sizes(unit_bytes=96, block_bytes=32) for name, rows in sizes.items()
    ]
    return StaticMixtureWorkSource(datasets, dict.fromkeys(sizes, 1), **settings)


def steps_of_a_run(made: StaticMixtureWorkSource, lanes: int, rows: int, size: int, block: int) -> list[list[tuple[str, int]]]:
    """The rows of each step: the dataset, and the row in it."""
    pipeline = (
        Pipeline(made).options(lanes=lanes, microbatches_per_step=lanes, workers=1).shuffle(size, seed=made.seed, block_size=block)
    )
    with pipeline.batch(rows // lanes) as run:
        batches = [(batch.step, [(d, row) for ((d, _, row, *_),) in batch.documents()]) for batch in run]
    return [[row for _, rows in step for row in rows] for _, step in groupby(batches, key=lambda pair: pair[0])]


def slowly(steps: list[list[tuple[str, int]]], sizes: dict[str, int]) -> tuple[float, float]:
    """Displacement and variety by their definitions."""
    moved = expected = 0.0
    for name, n in sizes.items():
        for at, row in enumerate(row for step in steps for d, row in step if d == name):
            t = at % n / n
            moved += n * abs(row / n - t)
            expected += n * (t * t + (1 - t) * (1 - t)) / 2
    pairs = [(a, b) for step in steps for a, b in combinations(step, 2)]
    alike = sum(a[0] == b[0] and abs(a[1] - b[1]) <= NEAR for a, b in pairs) / len(pairs)
    close = {n: sum(b - a <= NEAR for a, b in combinations(range(n), 2)) / (n * (n - 1) / 2) for n in sizes.values()}
    chance = sum(close[sizes[a[0]]] for a, b in pairs if a[0] == b[0]) / len(pairs)
    return moved / expected, 1 / (1 + (len(steps[0]) - 1) * max(0.0, (alike - chance) / (1 - chance)))


@pytest.mark.parametrize("shuffle", [False, "units", "blocks", "rows"])
@pytest.mark.parametrize(("lanes", "rows", "block"), [(1, 6, 1), (3, 6, 2)])
@pytest.mark.parametrize("sizes", [{"a": 120}, {"a": 90, "b": 40}])
def test_it_says_what_a_run_gives(shuffle: Any, lanes: int, rows: int, block: int, sizes: dict[str, int]) -> None:
    made = source(sizes, shuffle=shuffle, seed=4)
    found = simulate(made, buffer_sizes=[block, 8 * block], lanes=lanes, rows_per_step=rows, block_size=block, near=NEAR)
    for quality in found:
        steps = steps_of_a_run(made, lanes, rows, quality.buffer_size, block)
        assert quality.rows == sum(map(len, steps))
        assert (quality.displacement, quality.variety) == pytest.approx(slowly(steps, sizes))


def test_what_the_numbers_mean() -> None:
    as_stored, in_units, by_rows = (
        simulate(source({"a": 4000}, shuffle=shuffle), buffer_sizes=[1, 4000], rows_per_step=50, near=20)
        for shuffle in (False, "units", "rows")
    )
    assert as_stored[0].displacement < 0.05
    assert as_stored[0].variety < 0.06
    assert 0.8 < in_units[0].displacement < 1.2
    assert in_units[0].variety < 0.1
    for mixed in (as_stored[1], in_units[1], *by_rows):
        assert 0.9 < mixed.displacement < 1.1
        assert mixed.variety > 0.9


def test_in_little_data_not_all_rows_are_near() -> None:
    as_stored, by_rows = (
        simulate(source({"a": 1355}, shuffle=shuffle), buffer_sizes=[1], lanes=4, rows_per_step=64) for shuffle in (False, "rows")
    )
    assert as_stored[0].variety < 0.5
    assert by_rows[0].variety > 0.8


def test_no_row_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(100)))
    with patch.object(Reader, "read_several", side_effect=AssertionError("read")):
        for counted in (1 << 20, 0):
            with patch("zephon_async.io.formats.line_format.COUNTED_BYTES", counted):
                made = StaticMixtureWorkSource([Dataset.from_path("a", tmp_path, block_bytes=64)], {"a": 1}, unit="bytes")
                found = simulate(made, buffer_sizes=[1], rows_per_step=10, near=4, row_bytes=10)
                assert 90 <= found[0].rows <= 100


def test_of_endless_data_as_many_rows_are_drawn_as_asked_for() -> None:
    assert [each.rows for each in simulate(source({"a": 40}, epochs=None), lanes=2, rows_per_step=8, rows=100)] == [96] * 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lanes": 3}, "rows_per_step=512 is not a multiple of lanes=3"),
        ({"rows_per_step": 64}, "there is not one whole step of 64 rows of each of 1 lanes"),
        ({"buffer_sizes": [0]}, "shuffle: buffer_size is 0"),
        ({"buffer_sizes": [9], "block_size": 2}, "block_size=2 does not divide buffer_size=9"),
        ({"near": 0}, "near is 0"),
        ({"neer": 1}, r"simulate\(\) knows no 'neer'; did you mean 'near'"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        simulate(source({"a": 40}), **settings)


def test_the_command_prints_a_line_for_each_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(1000)))
    command = ["simulate", str(tmp_path), "--rows-per-step", "20", "--near", "10", "--buffer-sizes", "1", "1000"]
    assert main([*command, "--shuffle", "none"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["buffer_size", "displacement", "variety"]
    assert [line[0] for line in lines[1:]] == ["1", "1,000"]
    assert float(lines[1][2]) < 0.1 < 0.8 < float(lines[2][2])
    with pytest.raises(SystemExit):
        main([*command, "--shuffle", "all"])
    assert "shuffle is 'all': it must be one of 'units', 'blocks', 'rows'" in capsys.readouterr().err
