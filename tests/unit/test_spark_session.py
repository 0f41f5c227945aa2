from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile

import pytest

from penstock.errors import BadSetting, SparkUnreachable
from penstock.spark import jars, session
from penstock.spark.package import package_zip


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def nobody() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_callers_settings_win_and_lists_grow():
    settings = session._settings(
        "local[2]",
        False,
        {
            "spark.ui.enabled": "true",
            "spark.driver.extraJavaOptions": "-Dmine=1",
            "spark.jars": "/mine.jar",
        },
    )
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:")
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert settings["spark.jars"] == "/mine.jar"
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_delta_is_added_to_other_extensions(fake_jars):
    jars.fetch(["delta"])
    settings = session._settings(
        "local", True, {"spark.sql.extensions": "org.example.Mine", "spark.jars": "/mine.jar"}
    )
    assert settings["spark.sql.extensions"].endswith("DeltaSparkSessionExtension,org.example.Mine")
    assert settings["spark.jars"].split(",") == [
        *map(str, jars.paths("delta")),
        "/mine.jar",
    ]


def test_only_clusters_get_the_package_and_keep_their_checkpoint_manager():
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    for master in ("local", "local[*]", "local[2,4]"):
        settings = session._settings(master, False, {})
        assert manager in settings
        assert "spark.submit.pyFiles" not in settings
    for master in ("spark://host:7077", "yarn", "k8s://https://host", "local-cluster[1,1,1024]"):
        settings = session._settings(master, False, {})
        assert manager not in settings
        assert settings["spark.submit.pyFiles"] == str(package_zip())


@pytest.mark.parametrize(
    ("master", "remote", "message"),
    [
        ("local", "sc://here", "not both"),
        ("sc://here", None, "as remote"),
    ],
)
def test_two_places_for_one_session_are_refused(master, remote, message):
    with pytest.raises(BadSetting, match=message):
        session._where(master, remote)


def test_spark_remote_holds_if_nothing_else_is_said(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://here")
    assert session._where(None, None) == (None, "sc://here")
    assert session._where(None, "sc://there") == (None, "sc://there")
    with pytest.raises(BadSetting, match="unset it"):
        session._where("local", None)


@pytest.mark.parametrize("scheme", ["sc", "spark"])
def test_nobody_at_an_address_is_told_at_once(scheme):
    with pytest.raises(SparkUnreachable, match=r"no Spark .* answers at 127\.0\.0\.1:\d+ \(Conn"):
        session._probe(f"{scheme}://127.0.0.1:{nobody()}/;use_ssl=false")
    with pytest.raises(BadSetting, match="no address of Spark"):
        session._probe(f"{scheme}://host:port")


def test_one_master_of_several_is_enough():
    with socket.create_server(("127.0.0.1", 0)) as server:
        session._probe(f"spark://127.0.0.1:{nobody()},127.0.0.1:{server.getsockname()[1]}")
    session._probe("yarn")
    session._probe("local[2]")


def test_the_archive_holds_the_sources_and_is_made_once(tmp_path):
    first = package_zip()
    assert first == package_zip()
    names = zipfile.ZipFile(first).namelist()
    assert {"penstock/__init__.py", "penstock/spark/source.py", "pyspark_penstock/__init__.py"} <= {
        *names
    }
    assert all(name.endswith(".py") for name in names)


def test_the_archive_can_be_imported_and_knows_itself(tmp_path):
    archive = package_zip()
    program = (
        "from penstock.spark.package import package_zip; import penstock.flight.client;"
        "print(package_zip())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(archive)
