"""A proxy in a process of its own that adds a delay to each request and lets so many bytes a second through in all.

    python slow_proxy.py PORT_OF_THE_SERVER DELAY_MS MB_PER_S [SHARE_OF_SLOW_ONES TIMES]

prints the port it listens on. Requests are told apart by their coming: whoever asks waits for the answer before the next. It ends
when its standard input closes.
"""

import asyncio
import random
import sys

PIECE = 1 << 17


class Pipe:
    """Lets `rate` bytes a second through, whoever sends them."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at = rate, 0.0

    async def take(self, nbytes: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + nbytes / self._rate
        if (pause := self._free_at - now) > 0.002:
            await asyncio.sleep(pause)


async def main(server: int, delay_s: float, rate: float, slow: float, times: float) -> None:
    pipe, chance = Pipe(rate), random.Random(1)

    async def up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(PIECE):
            await asyncio.sleep(delay_s * (times if chance.random() < slow else 1.0))
            writer.write(request)
            await writer.drain()
        writer.close()

    async def down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            await pipe.take(len(piece))
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", server)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(up(reader, back))
                tasks.create_task(down(there, writer))
        except* (OSError, asyncio.CancelledError):  # the latter when the program ends
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[2:]]
    delay_ms, mb_per_s, slow, times = [*numbers, 0.0, 1.0][:4]
    asyncio.run(main(int(sys.argv[1]), delay_ms / 1e3, mb_per_s * 1e6, slow, times))
