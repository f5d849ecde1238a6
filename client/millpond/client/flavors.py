"""Flavors: classes of devices, and the accelerator catalogue behind most of them."""

from collections.abc import Iterator

from millpond.client.calls import change, create, delete, get, get_page
from millpond.client.nouns import Noun
from millpond_contracts.bodies.devices import AcceleratorView
from millpond_contracts.bodies.nodes import FlavorSpec, FlavorView
from millpond_contracts.bodies.shapes import Page


class Flavors(Noun):
    """`/v1/flavors` and `/v1/accelerators`. A flavor's name is its id."""

    def create(self, spec: FlavorSpec) -> FlavorView:
        """Creates a flavor."""
        return self._send(create("/v1/flavors", spec, FlavorView))

    def list(self) -> Iterator[FlavorView]:
        """Flavors by name."""
        return self._pages(get_page("/v1/flavors", FlavorView))

    def get(self, name: str) -> FlavorView:
        """One flavor."""
        return self._send(get(f"/v1/flavors/{name}", FlavorView))

    def replace(self, flavor: FlavorView, spec: FlavorSpec) -> FlavorView:
        """Replaces an operator's flavor."""
        return self._send(change("PUT", f"/v1/flavors/{flavor.name}", spec, FlavorView, flavor.generation))

    def delete(self, flavor: FlavorView) -> None:
        """Deletes an operator's flavor."""
        self._send(delete(f"/v1/flavors/{flavor.name}", flavor.generation))

    def catalogue(self, *, vendor: str | None = None) -> Iterator[AcceleratorView]:
        """The accelerator catalogue."""
        return self._pages(get("/v1/accelerators", Page[AcceleratorView], vendor=vendor))
