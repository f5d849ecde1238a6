"""Downloads go on where they broke, never join two files, and are checked to the last byte."""

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from millpond import AsyncClient
from millpond.client.downloads import part_of
from millpond.client.errors import MillpondError, NotFound, Unreachable
from millpond_contracts.bodies.bills import ExportFormat, ExportState, ExportView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ExportId, TenantId
from tests.unit.client.commands import run
from tests.unit.client.fake_api import KEY, URL, FakeApi, problem

pytestmark = pytest.mark.unit

CONTENT = b"".join(b"line %06d\n" % number for number in range(20_000))
DIGEST = hashlib.sha256(CONTENT).hexdigest()
EXPORT = ExportId.new()
PATH = f"/v1/exports/{EXPORT}"
AT = datetime(2026, 11, 1, tzinfo=UTC)


def view(**changes: object) -> ExportView:
    fields: dict[str, object] = {
        "export_id": EXPORT,
        "tenant_id": TenantId.new(),
        "format": ExportFormat.CSV,
        "period_start": AT,
        "period_end": AT,
        "state": ExportState.READY,
        "rows": 20_000,
        "bytes": len(CONTENT),
        "digest": DIGEST,
        "error": None,
        "created_at": AT,
        "generation": 3,
    }
    return ExportView.model_validate(fields | changes)


class Breaking(httpx.SyncByteStream):
    """A body that ends with a broken connection after some bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        yield self._body
        raise httpx.ReadError("the connection was reset")


def serve(*breaks: int, content: bytes = CONTENT, tag: str = DIGEST) -> Callable[[httpx.Request], httpx.Response]:
    """Serves ranges of the content; the first answers break off after so many bytes."""
    left = list(breaks)

    def handle(request: httpx.Request) -> httpx.Response:
        wanted = request.headers.get("range")
        assert request.headers.get("accept-encoding") == "identity"
        start = 0
        if wanted is not None and request.headers["if-range"] == f'"{tag}"':
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        headers = {"etag": f'"{tag}"', "content-length": str(len(content) - start)}
        if start:
            headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        if left:
            return httpx.Response(206 if start else 200, headers=headers, stream=Breaking(body[: left.pop(0)]))
        return httpx.Response(206 if start else 200, headers=headers, content=body)

    return handle


def api(handler: Callable[[httpx.Request], httpx.Response], **changes: object) -> FakeApi:
    return FakeApi().on("GET", PATH, view(**changes)).on("GET", f"{PATH}/content", handler)


def test_save_when_the_connection_breaks_twice_then_it_goes_on_and_the_file_is_whole(tmp_path: Path) -> None:
    found = api(serve(1000, 70_000))
    found.client().exports.save(EXPORT, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == CONTENT
    assert [one.headers.get("range") for one in found.asked("GET", f"{PATH}/content")] == [
        None, "bytes=1000-", "bytes=71000-"
    ]  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]


def test_save_when_an_earlier_program_was_killed_then_only_the_rest_is_asked_for(tmp_path: Path) -> None:
    to = tmp_path / "out.csv"
    part_of(to, EXPORT).write_bytes(CONTENT[:12_345])
    found = api(serve())
    found.client().exports.save(EXPORT, to)
    assert to.read_bytes() == CONTENT
    assert [one.headers["range"] for one in found.asked("GET", f"{PATH}/content")] == ["bytes=12345-"]


def test_save_when_all_of_it_is_there_already_then_nothing_is_asked_for(tmp_path: Path) -> None:
    to = tmp_path / "out.csv"
    part_of(to, EXPORT).write_bytes(CONTENT)
    found = api(serve())
    found.client().exports.save(EXPORT, to)
    assert to.read_bytes() == CONTENT
    assert found.asked("GET", f"{PATH}/content") == []


def test_save_when_what_was_there_is_not_the_beginning_then_the_digest_says_so_and_nothing_is_named(
    tmp_path: Path,
) -> None:
    to = tmp_path / "out.csv"
    part_of(to, EXPORT).write_bytes(b"x" * 12_345)
    with pytest.raises(MillpondError) as raised:
        api(serve()).client().exports.save(EXPORT, to)
    assert raised.value.code == "client.download.digest"
    assert list(tmp_path.iterdir()) == []


def test_save_when_the_file_has_become_another_one_then_the_two_are_never_joined(tmp_path: Path) -> None:
    to = tmp_path / "out.csv"
    part_of(to, EXPORT).write_bytes(CONTENT[:1000])
    with pytest.raises(MillpondError) as raised:
        api(serve(content=b"other", tag="0" * 64)).client().exports.save(EXPORT, to)
    assert raised.value.code == "client.download.changed"
    assert not to.exists()


async def test_save_when_awaited_then_it_goes_on_as_the_other_client_does(tmp_path: Path) -> None:
    to = tmp_path / "out.csv"
    part_of(to, EXPORT).write_bytes(CONTENT[:500])
    found = api(serve())
    async with AsyncClient(URL, KEY, transport=found.transport()) as client:
        await client.exports.save(EXPORT, to)
        assert (await client.exports.download(EXPORT)).encode() == CONTENT
        assert b"".join([block async for block in client.exports.stream(EXPORT)]) == CONTENT
    assert to.read_bytes() == CONTENT
    assert found.asked("GET", f"{PATH}/content")[0].headers["range"] == "bytes=500-"
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]


def test_stream_when_the_server_is_busy_for_a_moment_then_it_is_asked_again() -> None:
    found = api(serve())
    found.on("GET", f"{PATH}/content", problem(ErrorCode.DEPENDENCY_AWAY, "later"), serve())
    assert found.client().exports.download(EXPORT).encode() == CONTENT
    assert len(found.slept) == 1


def test_stream_when_it_always_breaks_then_it_gives_up_and_when_refused_says_why() -> None:
    found = api(serve(*[0] * 20))
    with pytest.raises(Unreachable):
        found.client(attempts=3).exports.download(EXPORT)
    assert len(found.asked("GET", f"{PATH}/content")) == 4
    short = api(lambda _: httpx.Response(200, headers={"etag": f'"{DIGEST}"'}, content=b""))
    with pytest.raises(Unreachable, match="ended before the file did"):
        short.client(attempts=3).exports.download(EXPORT)
    refused = FakeApi().on("GET", PATH, view())
    refused.on("GET", f"{PATH}/content", problem(ErrorCode.EXPORT_NOT_FOUND, "no such export"))
    with pytest.raises(NotFound):
        refused.client().exports.download(EXPORT)


def test_export_command_when_an_export_is_named_then_it_is_downloaded_and_none_is_ordered(tmp_path: Path) -> None:
    found = api(serve())
    to = tmp_path / "out.csv"
    result = run(found, "export", "--id", str(EXPORT), "--to", str(to))
    assert to.read_bytes() == CONTENT
    assert found.asked("POST", "/v1/exports") == []
    assert f"20000 lines in {to}" in result.err


def test_export_command_when_no_file_is_named_then_the_bytes_come_out_and_a_wrong_digest_ends_with_an_error() -> None:
    assert run(api(serve()), "export", "--id", str(EXPORT)).out == CONTENT.decode()
    wrong = "1" * 64
    broken = api(serve(tag=wrong), digest=wrong)
    result = run(broken, "export", "--id", str(EXPORT))
    assert result.code == 1
    assert "SHA-256" in result.err
