"""Schemathesis against the OpenAPI document: whatever is sent, the answer is one that the document tells of, and nothing breaks."""

import asyncio
import threading

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import busway
from busway.gateway.documents.openapi import document
from tests.support.strength import examples

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
ENDLESS = {"readEvents"}
"""Without `max` or `wait` its answer never ends."""


@pytest.fixture(scope="module")
def url():
    """A server on a loop of its own: Schemathesis asks one question after the other, and waits."""
    loop, ready, over, found = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), []

    async def serve():
        http = busway.Http(address="127.0.0.1:0", call=0.5, longest=0.5)
        async with busway.serve(http=http) as server, server.connect() as bus:
            await bus.create_stream("there", topics=["there"], store="memory")
            async with bus.serve("there/is/one", lambda _: b"3"):
                found.append((server.http, server))
                ready.set()
                await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield found[0][0]
    errors = found[0][1].stats()["errors"]
    loop.call_soon_threadsafe(over.set)
    thread.join(20)
    loop.close()
    assert errors == 0


DOCUMENT = document()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


def subscribes(case):
    """Whether it asks for an answer without end."""
    said = [case.query or {}]
    if isinstance(case.body, dict):
        said += [case.body, case.body.get("headers") or {}]
    return any(isinstance(one, dict) and str(one.get("cmd")).lower() == "sub" for one in said)


CASES = [
    pytest.param(path, method, mode, id=f"{one['operationId']}-{mode.value}")
    for path, methods in DOCUMENT["paths"].items()
    for method, one in methods.items()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if one["operationId"] not in ENDLESS
    and (mode is GenerationMode.POSITIVE or "requestBody" in one or one["operationId"] == "commandByUrl")
]


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_answers_are_those_of_the_document(path, method, mode, url):
    described = SCHEMA[path][method.upper()]

    @settings(
        max_examples=examples(12),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(described.as_strategy(generation_mode=mode))
    def holds(case):
        assume(not subscribes(case))
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)

    holds()
