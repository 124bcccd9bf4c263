"""The settings of a Spark session, without starting one."""

from __future__ import annotations

from pathlib import Path

from frazil.settings import load_settings
from frazil.spark.session import session_conf


def test_sockets_lie_in_the_scratch_folder_of_the_session_if_their_path_fits(tmp_path):
    settings = load_settings(flags={"home": str(tmp_path)}, environ={})
    key = "spark.python.unix.domain.socket.dir"
    assert session_conf(settings, [], Path("/tmp/frazil-spark-abcdefgh"))[key] == "/tmp/frazil-spark-abcdefgh"
    assert key not in session_conf(settings, [], Path("/" + "x" * 80)), "no system binds such a path"


def test_python_workers_on_other_machines_import_nothing_from_their_current_folder(tmp_path):
    """Workers on this machine inherit it from the JVM (`frazil.spark.jvm`)."""
    flags = {"home": str(tmp_path), "spark.master": "spark://example:7077"}
    conf = session_conf(load_settings(flags=flags, environ={}), [], tmp_path)
    assert conf["spark.executorEnv.PYTHONSAFEPATH"] == "1"
