"""Resolve every extra anew and write requirements.lock: `name==version`, nothing else.

Usage: python scripts/lock.py

The lock is made with Python 3.11, the oldest we support, so that it holds everywhere. Afterwards
the pins of the build tools in pyproject.toml are compared with it, because an isolated build and
`make` have to use the same compiler.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Versions that work together, for all extras on Python 3.11. Made by `make lock`, used as
# constraints by `make setup`. Do not edit by hand.
"""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(extras: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"),
                *("--report", str(report), f"{ROOT}[{','.join(extras)}]"),
            ],
            check=True,
        )
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    versions = {normalised(item["name"]): item["version"] for item in found}
    del versions["penstock"]
    return versions


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"the lock is made with Python 3.11, this is {sys.version.split()[0]}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = resolve(sorted(project["project"]["optional-dependencies"]))
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    LOCK.write_text(HEADER + "".join(lines))
    print(f"{LOCK.name}: {len(versions)} packages")

    wrong = []
    for pin in project["build-system"]["requires"] + project["tool"]["penstock"]["compiler"]:
        name, _, version = pin.partition("==")
        if versions[normalised(name)] != version:
            wrong.append(f"  {pin} -> {name}=={versions[normalised(name)]}")
    if wrong:
        sys.exit("pyproject.toml does not pin what was locked; change:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
