"""Topics, content and documents after the loss of a site: real processes, with Spark and a broker at the replica."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.e2e.conftest import Shell
from tests.e2e.servers import serving

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]


def event(number: int) -> str:
    return json.dumps(
        {
            "Records": [
                {
                    "eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put",
                    "eventTime": f"2026-01-01T00:00:{number:02}.000Z",
                    "s3": {
                        "bucket": {"name": "b"},
                        "object": {"key": f"k{number}", "size": 1, "sequencer": f"{number:04}"},
                    },
                }
            ]
        }
    )  # fmt: skip


def done(shell: Shell, *args: str, stdin: str | None = None) -> str:
    found = shell.run(*args, stdin=stdin, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


def numbers(shell: Shell, query: str) -> list[Any]:
    return [row[0] for row in csv_rows(done(shell, "sql", query, "--output", "csv"))]


def csv_rows(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.strip().splitlines()[1:]]


@pytest.mark.long("two sites with servers and pipelines on Spark, of which one is lost")
def test_a_site_with_topics_content_and_documents_is_lost(shell: Shell) -> None:
    common = "database:\n  url: iceberg\nspark:\n  master: local[2]\n"
    shell.write("primary.yaml", f"home: ./primary\n{common}")
    shell.write("replica.yaml", f"home: ./site\n{common}")
    shell.env["FRAZIL_CONFIG"] = "primary.yaml"
    done(shell, "topic", "create", "orders", "--storage", "iceberg")
    done(shell, "topic", "publish", "orders", "--lines", stdin="m0\nm1\nm2\nm3\nm4\n")
    for name in ("a", "b"):
        done(shell, "docs", "put", name, "--filename", f"{name}.pdf")
    done(shell, "docs", "update", "a", "--tag", "year=2026")
    done(shell, "content", "ingest", "-", stdin=f"{event(1)}\n{event(2)}\n")
    done(shell, "pipeline", "--drain")
    # Only the log has these.
    done(shell, "topic", "publish", "orders", "--lines", stdin="lost\nlost\n")
    done(shell, "docs", "update", "a", "--tag", "year=2027")
    done(shell, "content", "ingest", "-", stdin=f"{event(3)}\n")

    shutil.copytree(shell.folder / "primary" / "warehouse", shell.folder / "dr")
    shell.env["FRAZIL_CONFIG"] = "replica.yaml"
    done(shell, "replica", "sync", "--all", "--replicated-path", "./dr", "--warehouse", "./second")
    shutil.move(shell.folder / "primary" / "log", shell.folder / "log-of-primary")
    shutil.rmtree(shell.folder / "primary")

    tables = shell.json("replica", "failover", "--all", "--yes", "--primary-log", "./log-of-primary")
    topics = {one["topic"]: one for table in tables for one in table["topics"]}
    told = {name: (one["position"], one["log_end"], one["lost"]) for name, one in topics.items()}
    assert told == {"orders": (5, 7, 2), "documents": (3, 4, 1), "content_events": (2, 3, 1)}
    assert all(one["last_message_at"] and not one["warnings"] for one in topics.values())
    for one in topics.values():
        for command in one["next"]:
            done(shell, *command.split()[1:])

    with serving(shell) as server:
        assert server.publish("orders", "m5")["offset"] == 5
        assert shell.json("docs", "get", "a")["tags"] == {"year": "2026"}
        assert shell.json("docs", "update", "a", "--tag", "year=2028")["revision"] == 3
        done(shell, "content", "ingest", "-", stdin=f"{event(4)}\n")
        done(shell, "pipeline", "--drain")
        assert [(m["offset"], m["payload"]) for m in shell.json("topic", "replay", "orders")] == [
            (number, f"m{number}") for number in range(6)
        ]
        done(shell, "docs", "verify")
    assert sorted(numbers(shell, "SELECT key FROM content.objects")) == ["k1", "k2", "k4"]
    assert sorted(numbers(shell, "SELECT revision FROM document_archive.document_history WHERE document_id = 'a'")) == [
        "1",
        "2",
        "3",
    ]
    assert sorted(numbers(shell, "SELECT offset FROM content.journal")) == ["0", "1", "2"]
    assert shell.json("topic", "verify", "orders")["sound"]
