"""Requests that are made from the OpenAPI document of a service."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from kalstream.runs.options import Options
from kalstream.serve.app import make_app
from kalstream.serve.service import Service

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = pytest.mark.slow

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def test_requests_of_the_document_break_nothing(tmp_path: Path) -> None:
    service = Service(tmp_path / "data")
    service.start()
    app = make_app(service)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "localhost"})
    checks = list(map(schemathesis.checks.CHECKS.get_one, CHECKS))
    statuses: dict[int, int] = {}

    def n_rows() -> dict[str, int]:
        return {name: model.n_rows for name, model in service.models.items()}

    def check(case: Any) -> None:
        service.begin("default", Options(features="raw", window=7))  # a request may remove it
        if "name" in case.path_parameters and case.method != "PUT":
            case.path_parameters["name"] = "default"
        before = n_rows()
        answer = case.call(headers={"Host": "localhost"})
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert "Traceback" not in answer.text
        case.validate_response(answer, checks=checks)
        if answer.status_code >= 400:
            assert n_rows() == before
        assert not any(model.failure for model in service.models.values())

    operations = [each.ok() for each in schema.get_all_operations()]
    for operation in operations:
        if operation.path.endswith("/stream"):  # schemathesis cannot write JSON lines
            continue
        for mode in schemathesis.GenerationMode:
            cases = operation.as_strategy(generation_mode=mode)
            many = settings(
                max_examples=150 if operation.method == "post" else 5,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            with suppress(Unsatisfiable):  # nothing about such a request can be wrong
                many(given(cases)(check))()
    service.stop()
    assert min(statuses[200], statuses[422]) > 30, statuses
