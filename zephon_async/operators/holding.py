"""The rows that an accumulator holds until there are enough of them."""

from zephon_async.records import Records


class Holding:
    """Rows in their order; `held_rows` and `held_bytes` as `Accumulator` wants them."""

    def __init__(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Hold nothing."""
        self._held: list[Records] = []
        self.held_rows = self.held_bytes = 0

    def hold(self, records: Records) -> None:
        """Take rows (at least one) behind those that are held."""
        self._held.append(records)
        self.held_rows += len(records)
        self.held_bytes += records.nbytes

    def release(self, rows: int) -> Records:
        """Give the first `rows` rows (at least one) and hold the rest."""
        parts: list[Records] = []
        held, left = self._held, rows
        self.let_go()
        for part in held:
            if left:
                parts.append(part.slice(0, min(left, len(part))))
            if left < len(part):
                self.hold(part.slice(left, len(part)))
            left -= min(left, len(part))
        return Records.concat(parts)
