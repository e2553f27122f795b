"""Draws the ratios of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from bench.peers import OURS
from bench.report import number
from bench.run import LineUp
from bench.stats import Spread

COLOURS = {"pyzmq": "#4477aa", "raw": "#888888", "pynng": "#66ccee", "mooncake": "#ee6677", "gloo": "#ccbb44"}


def advantage(line_up: LineUp, peer: str) -> Spread | None:
    """Returns how many times better `transfer` is, also where the smaller number is the better one."""
    ratio = line_up.ratio(peer)
    if ratio is None or line_up.metric.higher_is_better:
        return ratio
    if not ratio.low > 0:
        return None
    return Spread(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)


def draw(path: Path, line_ups: Sequence[LineUp], head: str) -> None:
    """Draws a bar for each peer, on a logarithmic axis; whiskers show the lowest and the highest round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [
        (f"{line_up.work.case} {line_up.work.label}", peer, spread)
        for line_up in line_ups
        for peer in line_up.work.peers
        if not peer.startswith(OURS) and (spread := advantage(line_up, peer)) is not None
    ]
    if not bars:
        raise ValueError("nothing to draw: no line-up has ours and another peer")
    figure, axes = pyplot.subplots(figsize=(9, 1.6 + 0.28 * len(bars)), layout="constrained")
    rows = range(len(bars))
    axes.barh(
        rows,
        [spread.median - 1 for _, _, spread in bars],
        left=1.0,
        color=[COLOURS.get(peer, "#228833") for _, peer, _ in bars],
        xerr=(
            [spread.median - spread.low for _, _, spread in bars],
            [spread.high - spread.median for _, _, spread in bars],
        ),
        error_kw={"ecolor": "#333333", "capsize": 2},
    )
    axes.set_yticks(rows, [f"{name} · {peer}" for name, peer, _ in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("times better than the peer (1 = equal): median, lowest and highest round")
    for row, (_, _, spread) in zip(rows, bars, strict=True):
        axes.annotate(
            number(spread.median),
            (max(1.0, spread.high), row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            size=8,
        )
    axes.margins(x=0.12)
    axes.set_title(fill(head, 110), size=8, loc="left")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
