"""What a DSN says, and what is wrong with one: told at the call, and never with its password."""

from __future__ import annotations

import pytest

from stepwell import App, InvalidSetting
from stepwell.model.dsn import read_dsn

READ = {
    "postgresql://u:p@h1:5433,h2/x?target_session_attrs=read-write": "h1:5433,h2:5432/x",
    "postgres://h/x": "h:5432/x",
    "postgresql:///x": "localhost:5432/x",
    "postgresql:///x?port=7": "localhost:7/x",
    "postgresql://u@/x?host=h1,h2&port=7": "h1:7,h2:7/x",
    "postgresql://u@/x?host=h1,h2&port=7,8": "h1:7,h2:8/x",
    "postgresql://[::1]:5433,[::2]/x": "[::1]:5433,[::2]:5432/x",
    "postgresql://u@%2Frun%2Fpg:7/x": "/run/pg:7/x",
    "postgresql://u@/x?host=/run/pg": "/run/pg:5432/x",
    "postgresql://my_db/x": "my_db:5432/x",
}


@pytest.mark.parametrize("dsn", READ)
def test_the_servers_of_a_dsn_are_read_as_libpq_reads_them(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGTARGETSESSIONATTRS", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    assert str(read_dsn(dsn)) == READ[dsn]
    assert App(dsn).settings.dsn == dsn


def test_servers_that_the_dsn_does_not_name_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "h1,h2")
    monkeypatch.setenv("PGPORT", "7,8")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "primary")
    read = read_dsn("postgresql:///x")
    assert (str(read), read.target) == ("h1:7,h2:8/x", "primary")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg2"])
def test_the_driver_in_a_url_of_sqlalchemy_is_left_out(driver: str) -> None:
    assert App(f"postgresql+{driver}://u:p@h/x").settings.dsn == "postgresql://u:p@h/x"


WRONG = {
    "mysql://secret@h/x": "'mysql': a DSN begins with postgresql://",
    "secret": "begins with postgresql://",
    "postgresql://u:secret@../x": "a host in it is neither a name nor an address",
    f"postgresql://u:secret@{'a' * 64}/x": "a host in it is neither a name nor an address",
    "postgresql://u:secret@h h/x": "a host in it is neither a name nor an address",
    "postgresql://u:secret@h:port/x": "its port is not a number from 1 to 65535",
    "postgresql://u:secret@h:99999/x": "its port is not a number from 1 to 65535",
    "postgresql://u:sec/ret@h/x": "percent-encode special characters in the password",
    "postgresql://u:sec@ret@h/x": "more than one @",
    "postgresql://u:secret@[::1/x": "cannot be parsed",
    "postgresql://u:secret@h/x?sslmode": "name=value",
    "postgresql://u:secret@/x?host=a,b,c&port=1,2": "3 hosts and 2 ports",
    "postgresql://u:secret@h/x?target_session_attrs=master": "one of any, primary, read-write",
    "postgresql://u:secret@h/x?target_session_attrs=standby": "takes no writes: use read-write",
    f"postgresql://u:secret@/x?host=/{'a' * 200}": "at most 107 bytes",
    "postgresql://u:secret@h/x%00": "NUL",
}


@pytest.mark.parametrize("dsn", WRONG)
def test_a_wrong_dsn_is_refused_where_it_is_given_and_never_shown(dsn: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        App(dsn)
    assert WRONG[dsn] in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("asked", ["connect_timeout=3", "prepared_statement_cache_size=0", "sslmode=never"])
async def test_what_the_server_or_driver_refuses_of_a_dsn_is_told_as_a_wrong_setting(dsn: str, asked: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^dsn = '…': .*(connect_timeout|prepared_statement|sslmode)"):
        async with App(f"{dsn}{'&' if '?' in dsn else '?'}{asked}"):
            pass
