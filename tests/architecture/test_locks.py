"""The locks say what pyproject.toml asks for, each with hashes; asked without a network."""

import re
import tomllib
from functools import cache

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.tree import ROOT

pytestmark = pytest.mark.architecture

PRODUCT, DEVELOPING = "requirements.lock", "requirements-dev.lock"
# One entry: the pin, its marker, its hashes, and the comment that says who asks for it.
ENTRY = re.compile(
    r"^(?P<name>[a-z0-9._-]+)==(?P<version>[^ \n;]+)(?P<marker>[^\n]*?)"
    r"(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})*)\n(?P<via>(    #[^\n]*\n)*)",
    re.MULTILINE,
)
ASKED_HERE = re.compile(r"^    #( via)?\s+millpond \(pyproject\.toml\)$", re.MULTILINE)


@cache
def _entries(lock: str) -> list[re.Match[str]]:
    text = (ROOT / lock).read_text("utf-8")
    found = list(ENTRY.finditer(text))
    # Every line but the head belongs to an entry, so that nothing hides from the expression.
    assert "".join(match[0] for match in found) == re.sub(r"\A(#[^\n]*\n)+", "", text)
    return found


def _asked(*extras: str) -> dict[str, Requirement]:
    """Name -> what pyproject.toml asks for, with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    return {canonicalize_name(one.name): one for one in map(Requirement, texts)}


@pytest.mark.parametrize(("lock", "extras"), [(PRODUCT, ("server",)), (DEVELOPING, ("server", "plots", "dev"))])
def test_lock_when_compared_with_what_is_asked_for_then_it_is_current(lock: str, extras: tuple[str, ...]) -> None:
    asked = _asked(*extras)
    stale = [
        f"{match['name']}=={match['version']} where pyproject.toml asks for {asked[match['name']]}"
        for match in _entries(lock)
        if match["name"] in asked and not asked[match["name"]].specifier.contains(match["version"])
    ]
    assert stale == [], "run `make lock` and commit both files"
    here = {match["name"] for match in _entries(lock) if ASKED_HERE.search(match["via"])}
    assert here == set(asked), "run `make lock` and commit both files"


@pytest.mark.parametrize("lock", [PRODUCT, DEVELOPING])
def test_pins_when_listed_then_each_has_a_hash(lock: str) -> None:
    assert len(_entries(lock)) > 50
    assert [match["name"] for match in _entries(lock) if "--hash=sha256:" not in match["hashes"]] == []


def test_locks_when_compared_then_the_product_runs_what_is_tested() -> None:
    product = {(match["name"], match["version"]) for match in _entries(PRODUCT)}
    assert product - {(match["name"], match["version"]) for match in _entries(DEVELOPING)} == set()


def test_image_and_environment_when_built_then_from_the_locks_with_hashes() -> None:
    assert f"--require-hashes -r {PRODUCT}" in (ROOT / "Dockerfile").read_text("utf-8")
    assert f"--require-hashes -r {DEVELOPING}" in (ROOT / "tools/install").read_text("utf-8")
