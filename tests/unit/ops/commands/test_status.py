"""Which broker `moldau status` asks for."""

import pytest

from moldau.ops.commands.status import local_port


@pytest.mark.parametrize(
    ("flag", "env", "port"),
    [
        (None, {}, 9092),
        (None, {"MOLDAU_PORT": "1111"}, 1111),
        (None, {"MOLDAU_PORT": "1111", "MOLDAU_BOOTSTRAP": "localhost:2222"}, 2222),
        (None, {"MOLDAU_BOOTSTRAP": "[::1]:2222,localhost:3333"}, 2222),
        ("4444", {"MOLDAU_PORT": "1111", "MOLDAU_BOOTSTRAP": "localhost:2222"}, 4444),
    ],
)
def test_the_port_is_that_of_the_other_commands(
    flag: str | None, env: dict[str, str], port: int
) -> None:
    assert local_port(flag, env) == port


@pytest.mark.parametrize(
    ("flag", "env", "cause"),
    [
        ("many", {}, "--port"),
        (None, {"MOLDAU_BOOTSTRAP": "localhost"}, "MOLDAU_BOOTSTRAP.*HOST:PORT"),
        (None, {"MOLDAU_PORT": "0"}, "MOLDAU_PORT"),
    ],
)
def test_a_port_that_is_none(flag: str | None, env: dict[str, str], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        local_port(flag, env)
