from pathlib import Path

import pyarrow.parquet as pq

from tests.writers.base import Row, Writer, each, table


def parquet(path: Path, rows: list[Row]) -> None:
    pq.write_table(table(rows), path, row_group_size=40)


WRITERS = [Writer("parquet", ".parquet", each(parquet, ".parquet"))]
