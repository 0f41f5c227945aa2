"""The package as an archive, to be shipped to the executors of a cluster."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Final

import penstock
from penstock.spark.cache import keep_file

_PACKAGES: Final = ("penstock", "pyspark_penstock")
_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest a zip can tell: the same sources then make the same archive."""


def package_zip() -> Path:
    """An archive of the Python sources, for `spark.submit.pyFiles` or `--py-files`.

    Executors import from it what reads and writes streams; that needs pyarrow and numpy there, and
    nothing else. Compiled modules run as plain Python.
    """
    above = Path(penstock.__file__).parent.parent
    if above.is_file():  # it runs from such an archive
        return above
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(
            path for package in _PACKAGES for path in (above / package).rglob("*.py")
        ):
            entry = zipfile.ZipInfo(source.relative_to(above).as_posix(), _DATE)
            archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)
    data = packed.getvalue()
    digest = hashlib.sha256(data).hexdigest()[:16]
    return keep_file(f"penstock-{penstock.__version__}-{digest}.zip", data)
