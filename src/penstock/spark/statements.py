"""A file of SQL as statements, and what each of them asks of a pipeline. Pure: no Spark here.

Spark parses the queries themselves; this reads only so much as is needed to cut the file at its
semicolons and to take a statement's target off its query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from penstock import limits
from penstock.errors import BadSetting, BadStatement

SUPPORTED: Final = """\
INSERT INTO <stream> [(columns)] SELECT ...
CREATE TABLE <name> [USING parquet|delta] [PARTITIONED BY (columns)] [LOCATION '...'] AS SELECT ...
CREATE [OR REPLACE] TEMPORARY VIEW <name> AS SELECT ...
CREATE TEMPORARY FUNCTION, DECLARE VARIABLE, DROP VIEW, SET"""

TableFormat: TypeAlias = Literal["parquet", "delta"]


class Place(NamedTuple):
    """Where in which file something stands; lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Token(NamedTuple):
    """A word, a name in backticks, a string, or one character of punctuation."""

    kind: Literal["word", "name", "string", "other"]
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """A word without its case; nothing else equals a keyword."""
        return self.text.upper() if self.kind == "word" else self.text

    @property
    def value(self) -> str:
        """What a quoted name or a string stands for."""
        if self.kind == "name":
            return self.text[1:-1].replace("``", "`")
        if self.kind == "string":
            mark = self.text[-1]
            inner = self.text[self.text.index(mark) + 1 : -1]
            if self.text[0] in "rR":
                return inner
            return re.sub(r"\\(.)", r"\1", inner.replace(mark * 2, mark), flags=re.DOTALL)
        return self.text


@dataclass(frozen=True)
class Source:
    """SQL text and where a piece of it comes from."""

    file: str
    text: str

    def place(self, at: int) -> Place:
        return Place(self.file, self.text.count("\n", 0, at) + 1)

    def query(self, start: int, end: int) -> str:
        """A piece with empty lines before it, so that Spark counts lines as the file does."""
        return "\n" * self.text.count("\n", 0, start) + self.text[start:end]


@dataclass(frozen=True)
class AsItIs:
    """A statement Spark runs as it stands: it prepares, and starts nothing."""

    place: Place
    text: str
    view: str | None = None
    """The view it makes, as it is written."""


@dataclass(frozen=True)
class IntoStream:
    """`INSERT INTO`: a query whose rows become records of a stream."""

    place: Place
    text: str
    target: str
    columns: tuple[str, ...]
    query: str


@dataclass(frozen=True)
class IntoTable:
    """`CREATE TABLE ... AS`: a query whose rows are kept in a table."""

    place: Place
    text: str
    target: str
    form: TableFormat
    location: str | None
    partitioned: tuple[str, ...]
    query: str


Statement: TypeAlias = AsItIs | IntoStream | IntoTable


def parse(file: str, text: str, variables: Mapping[str, str] | None = None) -> list[Statement]:
    """The statements of a file; `${name}` in it stands for a variable's value."""
    if len(text) > limits.SQL_FILE_CHARS_MAX:
        raise BadStatement(
            f"{file} has {len(text):,} characters: at most {limits.SQL_FILE_CHARS_MAX:,}"
        )
    source = Source(file, substitute(file, text, variables or {}))
    return [_Parser(source, tokens).statement() for tokens in split(source)]


def read_file(file: Path, variables: Mapping[str, str] | None = None) -> list[Statement]:
    """The statements of a file, of which at least one has a target."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadSetting(f"{file} cannot be read: {why}") from None
    statements = parse(str(file), text, variables)
    targets = sum(not isinstance(each, AsItIs) for each in statements)
    if not targets:
        raise BadStatement(
            f"{file} starts nothing: it needs an INSERT INTO <stream> SELECT ... or a CREATE TABLE "
            "<name> AS SELECT ..."
        )
    if targets > limits.SQL_QUERIES_MAX:
        raise BadStatement(
            f"{file} has {targets} statements with a target: at most {limits.SQL_QUERIES_MAX}; "
            "make several files of it"
        )
    return statements


def needs_delta(statements: Iterable[Statement]) -> bool:
    """Whether a statement writes, or reads by path, a Delta table."""
    return any(
        (isinstance(each, IntoTable) and each.form == "delta")
        or re.search(r"\bdelta\s*\.\s*`", each.text, re.IGNORECASE) is not None
        for each in statements
    )


_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


def substitute(file: str, text: str, variables: Mapping[str, str]) -> str:
    """Put the variables in; one without a value is an error unless the file itself SETs it."""
    own = set(re.findall(r"(?im)^\s*SET\s+(?:VAR(?:IABLE)?\s+)?([\w.]+)\s*=", text))

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name in variables:
            return variables[name]
        if name in own:
            return match[0]
        place = Source(file, text).place(match.start())
        raise BadStatement(f"{place}: ${{{name}}} has no value: give one with --var {name}=...")

    return _VARIABLE.sub(value, text)


_PLAIN: Final = re.compile(
    r"""(?P<gap>\s+|--(?:\\\r?\n|[^\r\n])*)
    |(?P<string>[rR]'[^']*'|[rR]"[^"]*"
        |'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<word>[^\W\d]\w*|\d\w*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
_KINDS: Final[Mapping[str, Literal["word", "name", "string", "other"]]] = {
    "word": "word",
    "name": "name",
    "string": "string",
    "other": "other",
}


def tokens_of(source: Source) -> Iterator[Token]:
    """Every token of the text but gaps and comments."""
    at, text = 0, source.text
    while at < len(text):
        if text.startswith("/*", at):
            at = _comment_end(source, at)
            continue
        match = _PLAIN.match(text, at)
        assert match is not None  # its last alternative takes any character
        kind = _KINDS.get(match.lastgroup or "")
        if kind == "other" and match[0] in "'\"`":
            raise BadStatement(
                f"{source.place(at)}: the quote {match[0]} is opened here and never closed"
            )
        if kind is not None:
            yield Token(kind, match[0], at, match.end())
        at = match.end()


def _comment_end(source: Source, start: int) -> int:
    """Comments in brackets nest, as they do in Spark."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(source.text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise BadStatement(f"{source.place(start)}: the comment /* is opened here and never closed")


def split(source: Source) -> list[list[Token]]:
    """The tokens of each statement that is not empty."""
    found: list[list[Token]] = [[]]
    for token in tokens_of(source):
        if token.text == ";":
            found.append([])
        else:
            found[-1].append(token)
    return [each for each in found if each]


_QUERY: Final = ("SELECT", "WITH", "FROM", "TABLE", "VALUES", "(")
_RUN: Final = ("SET", "RESET", "DECLARE")


class _Parser:
    """Reads one statement from its tokens."""

    def __init__(self, source: Source, tokens: Sequence[Token]) -> None:
        self._source = source
        self._tokens = tokens
        self._at = 0
        self._place = source.place(tokens[0].start)
        self._text = source.text[tokens[0].start : tokens[-1].end]

    def statement(self) -> Statement:
        if self._take("INSERT"):
            return self._insert()
        if self._take("CREATE"):
            return self._create()
        first = self._tokens[0].upper
        if first in _RUN or (first == "DROP" and self._peek(1) in ("VIEW", "TEMPORARY")):
            return self._as_it_is()
        if first in _QUERY:
            if any(each.upper == "INSERT" for each in self._tokens):
                raise self._refuse("a WITH goes behind the target: INSERT INTO ... WITH ... SELECT")
            raise self._refuse(
                "this query has no target: write INSERT INTO <stream> or CREATE TABLE <name> AS "
                "before it, or look at its rows in `penstock shell`"
            )
        raise self._refuse(f"{self._words(2)} is not supported here")

    def _insert(self) -> IntoStream:
        if not self._take("INTO"):
            raise self._refuse(
                f"INSERT {self._tokens[self._at].text if self._more() else ''} is not supported: "
                "a stream is only ever appended to, so write INSERT INTO <stream> SELECT ..."
            )
        if self._peek() == "TABLE" and self._peek(1) not in _QUERY:
            self._take("TABLE")
        target = self._target("stream")
        columns = self._names() if self._peek() == "(" and not self._is_query() else ()
        if self._take("BY"):
            self._expect("NAME", "INSERT INTO <stream> BY NAME SELECT ...")
        return IntoStream(self._place, self._text, target, columns, self._query())

    def _create(self) -> Statement:
        replace = self._take("OR") and self._take("REPLACE")
        self._take("GLOBAL")
        if self._take("TEMPORARY") or self._take("TEMP"):
            if self._take("VIEW"):
                return self._as_it_is(self._view_name())
            if self._take("FUNCTION"):
                return self._as_it_is()
            raise self._refuse(f"{self._words(3)} is not supported here")
        if self._take("VIEW"):
            raise self._refuse("a view lives as long as the run: write CREATE TEMPORARY VIEW")
        if not self._take("TABLE"):
            hint = ""
            if self._peek() in ("STREAMING", "MATERIALIZED", "FLOW"):
                hint = "; declarative pipelines have it: `penstock pipeline init`"
            raise self._refuse(f"{self._words(3)} is not supported here{hint}")
        if replace:
            raise self._refuse(
                "a run goes on where the last one stopped, so a table is never replaced: write "
                "CREATE TABLE; to begin anew, delete the table and its checkpoint"
            )
        return self._table()

    def _table(self) -> IntoTable:
        if self._take("IF"):
            self._expect("NOT", "CREATE TABLE IF NOT EXISTS")
            self._expect("EXISTS", "CREATE TABLE IF NOT EXISTS")
        target = self._target("table")
        form: TableFormat = "parquet"
        location: str | None = None
        partitioned: tuple[str, ...] = ()
        if self._peek() == "(":
            raise self._refuse(
                "the columns come from the SELECT: leave the list behind the name out"
            )
        while self._more() and not self._take("AS"):
            if self._take("USING"):
                form = self._format()
            elif self._take("LOCATION"):
                location = self._string("LOCATION '<path>'")
            elif self._take("PARTITIONED"):
                self._expect("BY", "PARTITIONED BY (columns)")
                partitioned = self._names()
            elif self._peek() in _QUERY:
                break
            else:
                raise self._refuse(
                    f"{self._tokens[self._at].text} is not supported in CREATE TABLE: use "
                    "USING, PARTITIONED BY and LOCATION"
                )
        query = self._query("a table is filled by a query: CREATE TABLE <name> AS SELECT ...")
        return IntoTable(self._place, self._text, target, form, location, partitioned, query)

    def _format(self) -> TableFormat:
        token = self._next("USING parquet or USING delta")
        match token.value.lower():
            case "parquet":
                return "parquet"
            case "delta":
                return "delta"
        raise self._refuse(f"USING {token.text} is not supported: use parquet or delta")

    def _as_it_is(self, view: str | None = None) -> AsItIs:
        query = self._source.query(self._tokens[0].start, self._tokens[-1].end)
        return AsItIs(self._place, query, view)

    def _view_name(self) -> str:
        if self._take("IF"):
            self._take("NOT")
            self._take("EXISTS")
        first = self._next("CREATE TEMPORARY VIEW <name> AS SELECT ...")
        return first.text

    def _target(self, what: str) -> str:
        """A name: in backticks, or words with dots between them."""
        example = f"a {what}'s name; one with other characters than letters, digits, . and _ " \
                  "needs backticks: `orders-eu`"  # fmt: skip
        parts = [self._name(example)]
        while self._take("."):
            parts.append(self._name(example))
        if self._peek() in ("-", "/", ":"):
            raise self._refuse(f"expected {example}")
        return ".".join(parts)

    def _name(self, example: str) -> str:
        token = self._next(example)
        if token.kind not in ("word", "name") or not token.value:
            raise self._refuse(f"expected {example}, found {token.text}")
        return token.value

    def _names(self) -> tuple[str, ...]:
        self._expect("(", "a list of columns: (one, two)")
        found = [self._name("a column's name")]
        while self._take(","):
            found.append(self._name("a column's name"))
        self._expect(")", "a list of columns: (one, two)")
        return tuple(found)

    def _string(self, example: str) -> str:
        token = self._next(example)
        if token.kind != "string":
            raise self._refuse(f"expected {example}, found {token.text}")
        return token.value

    def _query(self, missing: str = "a query must follow: SELECT ...") -> str:
        if self._peek() not in _QUERY:
            found = self._tokens[self._at].text if self._more() else "the statement's end"
            raise self._refuse(f"{missing} (found {found})")
        return self._source.query(self._tokens[self._at].start, self._tokens[-1].end)

    def _is_query(self) -> bool:
        """Whether the bracket here opens a query and not a list of columns."""
        return self._peek(1) in _QUERY

    # -- tokens ------------------------------------------------------------------------------------

    def _more(self) -> bool:
        return self._at < len(self._tokens)

    def _peek(self, further: int = 0) -> str:
        at = self._at + further
        return self._tokens[at].upper if at < len(self._tokens) else ""

    def _take(self, keyword: str) -> bool:
        if self._peek() != keyword:
            return False
        self._at += 1
        return True

    def _next(self, example: str) -> Token:
        if not self._more():
            raise self._refuse(f"the statement ends where {example} was expected")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, keyword: str, example: str) -> None:
        if not self._take(keyword):
            found = self._tokens[self._at].text if self._more() else "the statement's end"
            raise self._refuse(f"expected {example}, found {found}")

    def _words(self, count: int) -> str:
        return " ".join(each.text for each in self._tokens[:count])

    def _refuse(self, why: str) -> BadStatement:
        return BadStatement(f"{self._place}: {why}\nSupported are:\n{_indented(SUPPORTED)}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
