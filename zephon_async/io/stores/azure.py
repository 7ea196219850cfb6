"""Blobs of Azure, by az://, abfs:// and abfss://, with the client of adlfs.

Takes the options of adlfs, which makes the client. Listings and reads are done here, with the client itself: adlfs leaves out what
lies in a folder where a blob has the folder's name, swallows what happens while it looks, a cancelled task too, and reads without
a condition. Each read carries the tag as `If-Match`. The client tries again by itself inside of an attempt.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from zephon_async.io.stores.connection import Fault, Kind, Object
from zephon_async.io.stores.faults import fault_of
from zephon_async.io.stores.fsspec import FsspecConnection, FsspecScheme

Given = TypeVar("Given")


class AzureConnection(FsspecConnection):
    """One container."""

    streams = True

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Object]]:
        async with aclosing(_faulty(self._blobs(prefix))) as pages:
            async for page in pages:
                yield page

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        given = 0
        try:
            async with aclosing(_faulty(self._pieces(self._path(key), offset, length, tag))) as pieces:
                async for piece in pieces:
                    given += len(piece)
                    sink(piece)
        except Fault as fault:
            if fault.kind is Kind.CHANGED and tag:
                await self._compare(key, tag)  # to a condition, a blob that is gone is another one
            raise
        if given < length:
            raise Fault(Kind.TRANSIENT, f"the body ended after {given:,} of {length:,} bytes")

    async def _blobs(self, prefix: str) -> AsyncGenerator[Sequence[Object]]:
        container, _, _ = self._file_system.split_path(self._home)
        async with self._file_system.service_client.get_container_client(container) as client:
            async for page in client.list_blobs(name_starts_with=prefix or None, include=["metadata"]).by_page():
                yield [_object(blob) async for blob in page if not _is_folder(blob)]

    async def _pieces(self, path: str, offset: int, length: int, tag: str) -> AsyncGenerator[bytes]:
        from azure.core import MatchConditions

        container, name, version = self._file_system.split_path(path)
        condition = {"etag": tag, "match_condition": MatchConditions.IfNotModified} if tag else {}
        async with self._file_system.service_client.get_blob_client(container=container, blob=name) as client:
            body = await client.download_blob(offset=offset, length=length, version_id=version, max_concurrency=1, **condition)
            async for piece in body.chunks():
                yield piece


class AzureScheme(FsspecScheme):
    """Opens connections to containers."""

    connection = AzureConnection


SCHEME = AzureScheme()


async def _faulty(given: AsyncGenerator[Given]) -> AsyncGenerator[Given]:
    """Give what the library gives, and its exceptions as faults."""
    async with aclosing(given):
        while True:
            try:
                one = await anext(given)
            except StopAsyncIteration:
                return
            except Exception as error:
                raise fault_of(error) from error
            yield one


def _object(blob: Any) -> Object:
    # adlfs, which looks, gives the tag in the quotes that HTTP knows it by, and the listing gives it without
    return Object(blob.name, blob.size, '"{}"'.format(str(blob.etag).strip('"')) if blob.etag else "")


def _is_folder(blob: Any) -> bool:
    marks = {str(name).lower(): value for name, value in (blob.metadata or {}).items()}
    return marks.get("hdi_isfolder") == "true" or (blob.name.endswith("/") and not blob.size)
