"""How quick are the readers of formats beside what others read them with?

Rows a second of all row blocks in order, decoded to Arrow, against the format's own library, or pyarrow, over the same files: on
one thread where that has one, on two where it has more. A library that is not installed is a row that says so. Ratios in one run.

Its last answer is in benchmarks/README.md.
"""

import gzip
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.json as pj
import pyarrow.parquet as pq
from figures import Figure, alternate, arguments, ratio, show, timed
from texts import texts

from zephon_async.io import FROM_START, Dataset, Reader, dataset_schema, unify

THREADS = 2


class Contest(NamedTuple):
    """One format: writes the documents below a folder, and reads them otherwise.

    needs: the library of that. times: how often all documents are written; large data is not counted before it is read.
    """

    name: str
    target: float
    write: Callable[[Path, list[str]], None]
    bare: Callable[[Path], float]
    threads: int = 1
    needs: str = "pyarrow"
    times: int = 1


def ours(folder: Path, threads: int) -> float:
    """All row blocks of all shards; gives the rows."""
    inside = folder / "d.lance"
    dataset = Dataset.from_path("d", inside if inside.exists() else folder)
    columns = None if dataset.format == "webdataset" else frozenset({"n", "text"})
    schema = unify({"d": dataset_schema(dataset, columns, {})})
    reader = Reader([dataset], schema, lambda batch: np.ones(batch.num_rows, np.int64))
    units = dataset.catalog().units

    def read(number: int) -> int:
        unit, rows = units[number], 0
        blocks = sys.maxsize if unit["entry"] == FROM_START else -(-int(unit["length"]) // int(unit["block"]))
        block = 0
        while block < blocks:
            found = reader.read_several(0, number, range(block, min(block + 4, blocks)))
            mine = {at: each for at, each in found.items() if at >= block}
            rows += sum(len(each.rows) for each in mine.values())
            if any(each.last for each in mine.values()):
                break
            block = max(mine) + 1
        return rows

    if threads == 1:
        rows = float(sum(map(read, range(len(units)))))
        reader.close()
        return rows
    with ThreadPoolExecutor(threads) as workers:
        return float(sum(workers.map(read, range(len(units)))))


def in_parts(documents: list[str], parts: int = 4) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    rows = list(enumerate(documents))
    for part in range(parts):
        yield part, rows[part::parts]


def table(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table({"n": [n for n, _ in rows], "text": pa.array([text for _, text in rows], pa.large_string())})


def write_parquet(folder: Path, documents: list[str]) -> None:
    for part, rows in in_parts(documents):
        pq.write_table(table(rows), folder / f"{part}.parquet", row_group_size=10_000, compression="zstd")


def write_arrow(folder: Path, documents: list[str]) -> None:
    for part, rows in in_parts(documents):
        made = table(rows)
        with pa.ipc.new_file(folder / f"{part}.arrow", made.schema) as writer:
            writer.write_table(made, max_chunksize=10_000)


def lines(rows: list[tuple[int, str]]) -> bytes:
    return b"".join(json.dumps({"n": n, "text": text}).encode() + b"\n" for n, text in rows)


def write_jsonl(folder: Path, documents: list[str]) -> None:
    for part, rows in in_parts(documents):
        (folder / f"{part}.jsonl").write_bytes(lines(rows))


def zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd as found
    else:
        from backports import zstd as found
    return found


def write_zst(folder: Path, documents: list[str]) -> None:
    for part, rows in in_parts(documents):
        (folder / f"{part}.jsonl.zst").write_bytes(zstd().compress(lines(rows)))


def write_gz(folder: Path, documents: list[str]) -> None:
    for part, rows in in_parts(documents):
        (folder / f"{part}.jsonl.gz").write_bytes(gzip.compress(lines(rows), 6))


def bare_parquet(folder: Path) -> float:
    files = (pq.ParquetFile(path) for path in sorted(folder.iterdir()))
    return float(sum(b.num_rows for file in files for b in file.iter_batches(1024, columns=["n", "text"], use_threads=False)))


def bare_arrow(folder: Path) -> float:
    rows = 0
    for path in sorted(folder.iterdir()):
        with pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            rows += sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
    return float(rows)


_JSON = pa.schema({"n": pa.int64(), "text": pa.string()})


def _read_json(source: Any) -> int:
    parsing = pj.ParseOptions(explicit_schema=_JSON, unexpected_field_behavior="ignore")
    reading = pj.ReadOptions(use_threads=False, block_size=1 << 20)
    return int(pj.read_json(source, read_options=reading, parse_options=parsing).num_rows)


def bare_jsonl(folder: Path) -> float:
    with ThreadPoolExecutor(THREADS) as workers:
        return float(sum(workers.map(lambda path: _read_json(str(path)), sorted(folder.iterdir()))))


def _inflated(path: Path) -> bytes:
    packed = path.read_bytes()
    return gzip.decompress(packed) if path.suffix == ".gz" else bytes(zstd().decompress(packed))


def bare_compressed(folder: Path) -> float:
    with ThreadPoolExecutor(THREADS) as workers:
        return float(sum(workers.map(lambda path: _read_json(pa.BufferReader(_inflated(path))), sorted(folder.iterdir()))))


def write_mds(folder: Path, documents: list[str]) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"n": "int", "text": "str"}) as writer:
        for n, text in enumerate(documents):
            writer.write({"n": n, "text": text})


def bare_mds(folder: Path) -> float:
    from streaming import LocalDataset

    dataset = LocalDataset(str(folder))
    return float(sum(1 for n in range(len(dataset)) if dataset[n]))


def _row(row: tuple[int, str]) -> dict[str, Any]:
    return {"n": row[0], "text": row[1]}


def write_litdata(folder: Path, documents: list[str]) -> None:
    from litdata import optimize

    optimize(fn=_row, inputs=list(enumerate(documents)), output_dir=str(folder), chunk_bytes="64MB", num_workers=1, verbose=False)


def bare_litdata(folder: Path) -> float:
    from litdata import StreamingDataset

    return float(sum(1 for _ in StreamingDataset(str(folder), shuffle=False)))


def _write_tar(folder: Path, documents: list[str], files: Callable[[int, str], dict[str, Any]]) -> None:
    from webdataset import TarWriter

    for part, rows in in_parts(documents):
        with TarWriter(str(folder / f"{part}.tar")) as writer:
            for n, text in rows:
                writer.write({"__key__": f"{n:08}", **files(n, text)})


def write_tar(folder: Path, documents: list[str]) -> None:
    _write_tar(folder, documents, lambda n, text: {"txt": text, "json": {"n": n}})


def write_large_tar(folder: Path, documents: list[str]) -> None:
    """As images are: files of 20 KB that nothing decodes."""
    noise = np.random.default_rng(0).bytes(20_000)
    _write_tar(folder, documents, lambda n, text: {"bin": noise, "txt": text[:200], "json": {"n": n}})


def bare_tar(folder: Path) -> float:
    from webdataset import WebDataset

    shards = sorted(str(path) for path in folder.iterdir())
    return float(sum(1 for _ in WebDataset(shards, shardshuffle=False, empty_check=False)))


def write_lance(folder: Path, documents: list[str]) -> None:
    import lance

    for _, rows in in_parts(documents):
        lance.write_dataset(table(rows), folder / "d.lance", mode="append")


def bare_lance(folder: Path) -> float:
    import lance

    return float(sum(batch.num_rows for batch in lance.dataset(folder / "d.lance").to_batches(columns=["n", "text"])))


def write_vortex(folder: Path, documents: list[str]) -> None:
    import vortex

    for part, rows in in_parts(documents):
        vortex.io.write(table(rows), str(folder / f"{part}.vortex"))


def bare_vortex(folder: Path) -> float:
    import vortex

    scans = (vortex.open(str(path)).scan(["n", "text"]) for path in sorted(folder.iterdir()))
    return float(sum(len(array.to_arrow_array()) for scan in scans for array in scan))  # else nothing is unpacked


CONTESTS = [
    Contest("Parquet", 0.85, write_parquet, bare_parquet),
    Contest("Arrow", 0.85, write_arrow, bare_arrow),
    Contest("JSONL", 0.8, write_jsonl, bare_jsonl, THREADS, times=3),
    Contest("JSONL .zst", 0.8, write_zst, bare_compressed, THREADS, times=3),
    Contest("JSONL .gz", 0.8, write_gz, bare_compressed, THREADS, times=3),
    Contest("MDS", 3.0, write_mds, bare_mds, 1, "streaming"),
    Contest("LitData", 1.0, write_litdata, bare_litdata, 1, "litdata"),
    Contest("WebDataset, text", 10.0, write_tar, bare_tar, 1, "webdataset"),
    Contest("WebDataset, 20 KB files", 10.0, write_large_tar, bare_tar, 1, "webdataset"),
    Contest("Lance", 0.85, write_lance, bare_lance, 1, "lance"),
    Contest("Vortex", 0.85, write_vortex, bare_vortex, 1, "vortex"),
]


def compare(contest: Contest, documents: list[str], rounds: int) -> Figure:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = documents * contest.times
        contest.write(folder, documents)
        ways = {
            "ours": partial(timed, partial(ours, folder, contest.threads)),
            "bare": partial(timed, partial(contest.bare, folder)),
        }
        assert ours(folder, contest.threads) == contest.bare(folder) == len(documents)
        rates = alternate(rounds, ways)
    return Figure(f"{contest.name}, against {contest.needs}", ratio(rates["ours"], rates["bare"]), "x", contest.target)


def main() -> None:
    options = arguments(__doc__)
    documents = texts(20 if options.quick else 100)
    figures = []
    for contest in CONTESTS:
        if importlib.util.find_spec(contest.needs) is None:
            print(f"{contest.name}: {contest.needs} is not installed here")
            continue
        figures.append(compare(contest, documents, 3 if options.quick else 7))
    show(figures, options.json)


if __name__ == "__main__":
    main()
