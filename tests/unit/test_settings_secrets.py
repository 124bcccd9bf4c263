"""No secret is ever printed: not in rows, not in notices, not in errors, not in their stack traces."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.errors import FrazilError, mask_urls
from frazil.settings import keys
from frazil.settings.masking import MASK, is_secret, masked
from frazil.settings.names import ENVIRONMENT_NAMES
from frazil.settings.show import rows
from frazil.settings.sources import parse_set, variable_of
from tests.unit.test_settings import Place, nested, new_place

SECRET_KEYS = [key.replace("<name>", "one") for key, field in keys.known_keys() if "SecretStr" in str(field.annotation)]
FREE_KEYS = ["spark.conf.spark.hadoop.fs.s3a.secret.key", "catalog.properties.adls.account-key"]

# A beginning that stands nowhere else, so that finding it means it leaked.
secrets = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=4, max_size=30).map("zQ7".__add__)
url_secrets = st.text(st.sampled_from("aZ09@:/?&#%=!*'"), min_size=1, max_size=20).map("zQ7".__add__)
LOOSE = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def everything_printed(call: Callable[[], object]) -> str:
    """All that a user can see of loading these settings."""
    try:
        loaded = call()
    except FrazilError as error:
        return "".join(traceback.format_exception(error)) + str(error.to_dict())
    lines = [f"{row.key} {row.value} {row.source}" for row in rows(loaded)]  # type: ignore[arg-type]
    return "\n".join([*lines, *(n.text for n in loaded.notices), *loaded.sources(), repr(loaded.notices)])  # type: ignore[attr-defined]


def with_partner(key: str, value: str) -> dict[str, str]:
    section, _, name = key.rpartition(".")
    values = {key: value, **({f"{section}.access_key": "key"} if name in ("secret_key", "session_token") else {})}
    return {**values, **({f"{section}.secret_key": "x"} if name == "session_token" else {})}


def test_there_are_secrets_to_test():
    assert {"catalog.token", "catalogs.one.s3.secret_key", "s3.secret_key"} <= set(SECRET_KEYS)


@pytest.mark.parametrize("key", [*SECRET_KEYS, *FREE_KEYS])
@LOOSE
@given(secret=secrets)
def test_a_secret_never_appears_among_the_settings(place: Place, key: str, secret: str):
    values = with_partner(key, secret)
    printed = everything_printed(lambda: place.load(values))
    assert MASK in printed
    assert "zQ7" not in printed
    assert "zQ7" not in everything_printed(lambda: place.load(flags=values))
    if key in SECRET_KEYS:
        assert "zQ7" not in everything_printed(lambda: place.load(**{variable_of(k): v for k, v in values.items()}))


BROKEN = {
    "unknown key": {"catalog": {"tokn": "x"}},
    "wrong type": {"network": {"retry_attempts": "many"}},
    "wrong section": {"catalog": {"kind": "rest", "uri": "thrift://x"}},
    "half a pair": {"s3": {"access_key": "k"}},
}


@pytest.mark.parametrize("mistake", BROKEN)
@pytest.mark.parametrize("key", [*SECRET_KEYS, *FREE_KEYS])
def test_a_secret_never_appears_in_an_error(place: Place, key: str, mistake: str):
    values = with_partner(key, "zQ7-secret") if mistake != "half a pair" else {key: "zQ7-secret"}
    printed = everything_printed(lambda: place.load(BROKEN[mistake], flags=values))
    assert "Error" in printed or mistake == "half a pair"
    assert "zQ7" not in printed


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_contradiction_does_not_tell_the_secrets(place: Place, key: str):
    tree = nested(tuple(key.split(".")), "zQ7-one") | {key: "zQ7-two"}
    printed = everything_printed(lambda: place.load(tree))
    assert "remove one of the two" in printed
    assert "zQ7" not in printed


@pytest.mark.parametrize(
    "value", ["{zQ7a: b}", "{zQ7}", "[zQ7]", "*zQ7secret", "!zQ7secret", "'zQ7", '"zQ7\\q"', "a: zQ7", "@zQ7"]
)
def test_a_secret_that_yaml_misunderstands_is_not_told(place: Place, value: str):
    printed = everything_printed(lambda: place.load(f"catalog:\n  token: {value}\n"))
    assert "ConfigError" in printed
    assert "zQ7" not in printed


@pytest.mark.parametrize("value", ["zQ7 : {", "[zQ7]", "zQ7"])
def test_a_map_in_a_variable_that_is_no_map_is_not_told(place: Place, value: str):
    printed = everything_printed(lambda: place.load(FRAZIL_SPARK__CONF=value))
    assert "FRAZIL_SPARK__CONF" in printed
    assert "zQ7" not in printed


@pytest.mark.parametrize("items", [["catalog.token:zQ7"], ["catalog.token=zQ7", "catalog.token=zQ7b"]])
def test_a_secret_in_a_mistaken_set_is_not_told(items: list[str]):
    with pytest.raises(FrazilError) as error:
        parse_set(items)
    assert "zQ7" not in str(error.value.to_dict())


@pytest.mark.parametrize(
    "key", ["database.url", "catalog.uri", "s3.endpoint", "backup.bucket", "catalog.properties.proxy"]
)
@pytest.mark.parametrize("url", ["http://user:{}@host:1/x", "{}", "user:{}@host"])
@LOOSE
@given(secret=url_secrets)
def test_a_password_in_a_url_never_appears(place: Place, key: str, url: str, secret: str):
    if url == "{}":
        url, secret = "http://host/x?a=b&password={}", secret.translate(str.maketrans("", "", "&#;'"))
    printed = everything_printed(lambda: place.load(flags={key: url.format(secret)}))
    assert "zQ7" not in printed


@pytest.mark.parametrize("variable", ENVIRONMENT_NAMES)
def test_a_foreign_variable_is_announced_without_its_password(place: Place, variable: str):
    pair = {v: "x" for v in ENVIRONMENT_NAMES if v.startswith(variable.split("_")[0]) and "KEY" in v}
    secret = "zQ7" if is_secret(ENVIRONMENT_NAMES[variable].path) else "http://u:zQ7@h"
    printed = everything_printed(lambda: place.load({"s3": {"region": "eu"}}, **{**pair, variable: secret}))
    assert "zQ7" not in printed


@pytest.mark.parametrize(
    "key",
    [
        "s3.secret-access-key",
        "fs.s3a.secret.key",
        "fs.azure.account.key.box.dfs.core.windows.net",
        "header.Authorization",
        "header.X-Api-Key",
        "adls.connection-string",
        "adls.sas-token",
        "javax.jdo.option.ConnectionPassword",
        "gcs.oauth2.token",
        "s3.sse.key",
        "gcs.decryption-key",
        "spark.ssl.key",
        "header.X-Auth",
        "header.X-Auth-User",
        "sslKey",
    ],
)
def test_a_key_of_a_map_that_sounds_secret_is_masked(key: str):
    assert masked(("catalog", "properties", key), "x") == MASK


@pytest.mark.parametrize(
    "key",
    [
        "spark.sql.shuffle.partitions",
        "warehouse",
        "conf",
        "properties",
        "s3.access-key-id",
        "ssh.public-key",
        "s3.sse.kmsKeyId",
        "rest.auth.type",
        "header.X-Team",
    ],
)
def test_a_key_of_a_map_that_sounds_harmless_is_shown(key: str):
    assert masked(("spark", "conf", key), "x") == "x"


@pytest.mark.parametrize(
    "text",
    [
        "mysql://root@host/db",
        "s3://bucket/a@b",
        "http://host:8181/x",
        "write to a@b.c",
        "http://h/x?page=2&keyword=x",
        "10:30",
    ],
)
def test_text_without_a_password_is_left_alone(text: str):
    assert mask_urls(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open mysql://u:pw@h/db now", f"cannot open mysql://u:{MASK}@h/db now"),
        ("mysql://u:p@ss/w@rd@h/db", f"mysql://u:{MASK}@h/db"),
        ("redis://:pw@h", f"redis://:{MASK}@h"),
        ("'http://u@corp:pw@h'", f"'http://u@corp:{MASK}@h'"),
        ("jdbc:mysql://h/db?user=u&password=pw&x=y", f"jdbc:mysql://h/db?user=u&password={MASK}&x=y"),
        ("https://h/x?X-Amz-Signature=abc&sig=d", f"https://h/x?X-Amz-Signature={MASK}&sig={MASK}"),
    ],
)
def test_a_password_is_masked_wherever_it_stands_in_a_text(text: str, expected: str):
    assert mask_urls(text) == expected
