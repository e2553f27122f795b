"""`python -m bench.spark [--rows N] [--width N] [--repeat N] [--ways NAME …] [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import machine
from bench.spark.service import Service
from bench.spark.ways import WAYS, Scene, WayTimes
from bench.stats import Spread, ratio

#: (what, ours, theirs, quantity, target: at least, or at most if negative)
TARGETS = (
    ("CPU against Parquet", "parquet", "committed", "cpu", 2.5),
    ("last row against Parquet", "parquet", "committed", "last", 2.5),
    ("CPU against Parquet", "parquet", "eager", "cpu", 3.0),
    ("last row against Parquet", "parquet", "eager", "last", 3.0),
    ("first batch against Parquet", "parquet", "eager", "first", 10.0),
    ("first batch against Parquet", "parquet", "partition", "first", 10.0),
    ("CPU against toArrow", "toArrow", "eager", "cpu", 2.0),
    ("CPU against toArrow", "toArrow", "committed", "cpu", 1.7),
    ("CPU against toPandas", "toPandas", "eager", "cpu", 2.0),
    ("CPU against toPandas", "toPandas", "committed", "cpu", 1.7),
    ("CPU of the sink against a null writer", "eager", "null writer", "sink", -1.15),
    ("CPU of sink and spool against a null writer", "committed, sink", "null writer", "sink", -1.4),
)


def main() -> int:
    arguments = _arguments()
    ways = [way for way in WAYS if way in arguments.ways]
    if "toPandas" in ways and importlib.util.find_spec("pandas") is None:
        print("no pandas here: toPandas is skipped", file=sys.stderr)
        ways.remove("toPandas")
    took: dict[str, list[WayTimes]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="transfer-bench-", dir=arguments.folder) as folder:
        scene, close = _scene(arguments, Path(folder))
        try:
            for number in range(-arguments.warm, arguments.repeat):
                for way in ways:
                    found = WAYS[way](scene)
                    mark = "" if number >= 0 else "   (warming up)"
                    print(f"{way:20} {_words(found)}{mark}", file=sys.stderr)
                    if number >= 0:
                        took[way].append(found)
        finally:
            close()
    print(_report(arguments, took))
    if arguments.json:
        arguments.json.write_text(json.dumps({"where": machine.describe(), "took": took}, indent=1))
    return 0


def _scene(arguments: argparse.Namespace, folder: Path) -> tuple[Scene, Any]:
    """Starts Spark with the DataFrame in its memory, and a spool on the same disk as the Parquet files."""
    from bench.spark.null import NullSource
    from transfer.spark.session import local_session
    from transfer.spark.writer import register

    service = Service(folder / "spool")
    conf = {
        "spark.log.level": "OFF",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "6g",
        "spark.driver.maxResultSize": "4g",
    }
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    spark = local_session(2, name="bench", conf=conf)
    register(spark)
    spark.dataSource.register(NullSource)
    numbers = ", ".join(f"float(id + {n})" for n in range(arguments.width))
    ids = spark.range(0, arguments.rows, 1, arguments.partitions)
    frame = ids.selectExpr(f"array({numbers}) as x").cache()
    assert frame.count() == arguments.rows
    scene = Scene(spark, frame, arguments.rows, service.url, folder)

    def close() -> None:
        scene.close()
        spark.stop()
        service.close()

    return scene, close


def _report(arguments: argparse.Namespace, took: dict[str, list[WayTimes]]) -> str:
    lines = [
        (
            f"{arguments.rows:,} rows × {arguments.width} float32, {arguments.partitions} partitions, "
            f"{arguments.repeat} rounds. {machine.one_line(machine.describe())}"
        ),
        "",
        "| way | CPU, s | without the trainer, s | first batch, s | last row, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way, found in took.items():
        spreads = (Spread.of([getattr(one, name) for one in found]) for name in WayTimes._fields)
        cells = (f"{one.median:.2f} ({one.low:.2f}–{one.high:.2f})" for one in spreads)
        lines.append(f"| {way} | {' | '.join(cells)} |")
    lines += ["", "| what | way | wanted | measured | |", "| --- | --- | --- | --- | --- |"]
    for what, above, below, quantity, wanted in TARGETS:
        if above in took and below in took:
            found = ratio(*([getattr(one, quantity) for one in took[way]] for way in (above, below)))
            assert found is not None
            hit = found.median >= wanted if wanted > 0 else found.median <= -wanted
            ours = below if wanted > 0 else above
            sign = "≥" if wanted > 0 else "≤"
            verdict = "hit" if hit else "**missed**"
            lines.append(
                f"| {what} | {ours} | {sign} {abs(wanted)} "
                f"| {found.median:.2f} ({found.low:.2f}–{found.high:.2f}) | {verdict} |"
            )
    return "\n".join(lines)


def _words(took: WayTimes) -> str:
    return f"CPU {took.cpu:6.2f} s   first {took.first:6.2f} s   last {took.last:6.2f} s"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--width", type=int, default=64, help="float32 values in a row (64)")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5, help="rounds that count (5)")
    parser.add_argument("--warm", type=int, default=1, help="earlier rounds that do not count (1)")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS], help="ways to measure (all)")
    parser.add_argument("--folder", type=Path, help="folder of the spool and the files (a temporary one)")
    parser.add_argument("--json", type=Path, help="all samples, as a file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
