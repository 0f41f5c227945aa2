"""Downloads jars with Spark's resolver: `python -m penstock.spark.resolve FOLDER COORDINATES...`

A program of its own, started by `penstock.spark.jars`: the resolver lives in a Java process, and
the caller's may not be there, or be busy. Prints the coordinates of each jar that is in
FOLDER/jars, in the order given, and ends at the first that cannot be had.
"""

from __future__ import annotations

import ssl
import sys
from typing import Any

from penstock.errors import PenstockError
from penstock.spark.session import spark_session


def main(folder: str, *wanted: str) -> None:
    """Fetch one after the other."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    spark = spark_session("penstock-jars", master="local[1]", conf={"spark.jars.ivy": folder})
    trust_as_python(spark.sparkContext._jvm)
    for coordinates in wanted:
        try:
            spark.sql(f"ADD JAR ivy://{coordinates}?transitive=false")
        except (Py4JJavaError, PySparkException) as error:
            # The resolver has said what it tried; where in Java it gave up helps nobody.
            cause = error.java_exception if isinstance(error, Py4JJavaError) else error
            sys.exit(str(cause).partition("\n\tat ")[0])
        sys.stdout.write(f"{coordinates}\n")
        sys.stdout.flush()


def trust_as_python(java: Any) -> None:
    """Let Java trust the authorities that this machine's Python trusts.

    Else each Java brings its own list, and one from a wheel knows nothing of an authority that was
    added to the machine, such as a company's. Where Python has no list in one file, Java's stays.
    """
    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None:
        return
    store = java.java.security.KeyStore.getInstance(java.java.security.KeyStore.getDefaultType())
    store.load(None, None)
    factory = java.java.security.cert.CertificateFactory.getInstance("X.509")
    file = java.java.io.FileInputStream(bundle)
    for number, authority in enumerate(factory.generateCertificates(file)):
        store.setCertificateEntry(str(number), authority)
    file.close()
    tls = java.javax.net.ssl
    managers = tls.TrustManagerFactory.getInstance(tls.TrustManagerFactory.getDefaultAlgorithm())
    managers.init(store)
    context = tls.SSLContext.getInstance("TLS")
    context.init(None, managers.getTrustManagers(), None)
    tls.SSLContext.setDefault(context)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except PenstockError as error:
        sys.exit(str(error))
