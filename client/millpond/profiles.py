"""Profiles of the command line and the client: where Millpond is and with which key, in one 0600 file.

`$XDG_CONFIG_HOME/millpond/config.json` holds `{"current": NAME, "profiles": {NAME: {...}}}`. The environment wins:
MILLPOND_URL and MILLPOND_API_KEY over a profile, MILLPOND_PROFILE over the current one.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to reach Millpond. `virtual_pool` is where jobs go unless another is named (id or name)."""

    url: str
    api_key: str
    virtual_pool: str | None = None


class NoProfile(Exception):
    """Nothing says where Millpond is; the message says how to."""


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The file of the profiles."""
    given = environment.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".config"
    return base / "millpond" / "config.json"


def list_profiles(environment: Mapping[str, str] = os.environ) -> tuple[str | None, dict[str, Profile]]:
    """The current profile's name, and all profiles by name.

    Raises:
        NoProfile: the file cannot be read.
    """
    file = config_file(environment)
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        profiles = {name: _profile_of(fields) for name, fields in document["profiles"].items()}
        return document.get("current"), profiles
    except FileNotFoundError:
        return None, {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoProfile(f"{file} cannot be read ({type(error).__name__}: {error}); mend it or delete it") from error


def find_profile(name: str | None = None, environment: Mapping[str, str] = os.environ) -> Profile:
    """The profile to use.

    Args:
        name: The wanted one; None = MILLPOND_PROFILE, else the current one.
        environment: Where variables are read.

    Raises:
        NoProfile: there is none.
    """
    current, profiles = list_profiles(environment)
    wanted = name or environment.get("MILLPOND_PROFILE") or current
    found = profiles.get(wanted or "")
    if name and found is None:
        raise NoProfile(f"there is no profile {name!r}; known: {', '.join(sorted(profiles)) or 'none'}")
    url, key = environment.get("MILLPOND_URL"), environment.get("MILLPOND_API_KEY")
    if found is None and not (url and key):
        raise NoProfile(
            "nothing says where Millpond is: start one with `millpond up`, or use `millpond login URL`,"
            " or set MILLPOND_URL and MILLPOND_API_KEY"
        )
    found = found or Profile(url=url or "", api_key=key or "")
    return replace(found, url=url or found.url, api_key=key or found.api_key)


def save_profile(
    name: str, profile: Profile, *, make_current: bool = True, environment: Mapping[str, str] = os.environ
) -> Path:
    """Adds or replaces a profile and returns the file, which only this user can read."""
    current, profiles = list_profiles(environment)
    profiles[name] = profile
    return _write(name if make_current or current is None else current, profiles, environment)


def use_profile(name: str, environment: Mapping[str, str] = os.environ) -> None:
    """Makes a profile the current one.

    Raises:
        NoProfile: it does not exist.
    """
    _, profiles = list_profiles(environment)
    if name not in profiles:
        raise NoProfile(f"there is no profile {name!r}; known: {', '.join(sorted(profiles)) or 'none'}")
    _write(name, profiles, environment)


def _profile_of(fields: Mapping[str, str | None]) -> Profile:
    return Profile(url=str(fields["url"]), api_key=str(fields["api_key"]), virtual_pool=fields.get("virtual_pool"))


def _write(current: str, profiles: Mapping[str, Profile], environment: Mapping[str, str]) -> Path:
    file = config_file(environment)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"current": current, "profiles": {name: asdict(profile) for name, profile in profiles.items()}}
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(json.dumps(document, indent=2) + "\n")
    draft.replace(file)
    return file
