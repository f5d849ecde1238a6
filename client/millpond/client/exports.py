"""Exports: charges of a period as a file, built in the background; their downloads resume and are checked."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from millpond.client.calls import create, get, get_page
from millpond.client.downloads import AGAIN, PartFile, Received
from millpond.client.errors import MillpondError, WaitTimeout, error_of
from millpond.client.nouns import Noun
from millpond.client.sending import unreachable
from millpond_contracts.bodies.bills import ExportSpec, ExportState, ExportView
from millpond_contracts.ids import ExportId, TenantId


class Exports(Noun):
    """`/v1/exports`."""

    def create(self, spec: ExportSpec) -> ExportView:
        """Orders an export; it is built in the background."""
        return self._send(create("/v1/exports", spec, ExportView))

    def list(self, *, tenant_id: TenantId | None = None) -> Iterator[ExportView]:
        """Exports."""
        return self._pages(get_page("/v1/exports", ExportView, tenant_id=tenant_id))

    def get(self, export_id: ExportId) -> ExportView:
        """One export."""
        return self._send(get(f"/v1/exports/{export_id}", ExportView))

    def wait(self, export_id: ExportId, *, timeout_seconds: float = 120.0) -> ExportView:
        """The export once it is ready.

        Raises:
            WaitTimeout: not in time.
            MillpondError: it failed.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            export = self.get(export_id)
            if export.state is ExportState.READY:
                return export
            if export.state is ExportState.FAILED:
                raise MillpondError(f"export {export_id} failed: {export.error}", code="client.export.failed")
            if time.monotonic() > deadline:
                raise WaitTimeout(f"export {export_id} is still {export.state}", code="client.wait.timeout")
            self._sender.sleep(0.3)

    def download(self, export_id: ExportId) -> str:
        """The text of an export that is ready; for long ones `stream` or `save`."""
        return b"".join(self.stream(export_id)).decode()

    def stream(self, export_id: ExportId) -> Iterator[bytes]:
        """The bytes of a ready export; a broken connection is resumed, and the end raises unless the digest is right.

        Raises:
            MillpondError: not ready, expired, or not what its digest says.
        """
        received = Received(self.get(export_id))
        yield from self._rest(export_id, received)
        received.check_whole()

    def save(self, export_id: ExportId, to: Path) -> ExportView:
        """Writes a ready export to a file, going on with what an earlier call left of it; its digest is checked.

        Until it is whole it lies beside `to`, as `<name>.<export id>.part`.

        Raises:
            MillpondError: not ready, expired, or not what its digest says.
            OSError: the file cannot be written.
        """
        export = self.get(export_id)
        part = PartFile(to, export)
        for block in self._rest(export_id, part.received):
            part.append(block)
        part.finish()
        return export

    def _rest(self, export_id: ExportId, received: Received) -> Iterator[bytes]:
        """What is missing; a broken connection is resumed where it broke."""
        failures = 0
        while not received.is_whole:
            try:
                for block in self._part(export_id, received):
                    failures = 0
                    yield block
                if not received.is_whole:
                    raise httpx.ReadError("the answer ended before the file did")
            except MillpondError as error:
                failures += 1
                if error.status not in AGAIN or failures > self._sender.policy.attempts:
                    raise
            except httpx.TransportError as error:
                failures += 1
                if failures > self._sender.policy.attempts:
                    raise unreachable(self._sender.http.base_url, error) from error
            if not received.is_whole:
                self._sender.sleep(self._sender.policy.delay_seconds(failures))

    def _part(self, export_id: ExportId, received: Received) -> Iterator[bytes]:
        """What one connection gives of the rest."""
        http, headers = self._sender.http, dict(received.headers())
        with http.stream("GET", f"/v1/exports/{export_id}/content", headers=headers) as response:
            if response.status_code >= 400:
                response.read()
                raise error_of(response)
            received.check_answer(response)
            for block in response.iter_bytes():
                received.take(block)
                yield block
