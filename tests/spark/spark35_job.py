"""What `test_spark35.py` runs with Spark 3.5: `python -m tests.spark.spark35_job run://HOST:PORT FOLDER`.

Prints one JSON object: what each write returned or raised.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def failing(place, kill):
    """For `mapInArrow`: partition 1 fails before its third batch, once."""

    def work(batches):
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            if number == 2 and TaskContext.get().partitionId() == 1 and not Path(place).exists():
                Path(place).touch()
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("this attempt fails on purpose")
            yield batch

    return work


def main(spool, folder):
    import pyspark
    from pyspark.ml.linalg import Vectors
    from pyspark.mllib.linalg import Vectors as OldVectors

    from tests.spark.spools import frame_of
    from transfer.spark import local_session, register, write

    conf = {
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    spark = local_session(2, task_failures=2, conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    told = {"version": pyspark.__version__}

    def attempt(name, work):
        try:
            told[name] = work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            told[name] = f"{type(error).__name__}: {error}"

    frame = frame_of(spark, 1200)
    attempt("register", lambda: register(spark))
    attempt("committed", lambda: write(frame, f"{spool}/committed", ragged="r"))
    attempt("committed again", lambda: write(frame, f"{spool}/committed", ragged="r", if_complete="skip"))
    attempt("other rows", lambda: write(frame.limit(7), f"{spool}/committed", ragged="r"))
    attempt("partition", lambda: write(frame, f"{spool}/partition", ragged="r", delivery="partition"))
    attempt("empty", lambda: write(frame.where("id < 0"), f"{spool}/empty", ragged="r"))
    attempt("columns", lambda: write(frame, f"{spool}/columns", columns=["x", "id"], frame_rows=50))
    for kill in (False, True):
        name = "killed" if kill else "raised"
        harmed = frame.mapInArrow(failing(f"{folder}/{name}", kill), frame.schema)
        attempt(name, lambda harmed=harmed, name=name: write(harmed, f"{spool}/{name}", ragged="r"))
    rows = [(i, Vectors.dense([i, i + 0.5]), OldVectors.dense([i, -i])) for i in range(100)]
    vectors = spark.createDataFrame(rows, ["id", "v", "w"])
    attempt("vectors", lambda: write(vectors, f"{spool}/vectors"))
    sparse = spark.createDataFrame([(Vectors.sparse(3, [1], [5.0]),)], ["v"])
    attempt("sparse", lambda: write(sparse, f"{spool}/sparse"))
    attempt("date", lambda: write(spark.sql("select current_date() day"), f"{spool}/date"))
    nulls = spark.sql("select id, if(id % 2 = 0, null, id) n from range(10)")
    attempt("nulls", lambda: write(nulls, f"{spool}/nulls", nulls="mask"))
    cut = frame.selectExpr("id", "if(id = 1199, array(1f), x) x")
    attempt("cut", lambda: write(cut, f"{spool}/cut"))
    attempt("nobody", lambda: write(frame, "run://127.0.0.1:9/x", ragged="r", connect_timeout=0.2))
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
