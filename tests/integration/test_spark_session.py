"""The Spark session: quiet, bounded, without secrets in the open, on any master; and nothing else starts a JVM."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import frazil
from frazil.errors import UsageError
from frazil.spark import spark_session
from frazil.spark.archive import archive_file
from tests.machine import machine, machine_java
from tests.services.jars import spark_jars
from tests.services.javas import find_jdk
from tests.services.process import free_port, port_answers, start

pytestmark = pytest.mark.timeout(300)


@pytest.mark.spark
def test_arrow_is_on_and_times_are_utc(spark):
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.spark
def test_secrets_are_not_on_the_command_line_of_the_jvm(spark, services):
    seen = subprocess.run(["ps", "-eo", "args", "ww"], capture_output=True, text=True, check=True).stdout
    jvms = [line for line in seen.splitlines() if "org.apache.spark.deploy.SparkSubmit" in line]
    assert jvms
    # The servers of the tests may show theirs; the session must not.
    assert not any(services.seaweedfs.access.secret_key in line or services.secured_rest.token in line for line in jvms)


@pytest.mark.slow
def test_a_session_is_quiet_and_leaves_no_jvm_and_no_file(tmp_path):
    script = (
        "import sys; from frazil.settings import load_settings; from frazil.spark import spark_session\n"
        "settings = load_settings(flags={'home': sys.argv[1], 'spark.master': 'local[1]'}, environ={})\n"
        "for _ in range(2):\n"
        "    with spark_session(settings) as spark: print(spark.range(3).count())\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    env = {**os.environ, "TMPDIR": str(work), "SPARK_HOME": "/nowhere/another-spark"}
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "home")],
        cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    out, err = process.communicate(timeout=200)
    assert (out, err) == ("3\n3\n", "")
    assert [p for p in work.iterdir() if not p.name.startswith("hsperfdata")] == []
    left = subprocess.run(["pgrep", "-g", str(process.pid), "-r", "S,R"], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def run_script(script: str, *args: str) -> str:
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


WITH_A_CACHE = """
import sys
from frazil.settings import load_settings
from frazil.spark import spark_session

with spark_session(load_settings(flags={"home": sys.argv[1], "cache": sys.argv[2]}, environ={})) as session:
    print(session.range(3).count(), "SharedArchiveFile" in session.conf.get("spark.driver.extraJavaOptions"))
"""


@pytest.mark.parametrize(
    "archive", [pytest.param("none", marks=pytest.mark.slow), pytest.param("damaged", marks=pytest.mark.slow)]
)
def test_a_session_starts_also_without_a_class_archive_that_fits(tmp_path, archive):
    cache = tmp_path / "a cache"
    cache.mkdir()
    (cache / "jars").symlink_to(machine().cache / "jars")
    if archive == "damaged":
        file = archive_file(cache, machine_java())
        file.parent.mkdir()
        file.write_bytes(b"this is no archive" * 1000)
    assert run_script(WITH_A_CACHE, str(tmp_path / "home"), str(cache)) == f"3 {archive == 'damaged'}\n"


@pytest.mark.spark
def test_setup_has_made_the_archive_that_sessions_use(spark, lane_settings):
    file = archive_file(lane_settings.model.cache, machine_java())
    assert file.stat().st_size > 50_000_000
    assert str(file) in spark.conf.get("spark.driver.extraJavaOptions")


@pytest.mark.spark
def test_a_second_session_in_one_process_is_refused_and_the_first_lives_on(spark, lane_settings):
    with pytest.raises(UsageError, match="already"), spark_session(lane_settings):
        pass
    assert spark.range(2).count() == 2


ON_A_CLUSTER = """
import sys
from frazil.settings import load_settings
from frazil.spark import spark_session

home, master = sys.argv[1:]
flags = {"home": home, "spark.master": master, "spark.conf.spark.driver.host": "127.0.0.1"}
with spark_session(load_settings(flags={**flags, "spark.conf.spark.executor.memory": "512m"}, environ={})) as session:
    session.sql("CREATE NAMESPACE ns")
    session.range(100).writeTo("ns.t").create()
    print(session.sparkContext.master, session.table("ns.t").count())
"""


@pytest.mark.soak
def test_any_master_by_setting(tmp_path):
    """A standalone master with a worker process: the jars travel to the executors, which read and write the table.

    In every run a pipeline does the same on a cluster of two workers (test_pipeline.py).
    """
    port, jdk = free_port(), find_jdk()
    env = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(jdk.home)}
    env |= {"SPARK_HOME": str(Path(spark_jars()).parent.parent), "SPARK_SCALA_VERSION": "2.13"}
    url = f"spark://127.0.0.1:{port}"
    java = [jdk.executable, "-Xmx512m", "-cp", spark_jars()]
    common = ["-h", "127.0.0.1", "--webui-port", "0"]
    deploy = "org.apache.spark.deploy"
    master_command = [*java, f"{deploy}.master.Master", "-p", str(port), *common]
    worker_command = [
        *java,
        f"{deploy}.worker.Worker",
        url,
        "-c",
        "1",
        "-m",
        "1g",
        "-d",
        str(tmp_path / "work"),
        *common,
    ]
    with ExitStack() as stack:
        master = start("master", master_command, folder=tmp_path, port=port, env=env)
        stack.callback(master.stop)
        master.wait_ready(lambda: port_answers(port), seconds=60)
        worker = start("worker", worker_command, folder=tmp_path, port=free_port(), env=env)
        stack.callback(worker.stop)
        assert run_script(ON_A_CLUSTER, str(tmp_path / "home"), url) == f"{url} 100\n"


def test_nothing_else_in_the_code_starts_a_jvm():
    """Only the spark room launches gateways, builds sessions or runs a java executable."""
    root = Path(frazil.__file__).parent
    for path in root.rglob("*.py"):
        if path.is_relative_to(root / "spark"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {alias.name for alias in node.names}
                assert not (node.module.startswith("pyspark") and {"SparkContext", "java_gateway"} & names), path
            if isinstance(node, ast.Attribute):
                # They start `frazil serve`, worker processes of extraction and relocation, and what opens a file.
                own = (
                    "demo/topics.py", "extract/engine/worker_process.py",
                    "cli/opening.py", "tables/relocation/worker.py",
                )  # fmt: skip
                allowed = {"Popen"} if path.relative_to(root).as_posix() in own else set()
                assert node.attr not in {"builder", "launch_gateway", "Popen"} - allowed, f"{path}:{node.lineno}"
