"""The connector of the documentation runs as it stands, and again, and sends each message once."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.testing.hub import TestHub
from tests.hub.conftest import config
from tests.records import read_all

PAGE = Path(__file__).parents[2] / "docs" / "wallaroo-connector.md"


def test_the_example_sends_its_messages_once(capsys):
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with TestHub(config=config(wallaroo={"listen": "127.0.0.1:0"})) as hub:
        address = hub.wallaroo.address.removeprefix("wallaroo://")
        text = snippet.replace("127.0.0.1:7472", address)
        assert text != snippet
        for _ in range(2):
            exec(compile(text, str(PAGE), "exec"), {"__name__": "example"})
        assert read_all(hub.log, "lab.1.readings") == [b"reading %d" % n for n in range(1, 1001)]
    assert capsys.readouterr().out == "1000 messages are on disk\n0 messages are on disk\n"
