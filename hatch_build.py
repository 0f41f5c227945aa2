"""Compiles the hot modules with mypyc, or steps aside.

The list of hot modules is `[tool.penstock] compiled` in pyproject.toml. Three ways lead here:

    building a wheel            the extensions go into the wheel, which gets a platform tag
    an editable install         the extensions are put beside their sources
    python hatch_build.py       the same, without the install: what `make` does after an edit

Compiling is an optimisation, so nothing about it can fail an install: without a compiler, or when
mypyc or the compiler refuses, a warning says so and the same source runs as plain Python.
`PENSTOCK_PURE=1` asks for that on purpose.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "src"

# Every third-party type is Any here, whatever happens to be installed: the machine code then
# depends on our source alone. `make check` is where types are held to the strict rules, so what
# mypy thinks of modules that are only imported is of no interest.
MYPY_FLAGS = [
    "--config-file=",
    "--no-site-packages",
    "--ignore-missing-imports",
    "--follow-imports=silent",
]


class CannotCompileError(Exception):
    """Why this build stays pure."""


class CompileHook(BuildHookInterface[Any]):
    """Hatchling's way in."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for mypy and setuptools only if they will be used."""
        if self.target_name != "wheel" or reason_to_stay_pure() or not hot_modules():
            return []
        return list(settings()["compiler"])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before hatchling gathers the files."""
        if self.target_name != "wheel":
            return
        if version == "editable":
            notice = compile_in_place()
        else:
            # Kept until this object goes, by which time the wheel is written.
            self.output = tempfile.TemporaryDirectory(prefix="penstock-build-")
            notice, extensions = compile_or_explain(Path(self.output.name))
            for extension in extensions:
                inside = extension.relative_to(self.output.name).as_posix()
                build_data["force_include"][str(extension)] = inside
            if extensions:
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
        if notice:
            self.app.display_warning(notice)


def settings() -> dict[str, Any]:
    """Read `[tool.penstock]`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["tool"]["penstock"]
    return table


def hot_modules() -> list[str]:
    """List the hot modules as paths from the root; a listed file that is missing is a mistake."""
    paths: list[str] = settings()["compiled"]
    for path in paths:
        if not (ROOT / path).is_file():
            raise FileNotFoundError(f"[tool.penstock] compiled lists {path}, which does not exist")
    return paths


def reason_to_stay_pure() -> str:
    """Say what stands in the way of compiling; empty when nothing does."""
    if os.environ.get("PENSTOCK_PURE", "") not in ("", "0"):
        return "PENSTOCK_PURE is set"
    if os.name == "posix":
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
        if shutil.which(compiler) is None:
            return f"there is no C compiler ({compiler})"
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            return "Python.h is missing (Debian has it in python3-dev)"
    return ""


def compile_or_explain(output: Path) -> tuple[str, list[Path]]:
    """Compile all hot modules into `output`, all or none.

    The answer is a notice (empty if all went well) and the files made.
    """
    paths = hot_modules()
    if not paths:
        return "", []
    try:
        if reason := reason_to_stay_pure():
            raise CannotCompileError(reason)
        # A process of its own, because mypyc exits when it is unhappy and writes where it stands.
        done = subprocess.run(
            [sys.executable, __file__, "--compile-into", str(output)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        extensions = sorted(path for path in output.rglob("*") if path.suffix in (".so", ".pyd"))
        if done.returncode != 0 or not extensions:
            raise CannotCompileError(f"compiling failed:\n{done.stdout.strip()}")
    except (CannotCompileError, OSError) as error:
        return f"Penstock runs as plain Python, correct but slower: {error}", []
    return "", extensions


def compile_in_place() -> str:
    """Put fresh extensions beside the sources, and remove all that are out of date."""
    with tempfile.TemporaryDirectory(prefix="penstock-build-") as output:
        notice, extensions = compile_or_explain(Path(output))
        fresh = {SOURCES / path.relative_to(output): path for path in extensions}
        for pattern in ("*.so", "*.pyd"):
            for old in (SOURCES / "penstock").rglob(pattern):
                if old not in fresh:
                    old.unlink()
        for target, made in fresh.items():
            # Copy, then rename: a running process keeps the file that it has mapped.
            beside = target.with_name(f".{target.name}.new")
            shutil.copy2(made, beside)
            beside.replace(target)
    return notice


def compile_into(output: Path) -> None:
    """Run mypyc and the C compiler. It exits, loudly, if either refuses."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    with tempfile.TemporaryDirectory(prefix="penstock-c-") as scratch:
        extensions = mypycify(
            [*MYPY_FLAGS, f"--cache-dir={os.devnull}", *hot_modules()],
            # Every module its own library, inside its package. One shared library was no faster
            # (1.7 ns a call between modules, against 1.4), and mypyc then gets `__file__` wrong.
            separate=True,
            target_dir=scratch,
        )
        build = Distribution({"name": "penstock", "ext_modules": extensions}).get_command_obj(
            "build_ext"
        )
        build.build_lib, build.build_temp = str(output), scratch
        build.ensure_finalized()
        build.run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile-into"]:
        compile_into(Path(sys.argv[2]))
    elif notice := compile_in_place():
        print(notice, file=sys.stderr)
