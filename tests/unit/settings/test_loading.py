"""Settings: their sources, precedence, and the messages for mistakes."""

from pathlib import Path

import pytest

from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.options import OPTIONS, Option
from moldau.broker.settings.processes import (
    ConfigError,
    Endpoint,
    ProcessListener,
    ProcessSockets,
    ServeSettings,
    WorkerSettings,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "moldau.toml"


def load(
    file: Path | None = None, env: dict[str, str] | None = None, **flags: object
) -> ServeSettings:
    return load_settings(flags, env or {}, str(file) if file is not None else None)


# --- precedence ------------------------------------------------------------------------------


def test_flag_beats_environment_beats_file_beats_default(file: Path) -> None:
    file.write_text("port = 1001")
    env = {"MOLDAU_PORT": "1002"}
    assert load().port == 9092
    assert load(file).port == 1001
    assert load(file, env).port == 1002
    assert load(file, env, port="1003").port == 1003


def test_the_file_may_be_named_in_the_environment(file: Path) -> None:
    file.write_text("port = 1001")
    assert load(env={"MOLDAU_CONFIG": str(file)}).port == 1001


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert load(env={"MOLDAU_PORT": ""}).port == 9092


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_a_flag_a_variable_and_a_key(option: Option, file: Path) -> None:
    samples = {
        "host": "10.0.0.1",
        "advertised_host": "example.org",
        "http": "127.0.0.1:8000",
        "console": "read-only",
        "console_url": "https://moldau.example",
        "listeners": "PLAINTEXT://10.0.0.1:7000",
        "advertised_listeners": "PLAINTEXT://example.org:7000",
        "listener_security_protocol_map": "INSIDE:SSL",
        "secure": "true",
        "insecure": "true",
        "advertise": "router",
        "redis": "redis://10.0.0.1:6379/2",
        "data_dir": "/somewhere",
        "store_fsync": "always",
        "log_level": "debug",
        "log_json": "true",
        "spare_process": "false",
        "exit_with_parent": "true",
        "standby": "true",
        "store_maxmemory": "4gb",
        "tail_cache_bytes": "64mb",
        "max_request_bytes": "64mb",
        "inflight_bytes": "64mb",
        "connection_inflight_bytes": "16mb",
    }
    name = option.field
    sample = samples.get(name, "7")
    file.write_text(f'{option.name} = "{sample}"')
    default = getattr(load(), name)
    values = {
        str(getattr(settings, name))
        for settings in (
            load(file),
            load(env={option.env: sample}),
            load_settings({name: sample}, {}),
        )
    }
    assert len(values) == 1
    assert values != {str(default)}


# --- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1048576", 1 << 20), ("512mb", 512 << 20), ("4GB", 4 << 30), ("2 MiB", 2 << 20)],
)
def test_sizes_are_bytes_or_have_a_unit(text: str, size: int) -> None:
    assert load(store_maxmemory=text).store_maxmemory == size


def test_toml_types_are_taken_as_they_are(file: Path) -> None:
    file.write_text("port = 1001\nlog-json = true\nstore-maxmemory = 4096\nworkers = 3")
    settings = load(file)
    assert (settings.port, settings.log_json, settings.store_maxmemory, settings.workers) == (
        1001,
        True,
        4096,
        3,
    )


def test_data_dir_follows_the_xdg_convention_and_is_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/jan")
    assert load().data_dir == "/home/jan/.local/share/moldau"
    assert load(env={"XDG_DATA_HOME": "/data"}).data_dir == "/data/moldau"
    assert load(data_dir="~/logs").data_dir == "/home/jan/logs"
    assert load(data_dir="logs").data_dir == str(tmp_path / "logs")


# --- Kafka's broker settings -----------------------------------------------------------------


def test_broker_keys_may_be_quoted_or_dotted(file: Path) -> None:
    file.write_text(
        "[broker]\n"
        '"num.partitions" = 3\n'
        "log.retention.ms = 1000\n"
        "auto.create.topics.enable = false\n"
        'log.cleanup.policy = ["compact", "delete"]\n'
    )
    assert load(file).broker == {
        "num.partitions": "3",
        "log.retention.ms": "1000",
        "auto.create.topics.enable": "false",
        "log.cleanup.policy": "compact,delete",
    }


def test_broker_keys_from_the_environment_win_over_the_file(file: Path) -> None:
    file.write_text('[broker]\n"num.partitions" = 3\n"log.retention.ms" = 5')
    settings = load(file, {"MOLDAU_BROKER_NUM_PARTITIONS": "9"})
    assert settings.broker == {"num.partitions": "9", "log.retention.ms": "5"}


# --- slips -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"moldau\.toml: unknown key 'prot'; did you mean 'port'\?"),
        ("data_dir = '/x'", r"unknown key 'data_dir'; did you mean 'data-dir'\?"),
        ("'num.partitions' = 3", r"unknown key 'num.partitions'; .* go under \[broker\]"),
        ("colour = 'red'", r"unknown key 'colour'$"),
        ("port = 'many'", r"moldau\.toml: port: expected a whole number, got 'many'"),
        ("port = true", r"port: expected a whole number"),
        ("port = 70000", r"port: expected a number from 1 to 65534, got 70000"),
        ("store-fsync = 'hourly'", r"expected one of everysec, always, no, got 'hourly'"),
        ("store-maxmemory = 'much'", r"store-maxmemory: expected bytes such as"),
        ("port 1", r"moldau\.toml: not valid TOML: .*line 1"),
        ("broker = 3", r"broker: expected a table"),
        ("[broker]\nx = 2020-01-01", r"broker\.x: expected text, a number or true/false"),
        ("advertised-host = '0.0.0.0'", r"not an address clients can connect to"),
        ("port = 65500\nworkers = 200", r"needs ports up to 65700"),
        ("inflight-bytes = '8mb'", r"connection-inflight-bytes is larger than inflight-bytes"),
    ],
)
def test_a_slip_in_the_file_is_named(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere\.toml: cannot be read: No such file"):
        load(Path("/nowhere.toml"))


def test_a_slip_names_the_flag_or_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"^--workers: expected a number from 1 to 256"):
        load(workers="0")
    with pytest.raises(ConfigError, match=r"^MOLDAU_WORKERS: expected a whole number, got 'x'"):
        load(env={"MOLDAU_WORKERS": "x"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MOLDAU_WORKER", "did you mean MOLDAU_WORKERS?"),
        ("MOLDAU_PROT", "did you mean MOLDAU_PORT?"),
        ("MOLDAU_PORTS", "did you mean MOLDAU_PORT?"),
        ("MOLDAU_ZZZ", "see serve --help"),
        ("MOLDAU_WEB_PORT", ""),
        ("MOLDAU_", "see serve --help"),
    ],
)
def test_an_unknown_variable_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(env={name: "1"})
    assert str(raised.value).startswith(f"unknown variable {name}; ")
    assert hint in str(raised.value)


def test_variables_of_others_are_left_alone() -> None:
    # What Kubernetes sets for a service called moldau.
    links = {
        "MOLDAU_SERVICE_HOST": "10.0.0.1",
        "MOLDAU_SERVICE_PORT": "9092",
        "MOLDAU_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "MOLDAU_PORT_9092_TCP_ADDR": "10.0.0.1",
        "MOLDAU_PORT_9092_TCP_PROTO": "tcp",
        "MOLDAU_SERVICE_PORT_KAFKA": "9092",
        "MOLDAU_WEB_SERVICE_HOST": "10.0.0.2",
        "MOLDAU_WEB_PORT": "tcp://10.0.0.2:80",
        "MOLDAU_WEB_PORT_80_TCP_PORT": "80",
        "MOLDAU_LOAD_SHAPE": "churn",
        "MOLDAU_BOOTSTRAP": "localhost:9092",
        "MOLDAU_COMMAND_CONFIG": "client.properties",
        "SOMETHING_ELSE": "1",
    }
    assert load(env={**links, "MOLDAU_RUNTIME_DIR": "/run/x"}) == load()


def test_a_kubernetes_service_link_is_recognised() -> None:
    with pytest.raises(ConfigError, match="enableServiceLinks: false"):
        load(env={"MOLDAU_PORT": "tcp://10.0.0.1:9092"})


def test_a_bad_redis_url_is_not_repeated_since_it_may_hold_a_password() -> None:
    with pytest.raises(ConfigError, match="--redis: expected redis://host:port") as raised:
        load(redis="http://:secret@host")
    assert "secret" not in str(raised.value)


# --- what follows from them ------------------------------------------------------------------


def test_workers_are_advertised_with_their_own_ports() -> None:
    settings = load(port="2000", workers="2", host="127.0.0.1", advertised_host="example.org")
    (listener,) = settings.listening
    assert [*listener.ports(2)] == [2000, 2001, 2002]
    assert listener.endpoints(2, "workers") == [
        Endpoint(0, "example.org", 2001),
        Endpoint(1, "example.org", 2002),
    ]


def test_the_http_process_is_on_loopback_and_below_the_port_unless_named() -> None:
    assert load(port="9092", host="0.0.0.0").http_address() == ("127.0.0.1", 8092)
    assert load(http="[::1]:80").http_address() == ("::1", 80)
    assert load(http="off").http_address() is None
    assert load(port="900").http_address() is None  # there is no port so far below


def test_the_router_is_advertised_alone() -> None:
    settings = load(port="2000", workers="2", advertise="router")
    (listener,) = settings.listening
    assert listener.endpoints(2, settings.advertise) == [Endpoint(0, "127.0.0.1", 2000)]


def test_a_wildcard_address_is_never_advertised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "prague")
    assert load(host="0.0.0.0").listening[0].advertised_host == "prague"
    assert load(host="0.0.0.0", advertised_host="x.org").listening[0].advertised_host == "x.org"


def test_a_worker_gets_all_it_needs() -> None:
    settings = load(port="2000", workers="3", tail_cache_bytes="1mb", log_level="debug")
    (listener,) = settings.listening
    sockets = ProcessSockets(7, [[8]])
    worker = settings.worker(1, redis_url="unix:///s", sockets=sockets, worker_sockets=["/a"])
    assert worker.descriptors == [7, 8]
    brokers = [Endpoint(index, "127.0.0.1", 2001 + index) for index in range(3)]
    assert worker == WorkerSettings(
        index=1,
        workers=3,
        unix_socket=7,
        listeners=[ProcessListener(listener, 2002, brokers, [8])],
        redis_url="unix:///s",
        worker_sockets=["/a"],
        data_dir=settings.data_dir,
        tail_cache_bytes=1 << 20,
        log_level="debug",
    )
