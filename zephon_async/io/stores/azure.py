"""What is missing in adlfs: reads of a blob on the condition that it is the one that was listed, piece by piece.

Takes the file system of adlfs, whose client of the service is used; loaded with it. Each request carries the tag as `If-Match`.
"""

from collections.abc import AsyncGenerator
from typing import Any


async def blob_pieces(file_system: Any, path: str, offset: int, length: int, tag: str) -> AsyncGenerator[bytes]:
    """The bytes of a range, as they come. Raises what the library does: a status of 412 for another blob than the tag's."""
    from azure.core import MatchConditions

    container, blob, version = file_system.split_path(path)
    condition = {"etag": tag, "match_condition": MatchConditions.IfNotModified} if tag else {}
    async with file_system.service_client.get_blob_client(container=container, blob=blob) as client:
        stream = await client.download_blob(offset=offset, length=length, version_id=version, max_concurrency=1, **condition)
        async for piece in stream.chunks():
            yield piece
