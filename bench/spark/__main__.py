"""`python -m bench.spark [--rows N] [--width N] [--repeat N] [--ways NAME …] [--json FILE] [--plot FILE]`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import judged, machine
from bench.judged import Judged, to_json
from bench.plot import draw_targets
from bench.spark.service import Service
from bench.spark.ways import WAYS, Scene, WayTimes
from bench.stats import Spread, ratio

#: (name, way above, way below, quantity, target of above ÷ below: at least, or at most if negative)
TARGETS = (
    ("CPU against Parquet, committed", "parquet", "committed", "cpu", 2.5),
    ("last row against Parquet, committed", "parquet", "committed", "last", 2.5),
    ("CPU against Parquet, eager", "parquet", "eager", "cpu", 3.0),
    ("last row against Parquet, eager", "parquet", "eager", "last", 3.0),
    ("first batch against Parquet, eager", "parquet", "eager", "first", 10.0),
    ("first batch against Parquet, partition", "parquet", "partition", "first", 10.0),
    ("CPU against toArrow, eager", "toArrow", "eager", "cpu", 2.0),
    ("CPU against toArrow, committed", "toArrow", "committed", "cpu", 1.7),
    ("CPU against toPandas, eager", "toPandas", "eager", "cpu", 2.0),
    ("CPU against toPandas, committed", "toPandas", "committed", "cpu", 1.7),
    ("CPU of the sink against a null writer, eager", "eager", "null writer", "sink", -1.15),
    ("CPU of sink and spool against a null writer", "committed, sink", "null writer", "sink", -1.4),
)


def main() -> int:
    arguments = _arguments()
    if arguments.saved is not None:
        draw_targets(arguments.plot, *judged.read(arguments.saved))
        return 0
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
    where = machine.describe()
    head = (
        f"{where['when'][:10]}, {arguments.rows:,} rows × {arguments.width} float32, {arguments.partitions} "
        f"partitions, {arguments.repeat} rounds. {machine.one_line(where)}"
    )
    targets = _judge(took)
    print(_report(head, took, targets))
    if arguments.json:
        document = {"format": 1, "head": head, "machine": where, "took": took, "targets": to_json(targets)}
        arguments.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if arguments.plot:
        draw_targets(arguments.plot, targets, head)
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


def _judge(took: dict[str, list[WayTimes]]) -> list[Judged]:
    """Returns the targets whose ways were both measured."""
    targets = []
    for name, above, below, quantity, wanted in TARGETS:
        if above in took and below in took:
            found = ratio(*([getattr(one, quantity) for one in took[way]] for way in (above, below)))
            assert found is not None
            targets.append(Judged(name, found, abs(wanted), at_least=wanted > 0))
    return targets


def _report(head: str, took: dict[str, list[WayTimes]], targets: Sequence[Judged]) -> str:
    lines = [
        head,
        "",
        "| way | CPU, s | without the trainer, s | first batch, s | last row, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way, found in took.items():
        spreads = (Spread.of([getattr(one, name) for one in found]) for name in WayTimes._fields)
        cells = (f"{one.median:.2f} ({one.low:.2f}–{one.high:.2f})" for one in spreads)
        lines.append(f"| {way} | {' | '.join(cells)} |")
    lines += ["", "| target | wanted | measured | |", "| --- | --- | --- | --- |"]
    for one in targets:
        verdict = "hit" if one.hit else "**missed**"
        lines.append(f"| {one.name} | {one.wanted} | {one.shown} | {verdict} |")
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
    parser.add_argument("--plot", type=Path, help="draw the targets, hit or missed, as SVG or PNG")
    parser.add_argument("--from", dest="saved", type=Path, help="draw a --json file, run nothing")
    arguments = parser.parse_args()
    if arguments.saved is not None and arguments.plot is None:
        parser.error("--from needs --plot")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
