"""A data source that drops its batches. Spark's workers import it by this name."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator):
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NullSource(DataSource):
    @classmethod
    def name(cls):
        return "bench_null"

    def writer(self, schema, overwrite):
        return NullWriter()
