"""Moldau built, installed into a fresh environment and started outside of the tree."""

import json
import os
import re
import signal
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from tests.integration.wheel import build_source, build_wheel, copy_tree, install_in_venv
from tests.support.brokers.running import ROOT, clean_environment, free_ports, wait_until
from tests.support.pipeline.public_module import check_public_module

FOLDERS = ("broker", "router", "ops", "loadtest")
MODULES = ("moldau", *(f"moldau.{name}" for name in FOLDERS))
WHERE = f"""
import importlib, json
print(json.dumps([importlib.import_module(name).__file__ for name in {MODULES}]))
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation beside an application that has packages named like our folders."""
    installed = install_in_venv(tmp_path_factory.mktemp("wheel"))
    for name in FOLDERS:
        package = site_packages(installed) / name
        package.mkdir()  # fails if ours is there
        (package / "__init__.py").write_text(f"OWNER = 'the application'\nNAME = {name!r}\n")
    return installed


def site_packages(scripts: Path) -> Path:
    (site,) = scripts.parent.glob("lib/python3*/site-packages")
    return site


def environment(directory: Path) -> dict[str, str]:
    """A user's: nothing in it leads to the tree."""
    inherited = clean_environment()
    inherited.pop("PYTHONPATH", None)
    return {**inherited, "MOLDAU_RUNTIME_DIR": str(directory / "run")}


def run(program: Path, *words: str, directory: Path) -> str:
    done = subprocess.run(
        [program, *words], cwd=directory, env=environment(directory), timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_source_distribution_gives_the_wheel_of_the_tree(tmp_path: Path) -> None:
    for name in ("from_source", "from_tree"):
        (tmp_path / name).mkdir()
    source = build_source(tmp_path / "from_source")
    wheels = [
        build_wheel(source, tmp_path / "from_source" / "wheels"),
        build_wheel(copy_tree(tmp_path / "from_tree"), tmp_path / "from_tree" / "wheels"),
    ]
    sums = [
        {each.filename: each.CRC for each in zipfile.ZipFile(wheel).infolist()} for wheel in wheels
    ]
    for found in sums:  # the metadata names the tool and its options
        assert any(found.pop(name) for name in list(found) if name.endswith("/RECORD"))
    assert sums[0] == sums[1]
    names = sums[0].keys()
    assert not [name for name in names if name.startswith(("tests/", "moldau/ops/docs/"))]
    with tarfile.open(source) as packed:
        inside = {member.name.partition("/")[2] for member in packed}
    assert {"CHANGELOG.md", "SECURITY.md", "LICENSE", "README.md"} <= inside


def test_everything_comes_from_the_wheel(scripts: Path, tmp_path: Path) -> None:
    for found in json.loads(run(scripts / "python", "-c", WHERE, directory=tmp_path)):
        assert Path(found).is_relative_to(scripts.parent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    printed = run(scripts / "moldau", "--version", directory=tmp_path)
    assert printed == f"moldau {project['version']}\n"


def test_programs_import_the_public_module(scripts: Path, tmp_path: Path) -> None:
    check_public_module(scripts / "python", scripts.parent, tmp_path)
    assert (site_packages(scripts) / "moldau" / "py.typed").exists()


def test_an_application_may_have_packages_of_these_names(scripts: Path, tmp_path: Path) -> None:
    program = "import broker, router, ops, loadtest, moldau.ops.cli; print(broker.OWNER, ops.NAME)"
    printed = run(scripts / "python", "-c", program, directory=tmp_path)
    assert printed == "the application ops\n"
    (metadata,) = site_packages(scripts).glob("moldau-*.dist-info")
    assert (metadata / "top_level.txt").read_text() == "moldau\n"


def test_it_serves(scripts: Path, tmp_path: Path) -> None:
    port = free_ports(2)
    command = [str(scripts / "moldau"), "serve", "--port", str(port), "--workers", "1"]
    # What is in the current directory must not be taken for the broker.
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "__init__.py").write_text("raise ImportError('not this one')\n")
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--data-dir", str(tmp_path / "data")],
            cwd=tmp_path, env=environment(tmp_path), stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until(lambda: "moldau ready" in log.read_text(), 60, "it is ready")
        url = re.search(r" http=(\S+)", log.read_text())
        assert url is not None
        with urlopen(url[1]) as page:  # a page of the console, from its templates
            assert "<title>" in page.read().decode()
        # Native topics need a data file of the package, the store's function library.
        name = ("topics", "create", "shared", "--config", "moldau.storage=native")
        address = ("--bootstrap", f"127.0.0.1:{port}")
        assert "created" in run(scripts / "moldau", *name, *address, directory=tmp_path)
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
        for topic in ("shared", "plain"):
            producer.produce(topic, b"a record")
        assert producer.flush(30) == 0
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
    assert code == 0, log.read_text()
    assert os.listdir(tmp_path / "data" / "store" / "appendonlydir")
