"""What `test_connect.py` runs as a client of Spark Connect: `python -m tests.spark.connect_job sc://HOST:PORT
run://HOST:PORT FOLDER`.

Prints one JSON object: what each write and read returned or raised.
"""

from __future__ import annotations

import json
import sys
import threading


def main(server, spool, folder):
    import pyspark
    from pyspark.sql import SparkSession

    from tests.spark.spark35_job import failing
    from tests.spark.spools import frame_of
    from transfer.spark import write

    spark = SparkSession.builder.remote(server).getOrCreate()
    told = {"version": pyspark.__version__, "session": type(spark).__module__}

    def attempt(name, work):
        try:
            told[name] = work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            told[name] = f"{type(error).__name__}: {error}"

    def save(df, run, **options):
        df.write.format("transfer").mode("append").options(**options).save(f"{spool}/{run}")
        return run

    def load(run):
        return spark.read.format("transfer").load(f"{spool}/{run}")

    def stream():
        rows = spark.readStream.format("transfer").option("group", "stream").load(f"{spool}/write")
        query = (
            rows.writeStream.format("transfer")
            .options(checkpointLocation=f"{folder}/checkpoint", ragged="r")
            .trigger(availableNow=True)
            .start(f"{spool}/stream")
        )
        return query.awaitTermination(100)

    frame = frame_of(spark, 1200)
    attempt("format", lambda: save(frame, "format", ragged="r"))
    attempt("write", lambda: write(frame, f"{spool}/write", ragged="r"))
    thread = threading.Thread(
        target=attempt, args=("thread", lambda: write(frame, f"{spool}/thread", ragged="r"))
    )
    thread.start()
    thread.join()
    attempt("columns", lambda: write(frame, f"{spool}/columns", columns=["x", "id"]))
    harmed = frame.mapInArrow(failing(f"{folder}/raised", kill=False), frame.schema)
    attempt("raised", lambda: write(harmed, f"{spool}/raised", ragged="r"))
    attempt("read", lambda: [row.asDict() for row in load("write").where("id < 2").orderBy("id").collect()])
    attempt("count", lambda: load("format").count())
    attempt("stream", stream)
    attempt("other rows", lambda: write(frame.limit(7), f"{spool}/write", ragged="r"))
    cut = frame.selectExpr("id", "if(id = 1199, array(1f), x) x")
    attempt("cut", lambda: write(cut, f"{spool}/cut"))
    attempt("cut format", lambda: save(cut, "cut-format"))
    attempt("option", lambda: save(frame, "option", ragged="r", frames="7"))
    attempt("no spool", lambda: write(frame, "run://127.0.0.1:9/x", ragged="r", connect_timeout=0.2))
    attempt("no run", lambda: load("missing").count())
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
