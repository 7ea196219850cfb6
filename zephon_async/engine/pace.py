"""How many rows a chunk should have: as many as take a moment, so that what is needed first is not kept waiting.

But what a chunk costs however few rows it has (its columns, the way to another process) should be a small part of it: a chunk of
two rows of hundreds of columns costs nearly as much as one of two hundred. So both are reckoned from the chunks so far, by a
straight line through their rows and seconds; every other chunk is half as large, for a line needs two points.

Threads: everything belongs to the engine's loop.
"""

_CHUNK_S = 0.05  # that the stateless work of a chunk should take
_FIRST_ROWS = 8
_SMALL = 5.0  # times what a chunk costs by itself, at least, that it should take
_FORGET = 0.95  # of what is known, with each chunk
_LEAST_SLOPE = 0.1  # of the seconds of a row on average, which a row costs at least


class Pace:
    """The rows of the next chunk, from what the last ones took."""

    def __init__(self) -> None:
        self._most, self._largest, self._half = _FIRST_ROWS, float(_FIRST_ROWS), True
        self._chunks = self._rows = self._busy_s = self._squares = self._products = 0.0

    def next(self) -> int:
        """Rows of the next chunk."""
        self._half = not self._half
        return max(1, self._most // 2) if self._half else self._most

    def add(self, rows: int, busy_s: float) -> None:
        """A chunk of so many rows took so long."""
        if not rows:
            return
        self._chunks = _FORGET * self._chunks + 1
        self._rows = _FORGET * self._rows + rows
        self._busy_s = _FORGET * self._busy_s + busy_s
        self._squares = _FORGET * self._squares + rows * rows
        self._products = _FORGET * self._products + rows * busy_s
        usual_rows, usual_s = self._rows / self._chunks, self._busy_s / self._chunks
        spread = self._squares / self._chunks - usual_rows**2
        together = self._products / self._chunks - usual_rows * usual_s
        average = max(usual_s / usual_rows, 1e-9)
        row_s = min(max(together / spread if spread > 0.25 else average, _LEAST_SLOPE * average), average)
        own_s = usual_s - usual_rows * row_s
        wanted = max(_CHUNK_S - own_s, (_SMALL - 1) * own_s) / row_s
        self._largest = max(rows, _FORGET * self._largest)
        self._most = max(1, int(min(wanted, 2 * self._largest)))  # what was seen is not trusted further than that
