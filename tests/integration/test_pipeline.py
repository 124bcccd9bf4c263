"""The pipeline on Spark: in this process, as a process that is killed, and on a cluster of its own."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from frazil.errors import PartialError
from frazil.log.log import Log
from frazil.log.protocol import Chunk
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.spark.jars import spark_home
from frazil.topics.sinks.jobs import on_spark
from frazil.topics.sinks.pipeline import Pipeline
from tests.machine import machine_environment, machine_java
from tests.services import process
from tests.sink_kit import SinkKit, in_thread, sink_kit, sink_kit_of, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]
CATALOG = "sql"


@pytest.fixture
def kit(lane_settings: Settings, tmp_path: Path) -> Iterator[SinkKit]:
    """A log of its own, whose topics have their tables in the lane's embedded catalog."""
    model = lane_settings.model
    log = model.log.model_copy(update={"directory": tmp_path / "log", "min_free": 0})
    pipeline = model.pipeline.model_copy(update={"max_lag_ms": 50})
    settings = Settings(model.model_copy(update={"log": log, "pipeline": pipeline}))
    with sink_kit_of(settings, CATALOG) as made:
        yield made


@pytest.mark.deep
@pytest.mark.long("may be the first to start the shared session and all catalogs")
@pytest.mark.parametrize("catalog", ["rest_on_s3", "s3tables"])
def test_on_a_catalog_behind_a_server_too(lane_settings, spark, tmp_path, catalog):
    model = lane_settings.model
    log = model.log.model_copy(update={"directory": tmp_path / "log", "min_free": 0})
    with sink_kit_of(Settings(model.model_copy(update={"log": log})), catalog) as kit:
        name = new_topic(kit)
        kit.publish(name, *(b"%d" % n for n in range(100)))
        with Pipeline(kit.settings, kit.client, spark, kit.client.address, topics=[name], catalog=catalog) as pipeline:
            pipeline.drain(60)
        kit.check(name)


@pytest.fixture
def topic(kit: SinkKit) -> str:
    return new_topic(kit)


def new_topic(kit: SinkKit) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    kit.create(name)
    return name


@contextmanager
def running(kit: SinkKit, spark: SparkSession, **options: Any) -> Iterator[Pipeline]:
    """A pipeline that runs in a thread inside the block."""
    pipeline = Pipeline(kit.settings, kit.client, spark, kit.client.address, catalog=CATALOG, **options)
    with pipeline, in_thread(pipeline):
        yield pipeline


def reached(pipeline: Pipeline, topic: str, offset: int) -> bool:
    return any(s.topic == topic and (s.offset or 0) >= offset for s in pipeline.status())


def test_every_topic_with_a_table_is_taken_also_one_that_comes_later(kit: SinkKit, spark: SparkSession) -> None:
    names = [new_topic(kit) for _ in range(3)]
    kit.create("without_a_table", storage="log")
    for name in names:
        kit.publish(name, b"a", b"b")
    with running(kit, spark) as pipeline:
        until(lambda: all(reached(pipeline, name, 2) for name in names))
        names.append(new_topic(kit))
        for name in names:
            kit.publish(name, b"c", amount=pa.array([1]))
        until(lambda: all(reached(pipeline, name, len(kit.acknowledged[name])) for name in names))
    for name in names:
        kit.check(name)
    assert {s.topic for s in pipeline.status()} == set(names)


def test_what_is_in_the_log_when_it_is_told_to_stop_is_taken(kit: SinkKit, spark: SparkSession, topic: str) -> None:
    patient = kit.settings.model.pipeline.model_copy(update={"max_lag_ms": 3_600_000})
    kit.settings = Settings(kit.settings.model.model_copy(update={"pipeline": patient}))
    with running(kit, spark):
        kit.publish(topic, b"a")
    kit.check(topic)


def test_a_spark_job_that_hangs_does_not_keep_the_pipeline(kit: SinkKit, spark: SparkSession, topic: str) -> None:
    kit.publish(topic, b"a")
    begun, stop = threading.Event(), threading.Event()
    context = spark.sparkContext

    def hanging(_work: Any, _spans: Any) -> Any:
        begun.set()
        context.parallelize([0], 1).foreach(lambda _: time.sleep(600))

    try:
        with Pipeline(kit.settings, kit.client, spark, kit.client.address, catalog=CATALOG, run=hanging) as pipeline:
            threading.Thread(target=lambda: begun.wait() and stop.set()).start()
            left = pipeline.run(stop, grace_s=1)
            asked = time.monotonic()
        assert time.monotonic() - asked < 60, "closing does not wait for the job either, which takes ten minutes"
        assert isinstance(left, PartialError)
        assert pipeline.hangs
    finally:
        context.cancelAllJobs()
    until(lambda: not pipeline.hangs)


def test_a_big_batch_is_shared_between_tasks(kit: SinkKit, spark: SparkSession, topic: str) -> None:
    source = random.Random(1)
    for _ in range(12):
        kit.publish(topic, *(source.randbytes(1000) for _ in range(1000)))
    spans: list[int] = []

    def counting(work: Any, given: Any) -> Any:
        spans.append(len(given))
        return on_spark(spark)(work, given)

    turn = kit.engine(topic, counting).catch_up()
    assert (turn.rows, turn.commits) == (12_000, 1)
    assert spans == [2]
    kit.check(topic)


def test_one_topic_that_fails_does_not_stop_the_others(kit: SinkKit, spark: SparkSession) -> None:
    bad, good = new_topic(kit), new_topic(kit)
    for name in (bad, good):
        kit.publish(name, b"a")
    with running(kit, spark) as pipeline:
        until(lambda: reached(pipeline, bad, 1) and reached(pipeline, good, 1))
    kit.publish(bad, b"b")
    kit.engine(bad).catch_up()
    table = kit.table(bad)
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    with running(kit, spark) as pipeline:
        for i in range(3):
            kit.publish(bad, b"x")
            kit.publish(good, f"{i}".encode())
        until(lambda: reached(pipeline, good, 4))
        until(lambda: any(s.topic == bad and s.state == "stopped" for s in pipeline.status()))
        [status] = [s for s in pipeline.status() if s.topic == bad]
        assert status.reason is not None
        assert "rolled back" in status.reason
        assert status.hint is not None
        assert "frazil topic adopt" in status.hint
        with pytest.raises(PartialError, match="1 of 2 topics"):
            pipeline.drain()
    kit.check(good)


def test_a_topic_waits_out_a_failure_and_goes_on(kit: SinkKit, spark: SparkSession, topic: str) -> None:
    kit.publish(topic, b"a")
    failures = 0

    def fail(step: str) -> None:
        nonlocal failures
        if step == "sink.commit.before" and failures < 3:
            failures += 1
            raise OSError("the storage is tired")

    with handled(fail), running(kit, spark) as pipeline:
        until(lambda: reached(pipeline, topic, 1))
    assert failures == 3
    kit.check(topic)


def test_compaction_expiry_and_foreign_commits_of_spark_between_steps_are_harmless(
    kit: SinkKit, spark: SparkSession, topic: str
) -> None:
    table = f"{CATALOG}.topics.{topic}"
    engine = kit.engine(topic, on_spark(spark))
    for i in range(6):
        kit.publish(topic, f"{i}".encode())
        engine.catch_up()
    statements = {
        "sink.plan.after": f"CALL {CATALOG}.system.rewrite_data_files(table => 'topics.{topic}', "
        "options => map('rewrite-all', 'true'))",
        "sink.write.after": f"ALTER TABLE {table} SET TBLPROPERTIES ('note' = 'somebody')",
        "sink.commit.before": f"CALL {CATALOG}.system.expire_snapshots(table => 'topics.{topic}', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)",
        "sink.report.after": f"CALL {CATALOG}.system.rewrite_manifests('topics.{topic}')",
    }
    for step, statement in statements.items():
        kit.publish(topic, step.encode())

        def meddle(name: str, at: str = step, text: str = statement) -> None:
            if name == at:
                spark.sql(text)

        with handled(meddle):
            engine.catch_up()
        kit.engine(topic, on_spark(spark)).catch_up()
        kit.check(topic)
    rows = spark.sql(f"SELECT offset, payload FROM {table} ORDER BY offset").collect()
    assert [(r[0], bytes(r[1])) for r in rows] == sorted(kit.acknowledged[topic].items())


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "uncompressed"])
def test_spark_reads_what_was_written_with_every_compression(
    kit: SinkKit, spark: SparkSession, topic: str, compression: str
) -> None:
    topics = kit.settings.model.topics.model_copy(update={"compression": compression})
    kit.settings = Settings(kit.settings.model.model_copy(update={"topics": topics}))
    payload = b"compressible " * 100
    headers = pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))
    kit.publish(topic, payload, tags=pa.array([["x"]]), headers=headers)
    kit.engine(topic, on_spark(spark)).catch_up()
    [row] = spark.sql(f"SELECT payload, tags, headers, publish_time FROM {CATALOG}.topics.{topic}").collect()
    assert (bytes(row[0]), row[1], row[2]) == (payload, ["x"], {"k": "v"})


# -- as a process ------------------------------------------------------------------------------------------------------


def pipeline_process(
    kit: SinkKit, *options: str, program: Sequence[str] = ("-m", "frazil"), **settings: str
) -> subprocess.Popen[str]:
    """`frazil pipeline` as a person starts it, on the broker of this process; in settings' names, __ is a dot."""
    given = {"home": kit.settings.model.home, "log.broker": kit.client.address, "spark.master": "local[2]"}
    given |= {"pipeline.max_lag_ms": "20"} | {name.replace("__", "."): value for name, value in settings.items()}
    flags = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    return subprocess.Popen(
        [sys.executable, *program, "pipeline", *flags, *options],
        env={**process._plain_environment(), **machine_environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def own(tmp_path: Path) -> Iterator[SinkKit]:
    """A home of its own, catalog and log."""
    with sink_kit(tmp_path / "home") as made:
        made.create("orders")
        yield made


@contextmanager
def producing(kit: SinkKit, chance: random.Random) -> Iterator[None]:
    """Somebody publishes all the time inside the block."""
    done = threading.Event()

    def produce() -> None:
        i = 0
        while not done.wait(0.005):
            kit.publish("orders", *(f"{i}-{j}".encode() for j in range(chance.randint(1, 5))))
            i += 1

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield
    finally:
        done.set()
        producer.join()


def position(kit: SinkKit) -> int:
    return kit.client.info("orders").sinks.get("archive") or 0


@pytest.mark.long("each round starts a pipeline with Spark and kills it")
@pytest.mark.deep
@pytest.mark.parametrize(
    "rounds", [2, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(4 * 3600)], id="soak")]
)
def test_a_pipeline_that_is_killed_takes_up_where_the_table_says(own: SinkKit, rounds: int) -> None:
    chance = random.Random(4)
    with producing(own, chance):
        for _ in range(rounds):
            before = position(own)
            killed = pipeline_process(own)
            until(lambda seen=before, it=killed: position(own) > seen or it.poll() is not None, 120)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.3))
            assert killed.poll() is None
            killed.kill()
            killed.communicate()
    ended = pipeline_process(own, "--drain", "--output", "json")
    out, errors = ended.communicate(timeout=120)
    assert ended.returncode == 0, errors
    assert '"state": "running"' in out
    own.check("orders")


def wait_until_it_runs(pipeline: subprocess.Popen[str]) -> None:
    assert pipeline.stderr is not None
    while "the pipeline runs" not in (line := pipeline.stderr.readline()):
        assert line, "it ended early"


@pytest.mark.deep
@pytest.mark.parametrize(
    "rounds", [1, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(4 * 3600)], id="soak")]
)
def test_of_two_pipelines_on_one_topic_one_is_killed_and_the_other_goes_on(own: SinkKit, rounds: int) -> None:
    chance = random.Random(8)
    pair: list[subprocess.Popen[str]] = []
    try:
        with producing(own, chance):
            pair += [pipeline_process(own) for _ in range(2)]
            for pipeline in pair:
                wait_until_it_runs(pipeline)
            for number in range(rounds):
                seen = position(own)
                until(lambda: position(own) > seen)  # noqa: B023 - called at once
                time.sleep(chance.uniform(0, 0.5))
                killed = pair.pop(chance.randrange(2))
                assert killed.poll() is None
                killed.kill()
                killed.communicate()
                seen = own.client.info("orders").end
                until(lambda: position(own) > seen)  # noqa: B023 - called at once
                assert pair[0].poll() is None
                if number + 1 < rounds:
                    pair.append(pipeline_process(own))
                    wait_until_it_runs(pair[1])
        for pipeline in pair:
            pipeline.send_signal(signal.SIGTERM)
            _, errors = pipeline.communicate(timeout=90)
            assert pipeline.returncode == 0, errors
    finally:
        for pipeline in pair:
            pipeline.kill()
            pipeline.communicate()
    own.check("orders")


#: The command, which is killed at a step as by the system: nothing is closed, ended or told.
_KILLED_AT = """
import os, signal, sys
from frazil.__main__ import main
from frazil.observe.faultpoints import handled

def die(step):
    if step == {step!r}:
        os.kill(os.getpid(), signal.SIGKILL)

with handled(die):
    main(sys.argv[1:])
"""


@pytest.mark.long("a pipeline with Spark is killed at the step, and a second one goes on")
@pytest.mark.deep
@pytest.mark.parametrize(
    "step",
    [
        "sink.dead_letters.after",
        *(
            pytest.param(step, marks=pytest.mark.slow)
            for step in ("sink.dead_letters.before", "sink.commit.before", "sink.commit.after", "sink.report.before")
        ),
    ],
)
def test_killed_between_the_commits_of_two_tables_letters_and_rows_are_there_once(own: SinkKit, step: str) -> None:
    def amounts(*values: float | None) -> pa.Array:
        return pa.array(values, pa.float64())

    own.publish("orders", b"first", amount=amounts(1.0))
    own.engine("orders").catch_up()
    own.change_type("orders", "amount")
    own.publish("orders", b"bad", b"good", amount=amounts(2.5, None))
    killed = pipeline_process(own, program=("-c", _KILLED_AT.format(step=step)))
    killed.communicate(timeout=90)
    assert killed.returncode == -signal.SIGKILL
    if step == "sink.dead_letters.after":
        assert [r["offset"] for r in own.dead("orders")] == [1]
        assert [r["offset"] for r in own.rows("orders")] == [0]
    own.publish("orders", b"bad again", b"good again", amount=amounts(7.5, None))
    ended = pipeline_process(own, "--drain")
    _, errors = ended.communicate(timeout=90)
    assert ended.returncode == 0, errors
    own.check("orders", dead=[1, 3])


def test_sigterm_takes_what_is_left_and_ends_well(own: SinkKit) -> None:
    own.publish("orders", b"a")
    patient = pipeline_process(own, pipeline__max_lag_ms="3600000")
    assert patient.stderr is not None
    while "the pipeline runs" not in (line := patient.stderr.readline()):
        assert line, "it ended early"
    own.publish("orders", b"b")
    patient.send_signal(signal.SIGTERM)
    out, errors = patient.communicate(timeout=90)
    assert patient.returncode == 0, errors
    assert "orders" in out
    own.check("orders")


#: The command, whose upkeep says when it is at a step, and then takes its time.
_SLOW_UPKEEP = """
import sys, time
from frazil.__main__ import main
from frazil.observe.faultpoints import handled

def slow(step):
    if step == {step!r}:
        print("in the middle of upkeep", file=sys.stderr, flush=True)
        time.sleep(2)

with handled(slow):
    main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "step",
    [pytest.param(f"upkeep.compact.{step}", marks=pytest.mark.slow) for step in ("plan.after", "commit.before")],
)
def test_sigterm_in_the_middle_of_upkeep_ends_well_and_leaves_the_table_right(own: SinkKit, step: str) -> None:
    engine = own.engine("orders")
    for number in range(6):
        own.publish("orders", b"%d" % number)
        engine.run_batch(at_once=True)
    program = ("-c", _SLOW_UPKEEP.format(step=step))
    busy = pipeline_process(own, program=program, upkeep__policy__min_input_files="2", upkeep__every_s="1")
    assert busy.stderr is not None
    own.publish("orders", b"before")
    while "in the middle of upkeep" not in (line := busy.stderr.readline()):
        assert line, "it ended early"
    own.publish("orders", b"meanwhile")
    busy.send_signal(signal.SIGTERM)
    _, errors = busy.communicate(timeout=60)
    assert busy.returncode == 0, errors
    own.check("orders")
    assert set(own.committed_files("orders")) <= set(own.files("orders"))
    later = pipeline_process(own, "--drain", upkeep__policy__min_input_files="2", upkeep__every_s="1")
    _, errors = later.communicate(timeout=120)
    assert later.returncode == 0, errors
    own.check("orders")


def test_without_a_broker_the_pipeline_opens_the_log_itself_and_says_so(tmp_path: Path) -> None:
    with sink_kit(tmp_path / "home") as kit:
        kit.create("orders")
        kit.publish("orders", b"a", b"b")
        acknowledged = kit.acknowledged
    done = subprocess.run(
        [sys.executable, "-m", "frazil", "pipeline", "--drain", "--set", f"home={tmp_path / 'home'}"],
        env={**process._plain_environment(), **machine_environment()},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no broker runs" in done.stderr
    with sink_kit(tmp_path / "home") as kit:
        kit.acknowledged = acknowledged
        kit.check("orders")


def test_an_unknown_topic_is_told_before_spark_is_started(own: SinkKit) -> None:
    refused = pipeline_process(own, "--drain", "--topic", "ordesr")
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode == 10
    assert "'orders'" in errors


# -- on a cluster ------------------------------------------------------------------------------------------------------


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """A standalone Spark master with two workers, each a process; yields its URL and the port of its status page."""
    master, page = process.free_port(), process.free_port()
    env = {
        "JAVA_HOME": str(machine_java().home), "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_USER": "frazil",
    }  # fmt: skip
    spark_class = spark_home() / "bin" / "spark-class"
    url = f"spark://127.0.0.1:{master}"
    started = []
    try:
        command = [spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
        command += ["--port", str(master), "--webui-port", str(page)]
        started.append(process.start("spark-master", command, folder=folder, port=master, env=env))
        started[0].wait_ready(lambda: process.port_answers(master))
        for number in (1, 2):
            own = process.free_port()
            command = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1"]
            command += ["--memory", "768m", "--webui-port", str(own), url]
            started.append(process.start(f"spark-worker-{number}", command, folder=folder, port=own, env=env))
        started[0].wait_ready(lambda: _page(page).count("ALIVE") >= 3)
        yield url, page
    finally:
        for server in reversed(started):
            server.stop()


def _page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        return str(answer.read().decode())


@pytest.mark.long("starts a Spark master, two workers and their executors")
@pytest.mark.deep
@pytest.mark.parametrize("read_segments", ["never", pytest.param("auto", marks=pytest.mark.slow)])
def test_on_a_cluster_of_two_workers_both_write_and_every_message_arrives_once(
    own: SinkKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_segments: str
) -> None:
    sent: list[int] = []
    chunks = Log.chunks

    def counting(log: Log, topic: str, start: int, end: int | None = None) -> Iterator[Chunk]:
        sent.append(start)
        return chunks(log, topic, start, end)

    monkeypatch.setattr(Log, "chunks", counting)
    source = random.Random(2)
    for _ in range(12):
        own.publish("orders", *(source.randbytes(1000) for _ in range(1000)), amount=pa.array(range(1000)))
    folder = tmp_path / "cluster"
    folder.mkdir()
    with cluster(folder) as (url, _):
        conf = {"driver.host": "127.0.0.1", "executor.memory": "512m", "cores.max": "2"}
        # Nothing begins before both executors are there.
        conf |= {"scheduler.minRegisteredResourcesRatio": "1.0", "scheduler.maxRegisteredResourcesWaitingTime": "120s"}
        settings = {f"spark.conf.spark.{name}": value for name, value in conf.items()}
        settings["pipeline.read_segments"] = read_segments
        drained = pipeline_process(own, "--drain", spark__master=url, **settings)
        _, errors = drained.communicate(timeout=200)
        assert drained.returncode == 0, errors
        executors = list(folder.glob("app-*/*"))
    own.check("orders")
    assert len(executors) == 2
    assert len(own.committed_files("orders")) == 2
    assert len(sent) == (0 if read_segments == "auto" else 2)
