"""The README's Python runs as it stands, from top to bottom; its PySpark in `tests/spark`."""

import os
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_snippets_of_the_readme_run(tmp_path, monkeypatch, capsys):
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    snippets = [snippet for snippet in snippets if "spark" not in snippet]
    assert len(snippets) >= 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(README), "exec"), names)
    out = capsys.readouterr().out
    assert "'value': b'one'" in out
    assert "42\n" in out
    assert os.path.isdir("data/streams/orders")
