"""The examples in deploy/: each can be read, and names only what there is."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.api.app import ROUTES
from tailrace.base.config_sources import load_config
from tailrace.base.environment import list_variables
from tailrace.cli import make_parser
from tailrace.config import ServerConfig
from tailrace.models.sampling_defaults import read_sampling_defaults

DEPLOY = Path(__file__).parents[1] / "deploy"
SUFFIXES = ("_total", "_bucket", "_sum", "_count")


def test_the_settings_are_read():
    config = load_config(env={}, file=DEPLOY / "tailrace.toml")
    assert read_sampling_defaults(config.model.override_generation_config) == {"temperature": 0.7, "top_p": 0.95}
    assert set(config.server.users) == {"alice", "batch"}


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read(DEPLOY / "tailrace.service")
    return unit


def test_the_unit_starts_a_command_that_there_is_and_waits_long_enough():
    unit = read_unit()
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/tailrace")
    make_parser("serve").parse_args(words)
    config = load_config(env={}, file=DEPLOY / "tailrace.toml")
    assert int(unit["Service"]["TimeoutStopSec"]) > config.server.drain_timeout_s + 5


def test_compose_names_files_variables_and_volumes_that_there_are():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    make_parser("serve").parse_args(services["tailrace"]["command"])
    assert (DEPLOY / services["tailrace"]["build"] / "Dockerfile").exists()
    assert set(services["tailrace"]["environment"]) <= set(list_variables())
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        for used in service.get("configs", ()):
            assert yaml.safe_load(compose["configs"][used["source"]]["content"])


def test_nginx_closes_what_it_opens_and_every_statement_ends():
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    depth = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        assert line[-1] in "{};", line
        depth += line.count("{") - line.count("}")
        assert depth >= 0, line
    assert depth == 0
    [operators] = re.findall(r"location ~ (\S+) \{", text)
    for path in ("/metrics", "/metrics//", "/sleep", "/wake_up/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert re.search(operators, path), path
        assert path.rstrip("/") in {known for _, known, _ in ROUTES}
    assert not re.search(operators, "/v1/models")
    waits = int(re.findall(r"proxy_read_timeout (\d+)s", text)[0])
    assert waits > load_config(env={}, file=DEPLOY / "tailrace.toml").server.max_request_s


async def test_the_server_accepts_what_nginx_passes_on(tmp_path: Path):
    """A location with a proxy_set_header of its own inherits none of the server's."""
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    locations = re.findall(r"location [^{]*\{([^}]*)\}", text)
    around = re.sub(r"location [^{]*\{[^}]*\}", "", text)
    assert len(locations) == text.count("proxy_pass")
    for place in locations:
        headers = dict(re.findall(r"proxy_set_header (\S+) (\S+);", place if "proxy_set_header" in place else around))
        assert headers == {"Host": "$http_host", "Connection": '""'}, place
    [name] = re.findall(r"server_name (\S+);", around)
    settings = load_config(env={}, file=DEPLOY / "tailrace.toml").server
    async with front_of(LocalClient(saying(b"Hi")), make_tokenizer(tmp_path), settings) as front:
        for host, status in ((name, 200), ("other.example.com", 403)):
            assert (await front.http.get("/health", headers={"host": host})).status_code == status, host


@pytest.fixture
async def metrics(tmp_path: Path) -> set[str]:
    """The names of all metrics of a server that has answered and refused a request of a user."""
    config = ServerConfig(metrics_by_user=2, max_requests_per_user=1)
    async with front_of(LocalClient(saying(b"Hi")), make_tokenizer(tmp_path), config) as front:
        await front.chat()
        text = (await front.http.get("/metrics")).text
    return {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}


async def test_the_dashboard_shows_metrics_that_there_are(metrics: set[str]):
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expression in expressions for name in re.findall(r"tailrace_\w+", expression)}
    assert len(names) > 12
    for name in names:
        base = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
        assert {name, base} & metrics, name
