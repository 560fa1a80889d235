"""Settings: flag over environment over file over default, and every error names its field."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.config import SECTIONS, Config, ModelConfig, fields, load
from tailrace.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tailrace.toml"
    path.write_text('[server]\nport = 1\nhost = "file"\n[scheduler]\nmax_num_seqs = 3\n')
    return path


def test_defaults():
    assert load(env={}) == Config()


def test_each_source_beats_the_one_below(file: Path):
    assert load(env={}, file=file).server.port == 1
    env = {"TAILRACE_SERVER_PORT": "2"}
    assert load(env=env, file=file).server.port == 2
    config = load({"server": {"port": 3, "host": None}}, env, file)
    assert (config.server.port, config.server.host, config.scheduler.max_num_seqs) == (3, "file", 3)


def test_the_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TAILRACE_SERVER_PORT", "4321")
    assert load().server.port == 4321


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_can_be_set_from_the_environment(section: str):
    for field in fields(section):
        value = msgspec.to_builtins(getattr(getattr(load(env={}), section), field))
        text = "something" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        found = getattr(getattr(load(env={f"TAILRACE_{section}_{field}".upper(): text}), section), field)
        assert found == (text if value is None else value)


def test_words_for_booleans():
    assert load(env={"TAILRACE_CACHE_PREFIX_REUSE": "false"}).cache.prefix_reuse is False
    assert load(env={"TAILRACE_CACHE_PREFIX_REUSE": "1"}).cache.prefix_reuse is True


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"server": {"port": "many"}}, r"int.*server\.port"),
        ({"server": {"port": 70000}}, r"<= 65535.*server\.port"),
        ({"scheduler": {"max_num_seqs": 0}}, r">= 1.*scheduler\.max_num_seqs"),
        ({"cache": {"memory_gib": -1}}, r">= 0.*cache\.memory_gib"),
        ({"server": {"drain_timeout_s": 0}}, r"> 0.*server\.drain_timeout_s"),
        ({"model": {"dtype": "int4"}}, r"'int4'.*model\.dtype"),
        ({"model": {"size": 1}}, "unknown field `size`.*model"),
    ],
)
def test_errors_name_the_field(flags: dict[str, dict[str, object]], said: str):
    with pytest.raises(ConfigError, match=said):
        load(flags, env={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nx = 1\n", r"unknown table \[engine\]"),
        ("model = 1\n", "unknown table"),
        ("[model]\nsize = 1\n", "unknown field `size`"),
        ("[[", "tailrace.toml"),
    ],
)
def test_errors_of_a_file(tmp_path: Path, text: str, said: str):
    path = tmp_path / "tailrace.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(env={}, file=path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match="nothing"):
        load(env={}, file=tmp_path / "nothing.toml")


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert ModelConfig().cache_dir == "/somewhere/tailrace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/one")
    assert ModelConfig().cache_dir == "/home/one/.cache/tailrace"


def test_sections_are_frozen():
    with pytest.raises(AttributeError):
        Config().server.port = 1  # type: ignore[misc]
