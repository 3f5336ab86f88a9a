"""The store's Lua scripts: what every file says of itself, and that each can be run."""

from pathlib import Path

import pytest
import redis

from moldau.broker.store import scripts
from moldau.broker.store.scripts import script
from tests.support.stores.redis_server import RedisServer

FILES = sorted(Path(scripts.__file__).parent.glob("*.lua"))
SLOTTED = ("group_", "offsets_", "transac", "shares_")  # what writes to a slot
FENCE = "if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then\nreturn -1\nend"
ALLOW_OOM = "#!lua flags=allow-oom"


def test_every_script_compiles(server: RedisServer) -> None:
    with redis.from_url(server.url) as client:
        for file in FILES:
            assert client.script_load(script(file.stem)), file.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_says_what_its_script_takes(file: Path) -> None:
    lines = file.read_text().splitlines()
    opening = lines[1:] if lines[0].startswith("#!") else lines
    comments = [line for line in opening if line.startswith("--")]
    assert opening[0].startswith("-- ")
    assert any(line.startswith("-- KEYS: ") for line in comments)
    uses_arguments = "ARGV" in script(file.stem)
    assert any(line.startswith("-- ARGV: ") for line in comments) == uses_arguments


@pytest.mark.parametrize("name", [file.stem for file in FILES if file.stem.startswith(SLOTTED)])
def test_what_writes_to_a_slot_compares_its_epoch_first(name: str) -> None:
    assert script(name).removeprefix(ALLOW_OOM).lstrip().startswith(FENCE)


def test_comments_are_not_sent() -> None:
    assert "--" not in script("log_check_intact")
    assert script("log_check_intact").startswith(ALLOW_OOM)
