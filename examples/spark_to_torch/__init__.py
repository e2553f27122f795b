"""The main job in small: Spark writes a real data set, and a PyTorch training loop reads it.

    python -m examples.spark_to_torch [--epochs N] [--workers N] [--output FILE] [--json]

The handwritten digits of UCI (1,797 images of 8 x 8, included in scikit-learn) are written as Parquet. One
Spark job reads them and writes them with `format("transfer")` into a spool in this process. Then Spark ends,
and the training loop reads them from the spool as tensors, in another order in each epoch. The demo fails if
a row is lost or doubled, and if the network recognizes fewer than 95 % of the test images at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from transfer.transports.errors import TransferError, install_hint

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo. Returns 0 on success, 1 with a one-line error on failure, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _complain("stopped by Ctrl-C", 130)
    except ImportError as error:
        if error.name and error.name.partition(".")[0] == "transfer":
            raise
        return _complain(f"{error.name} is missing\n  hint: {install_hint('demo')}", 1)
    except TransferError as error:
        return _complain(str(error), 1)


def _run(arguments: argparse.Namespace) -> int:
    # Java first: the check takes a moment, importing the rest takes seconds.
    from transfer.spark.session import check_java

    check_java()
    from examples.spark_to_torch import report
    from examples.spark_to_torch.job import DemoOptions, run_demo

    options = DemoOptions(epochs=arguments.epochs, workers=arguments.workers)
    with report.Progress(to_stderr=arguments.json) as progress:
        result = run_demo(options, progress)
    report.plot(result, arguments.output)
    if arguments.json:
        print(json.dumps(report.as_dict(result), indent=2))
    else:
        report.print_tables(result)
        print(f"plot: {arguments.output}")
    problem = result.problem()
    if problem:
        return _complain(problem, 1)
    if not arguments.json:
        print(f"ok: each row once in each epoch, and {result.accuracy:.1%} of the test images are recognized")
    return 0


def _complain(text: str, code: int) -> int:
    print(f"demo failed: {text}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark_to_torch",
        description="Spark writes the UCI handwritten digits, and a PyTorch training loop reads them.",
    )
    parser.add_argument("--epochs", type=_positive, default=8, help="number of epochs (default 8)")
    parser.add_argument("--workers", type=_positive, default=2, help="parallel Spark tasks (default 2)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output/demo.png"),
        help="file for the plot (default demo-output/demo.png)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, progress on stderr")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
