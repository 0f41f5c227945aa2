"""The API is what its description says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi_checks

from penstock.hub.http import HttpDoor
from penstock.hub.openapi import document
from penstock.log import Batch
from penstock.testing.hub import TestHub

METHODS = ("get", "put", "post", "patch", "delete")
OPERATIONS = [
    (method.upper(), path)
    for path, item in document()["paths"].items()
    for method in METHODS
    if method in item
]
CHECKS = [
    not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def filled() -> Iterator[TestHub]:
    """A hub whose streams and groups have the names that requests are likely to guess."""
    with TestHub() as hub:
        for name in ("0", "a", "-", ".0"):
            hub.log.create_stream(name, partitions=2)
            hub.log.append(name, Batch.of([b"v", b"\xff"], keys=[b"k", None]), 0)
            hub.log.register_group("0", name)
        yield hub


def test_every_route_is_described_and_every_description_has_a_route(hub: TestHub) -> None:
    door = hub.hub.doors[0]
    assert isinstance(door, HttpDoor)
    routes = {(route.method, str(route.path).replace(":[^/]+", "")) for route in door._routes()}
    assert routes == set(OPERATIONS)


def test_the_description_is_served_with_the_version(shared: TestHub) -> None:
    served = requests.get(shared.url + "/api/v1/openapi.json", timeout=30).json()
    assert served == document()
    assert served["info"]["version"] != "0"


def test_every_error_has_the_errors_schema() -> None:
    for item in document()["paths"].values():
        for method in METHODS:
            for status, answer in item.get(method, {}).get("responses", {}).items():
                if status.startswith("2") or "$ref" not in answer:
                    continue
                found = document()["components"]["responses"][answer["$ref"].rsplit("/", 1)[1]]
                schema = found["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Error"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [each for each in OPERATIONS if not each[1].endswith("/tail")],
    ids=lambda text: text,
)
def test_whatever_is_sent_the_answer_is_as_described(
    filled: TestHub, method: str, path: str
) -> None:
    loaded = schemathesis.openapi.from_dict(document())
    operation = loaded[path][method]
    modes = list(schemathesis.GenerationMode)

    @hypothesis.settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    @hypothesis.given(data=hypothesis.strategies.data())
    def send(data: Any) -> None:
        mode = data.draw(hypothesis.strategies.sampled_from(modes))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if case.query:
            case.query.pop("wait", None)  # waiting has tests of its own
        case.call_and_validate(base_url=filled.url, checks=CHECKS, timeout=30)

    send()
    assert requests.get(filled.url + "/readyz", timeout=30).status_code == 200
