"""Runs one scenario: HTTP requests and what is expected of the answers, side by side in a YAML file.

A file is a list of steps. A step has `call: METHOD /path` or `given: <preparation>` (see `given.py`), and may have

* `as`: whose credentials: `operator`, `nobody`, or a saved name (default `operator`);
* `body`, `headers` (a null header is not sent; a POST gets a fresh Idempotency-Key);
* `expect`: `status`, `body`, `headers`, `text` (each must be contained), `no_text`; matched as `differences` says;
* `save`: name -> place in the answer, such as `items.0.job_id` or `header:etag`;
* `eventually`: seconds in which the expectation has to come true; else it must hold at once.

`${name}` is replaced by what was saved; `${scenario}` by the file's name.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import yaml

from tests.integration.services import Services
from tests.scenarios.given import GIVEN

RETRY_SECONDS = 0.05
STEP_KEYS = {"call", "given", "as", "body", "headers", "expect", "save", "eventually", "with"}
EXPECT_KEYS = {"status", "body", "headers", "text", "no_text"}
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class StepFailed(AssertionError):
    """A step whose answer was not as expected; the message shows step, request, expectation and answer."""


@dataclass(slots=True)
class Scenario:
    """A file's steps and what they saved so far."""

    services: Services
    name: str
    saved: dict[str, Any] = field(default_factory=dict)

    async def run(self, text: str) -> int:
        """Runs every step; the number of expectations that were met.

        Raises:
            StepFailed: an answer was not as expected.
        """
        self.saved |= {"scenario": self.name, "operator": self.services.operator_key}
        steps = yaml.safe_load(text)
        met = 0
        for number, raw in enumerate(steps, 1):
            unknown = set(raw) - STEP_KEYS | set(raw.get("expect") or {}) - EXPECT_KEYS
            assert not unknown, f"{self.name}, step {number}: unknown keys {sorted(unknown)}"
            if "given" in raw:
                await GIVEN[raw["given"]](self.services, self.saved, self._filled(raw.get("with") or {}))
            else:
                await self._run_step(number, raw)
                met += 1
        return met

    async def _run_step(self, number: int, raw: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + raw.get("eventually", 0)
        while True:
            step = self._filled(raw)
            answer = await self._send(step)
            wrong = differences_of(step.get("expect") or {}, answer)
            if not wrong:
                break
            if loop.time() >= deadline:
                raise StepFailed(_report(self.name, number, step, answer, wrong))
            await asyncio.sleep(RETRY_SECONDS)
        for name, place in (step.get("save") or {}).items():
            self.saved[name] = find(answer, place)

    async def _send(self, step: Mapping[str, Any]) -> httpx.Response:
        method, _, path = step["call"].partition(" ")
        who = step.get("as", "operator")
        headers: dict[str, str | None] = {}
        if who != "nobody":
            headers["Authorization"] = f"Bearer {self.saved[who]}"
        if method == "POST":
            headers["Idempotency-Key"] = uuid4().hex
        headers |= step.get("headers") or {}
        sent = {name: str(value) for name, value in headers.items() if value is not None}
        body = {"json": step["body"]} if "body" in step else {}
        return await self.services.http.request(method, path, headers=sent, **body)

    def _filled(self, value: Any) -> Any:
        """The value with `${name}` replaced; a text that is nothing else keeps the type of what was saved."""
        if isinstance(value, dict):
            return {self._filled(key): self._filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._filled(inner) for inner in value]
        if not isinstance(value, str):
            return value
        whole = _VARIABLE.fullmatch(value)
        if whole:
            return self.saved[whole[1]]
        return _VARIABLE.sub(lambda match: str(self.saved[match[1]]), value)


def find(answer: httpx.Response, place: str) -> Any:
    """What stands at a place of an answer."""
    if place.startswith("header:"):
        return answer.headers[place.removeprefix("header:")]
    value = answer.json()
    for part in place.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def differences_of(expect: Mapping[str, Any], answer: httpx.Response) -> list[str]:
    """What is not as expected; empty when all is."""
    wrong = []
    if answer.status_code != expect.get("status", 200):
        wrong.append(f"status: expected {expect.get('status', 200)}, found {answer.status_code}")
    for name, value in (expect.get("headers") or {}).items():
        wrong += differences(value, answer.headers.get(name), f"header {name}")
    wrong += [f"text: {part!r} is missing" for part in expect.get("text") or () if part not in answer.text]
    wrong += [f"text: {part!r} is there" for part in expect.get("no_text") or () if part in answer.text]
    if "body" in expect and not wrong:
        wrong += differences(expect["body"], answer.json() if answer.content else None, "body")
    return wrong


def differences(wanted: Any, found: Any, place: str) -> list[str]:
    """Where `found` is not as `wanted` says.

    An object needs the wanted keys and may have others; a list needs as many items in this order. `<any>` = something
    not null; `<~ regex>` = text like this; `{$contains: x}` = a list with an item like x; `{$lacks: x}` = without one.
    """
    if isinstance(wanted, dict) and len(wanted) == 1 and wanted.keys() <= {"$contains", "$lacks"}:
        item = wanted.get("$contains", wanted.get("$lacks"))
        is_there = any(not differences(item, one, "") for one in found or ())
        return [] if is_there == ("$contains" in wanted) else [f"{place}: expected {wanted}, found {found}"]
    if isinstance(wanted, dict) and isinstance(found, dict):
        missing = [f"{place}.{key}: missing" for key in wanted if key not in found]
        there = ((key, inner) for key, inner in wanted.items() if key in found)
        return missing + [line for key, inner in there for line in differences(inner, found[key], f"{place}.{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{place}.{index}")]
    if wanted == "<any>":
        fits = found is not None
    elif isinstance(wanted, str) and wanted.startswith("<~ "):
        fits = isinstance(found, str) and re.search(wanted[3:-1], found) is not None
    else:
        fits = type(wanted) is type(found) and wanted == found
    return [] if fits else [f"{place}: expected {wanted!r}, found {found!r}"]


def _report(name: str, number: int, step: Mapping[str, Any], answer: httpx.Response, wrong: list[str]) -> str:
    lines = [f"{name}.yaml, step {number}: {step['call']} as {step.get('as', 'operator')}"]
    if "body" in step:
        lines.append(f"  body: {json.dumps(step['body'])}")
    lines.append(f"  expected: {json.dumps(step.get('expect') or {'status': 200})}")
    lines.append(f"  answered: {answer.status_code} {answer.text[:2000]}")
    return "\n".join(lines + [f"  wrong: {line}" for line in wrong])
