"""SQL files: where statements end, what each of them asks for, and what is said about mistakes."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock.errors import BadStatement
from penstock.spark.statements import AsItIs, IntoStream, IntoTable, Source, parse, split


def pieces(text: str) -> list[str]:
    """The statements as they stand in the text."""
    return [text[each[0].start : each[-1].end] for each in split(Source("f.sql", text))]


# -- where statements end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" ;; ; -- nothing\n ;", []),
        ("SET a=1; SET b=2", ["SET a=1", "SET b=2"]),
        ("SET a=1;\n\n", ["SET a=1"]),
        ("SELECT ';' ; x", ["SELECT ';'", "x"]),
        ('SELECT ";" ; x', ['SELECT ";"', "x"]),
        ("SELECT `a;b` ; x", ["SELECT `a;b`", "x"]),
        ("SELECT 'it''s;' ; x", ["SELECT 'it''s;'", "x"]),
        (r"SELECT 'it\';s' ; x", [r"SELECT 'it\';s'", "x"]),
        (r"SELECT '\\' ; x", [r"SELECT '\\'", "x"]),
        (r"SELECT r'\' ; x", [r"SELECT r'\'", "x"]),
        ("SELECT `a``;b` ; x", ["SELECT `a``;b`", "x"]),
        ("SELECT 1 -- not; here ' \n, 2; x", ["SELECT 1 -- not; here ' \n, 2", "x"]),
        ("SELECT 1 -- on \\\n and; on\n; x", ["SELECT 1", "x"]),
        ("SELECT /* ; ' */ 1; x", ["SELECT /* ; ' */ 1", "x"]),
        ("SELECT /* a /* ; */ ; */ 1; x", ["SELECT /* a /* ; */ ; */ 1", "x"]),
        ("SELECT '/*'; x -- */", ["SELECT '/*'", "x"]),
        ("SELECT 1 - -1; SELECT 4 / 2", ["SELECT 1 - -1", "SELECT 4 / 2"]),
        ("-- first\nSET a=1", ["SET a=1"]),
    ],
)
def test_semicolons_end_statements_outside_quotes_and_comments(text, found):
    assert pieces(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SET a=1;\nSELECT 'open", "f.sql:2: the quote ' is opened here"),
        ("\n\nSELECT `open", "f.sql:3: the quote ` is opened here"),
        ('SELECT "open', 'f.sql:1: the quote " is opened here'),
        ("SELECT\n/* a /* b */", "f.sql:2: the comment /* is opened here"),
    ],
)
def test_what_is_never_closed_is_shown_where_it_begins(text, message):
    with pytest.raises(BadStatement, match="never closed") as caught:
        pieces(text)
    assert message in str(caught.value)


# -- what a statement asks for ---------------------------------------------------------------------


def only(text: str, **variables: str):
    (found,) = parse("f.sql", text, variables)
    return found


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("INSERT INTO big SELECT * FROM orders", "big"),
        ("insert into Big select 1", "Big"),
        ("INSERT INTO TABLE big SELECT 1", "big"),
        ("INSERT INTO orders.eu SELECT 1", "orders.eu"),
        ("INSERT INTO `orders-eu` SELECT 1", "orders-eu"),
        ("INSERT INTO `orders.eu` SELECT 1", "orders.eu"),
        ("INSERT INTO `a``b` SELECT 1", "a`b"),
        ("INSERT INTO big BY NAME SELECT 1", "big"),
        ("INSERT INTO big WITH x AS (SELECT 1) SELECT * FROM x", "big"),
        ("INSERT INTO big (SELECT 1)", "big"),
        ("INSERT /* into */ INTO -- here\n big FROM orders SELECT *", "big"),
    ],
)
def test_insert_into_names_a_stream(text, target):
    found = only(text)
    assert isinstance(found, IntoStream)
    assert found.target == target
    assert found.columns == ()
    assert found.query.strip().split()[0].strip("(") in ("SELECT", "select", "WITH", "FROM")


def test_an_insert_can_name_the_columns():
    found = only("INSERT INTO totals (key, `value`) SELECT country, sum(x) FROM o GROUP BY 1")
    assert isinstance(found, IntoStream)
    assert found.columns == ("key", "value")
    assert found.query == "SELECT country, sum(x) FROM o GROUP BY 1"


def test_queries_keep_the_line_they_have_in_the_file():
    text = "SET a=1;\n-- more\nINSERT INTO big\nSELECT *\nFROM orders;"
    setting, insert = parse("f.sql", text)
    assert isinstance(setting, AsItIs)
    assert isinstance(insert, IntoStream)
    assert str(insert.place) == "f.sql:3"
    assert insert.query == "\n\n\nSELECT *\nFROM orders"
    assert insert.text == "INSERT INTO big\nSELECT *\nFROM orders"


def test_a_table_has_a_format_a_place_and_partitions():
    found = only(
        "CREATE TABLE IF NOT EXISTS sales.big USING DELTA PARTITIONED BY (day, `c d`)\n"
        "LOCATION 'out/big' AS SELECT * FROM orders"
    )
    assert isinstance(found, IntoTable)
    assert (found.target, found.form, found.location) == ("sales.big", "delta", "out/big")
    assert found.partitioned == ("day", "c d")
    assert found.query.strip() == "SELECT * FROM orders"


def test_a_table_is_parquet_unless_told_otherwise():
    found = only("create table big as select 1")
    assert isinstance(found, IntoTable)
    assert (found.form, found.location, found.partitioned) == ("parquet", None, ())
    assert only("CREATE TABLE big LOCATION r'a\\b' SELECT 1").location == "a\\b"
    assert only("CREATE TABLE big LOCATION 'it''s' AS SELECT 1").location == "it's"


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("CREATE TEMPORARY VIEW x AS SELECT 1", "x"),
        ("create or replace temp view `a b` as select 1", "`a b`"),
        ("CREATE OR REPLACE GLOBAL TEMPORARY VIEW x AS SELECT 1", "x"),
        ("CREATE TEMPORARY VIEW IF NOT EXISTS x AS SELECT 1", "x"),
        ("CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x", None),
        ("SET spark.sql.shuffle.partitions=2", None),
        ("RESET", None),
        ("DECLARE VARIABLE day DATE", None),
        ("DROP VIEW x", None),
        ("DROP TEMPORARY FUNCTION f", None),
    ],
)
def test_what_only_prepares_runs_as_it_is(text, view):
    found = only(text)
    assert isinstance(found, AsItIs)
    assert (found.text, found.view) == (text, view)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM orders", "this query has no target"),
        ("WITH x AS (SELECT 1) INSERT INTO big SELECT * FROM x", "a WITH goes behind the target"),
        ("INSERT OVERWRITE big SELECT 1", "only ever appended to"),
        ("INSERT", "only ever appended to"),
        ("INSERT INTO", "the statement ends where a stream's name"),
        ("INSERT INTO orders-eu SELECT 1", "needs backticks: `orders-eu`"),
        ("INSERT INTO 'orders' SELECT 1", "found 'orders'"),
        ("INSERT INTO big", "a query must follow"),
        ("INSERT INTO big (key SELECT 1", "expected a list of columns: (one, two), found SELECT"),
        ("INSERT INTO big (key, value)", "a query must follow"),
        ("INSERT INTO big BY SELECT 1", "BY NAME"),
        ("CREATE TABLE big", "a table is filled by a query"),
        ("CREATE TABLE big (a INT)", "the columns come from the SELECT"),
        ("CREATE TABLE big USING csv AS SELECT 1", "use parquet or delta"),
        ("CREATE TABLE big LOCATION out AS SELECT 1", "expected LOCATION '<path>', found out"),
        ("CREATE TABLE big TBLPROPERTIES (a=1) AS SELECT 1", "TBLPROPERTIES is not supported"),
        ("CREATE OR REPLACE TABLE big AS SELECT 1", "a table is never replaced"),
        ("CREATE VIEW x AS SELECT 1", "write CREATE TEMPORARY VIEW"),
        ("CREATE TEMPORARY TABLE x AS SELECT 1", "CREATE TEMPORARY TABLE is not supported"),
        ("CREATE MATERIALIZED VIEW x AS SELECT 1", "penstock pipeline init"),
        ("CREATE DATABASE x", "CREATE DATABASE x is not supported"),
        ("DROP TABLE x", "DROP TABLE is not supported"),
        ("UPDATE x SET a = 1", "UPDATE x is not supported"),
        ("(SELECT 1)", "no target"),
    ],
)
def test_what_cannot_run_says_where_why_and_what_can(text, message):
    with pytest.raises(BadStatement) as caught:
        parse("jobs/day.sql", "SET a=1;\n\n" + text)
    assert str(caught.value).startswith("jobs/day.sql:3: ")
    assert message in str(caught.value)
    assert "INSERT INTO <stream>" in str(caught.value)


# -- variables -------------------------------------------------------------------------------------


def test_variables_stand_for_their_values():
    found = only("INSERT INTO ${to} SELECT * FROM o WHERE day = '${day}'", to="big", day="1")
    assert isinstance(found, IntoStream)
    assert found.target == "big"
    assert "day = '1'" in found.query


def test_a_variable_without_a_value_is_an_error_that_says_how_to_give_one():
    with pytest.raises(BadStatement, match=r"f.sql:2: \$\{day\} has no value.*--var day="):
        parse("f.sql", "SET a=1;\nINSERT INTO x SELECT '${day}'")


def test_variables_that_the_file_sets_are_left_to_spark():
    _, insert = parse("f.sql", "SET day=1;\nINSERT INTO x SELECT '${day}', '${env:HOME}'")
    assert isinstance(insert, IntoStream)
    assert "'${day}', '${env:HOME}'" in insert.query


def test_a_file_that_is_too_large_is_refused():
    with pytest.raises(BadStatement, match="at most"):
        parse("f.sql", " " * (limits.SQL_FILE_CHARS_MAX + 1))
