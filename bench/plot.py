"""Draws the ratios and the targets of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from bench.judged import Judged
from bench.peers import OURS
from bench.report import number
from bench.run import LineUp
from bench.stats import Spread

COLOURS = {"pyzmq": "#4477aa", "raw": "#888888", "pynng": "#66ccee", "mooncake": "#ee6677", "gloo": "#ccbb44"}
_OTHER, _HIT, _MISSED = "#228833", "#228833", "#ee6677"


class _Bar(NamedTuple):
    """text: stands right of the axes."""

    name: str
    spread: Spread
    colour: str
    text: str


def advantage(line_up: LineUp, peer: str) -> Spread | None:
    """Returns how many times better `transfer` is, also where the smaller number is the better one."""
    ratio = line_up.ratio(peer)
    if ratio is None or line_up.metric.higher_is_better:
        return ratio
    if not ratio.low > 0:
        return None
    return Spread(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)


def draw(path: Path, line_ups: Sequence[LineUp], head: str) -> None:
    """Draws a bar for each peer: how many times better transfer is."""
    bars = [
        _Bar(
            f"{line_up.work.case} {line_up.work.label} · {peer}",
            spread,
            COLOURS.get(peer, _OTHER),
            number(spread.median),
        )
        for line_up in line_ups
        for peer in line_up.work.peers
        if not peer.startswith(OURS) and (spread := advantage(line_up, peer)) is not None
    ]
    if not bars:
        raise ValueError("nothing to draw: no line-up has ours and another peer")
    _draw_bars(path, bars, "times better than the peer (1 = equal): median, lowest and highest round", head)


def draw_targets(path: Path, targets: Sequence[Judged], head: str) -> None:
    """Draws a bar for each target, hit or missed: how many times better than the target the run was.

    Targets of 0 are left out, since nothing is a multiple of them.
    """
    bars = [
        _Bar(one.name, margin, _HIT if one.hit else _MISSED, f"{one.shown} {one.unit}; {one.wanted}")
        for one in targets
        if (margin := one.margin) is not None
    ]
    if not bars:
        raise ValueError("nothing to draw: no target was measured")
    label = "times better than the target (1 = reached, red: missed); right: measured; target"
    _draw_bars(path, bars, label, head)


def _draw_bars(path: Path, bars: Sequence[_Bar], label: str, head: str) -> None:
    """Draws on a logarithmic axis, as PNG or SVG by the suffix. Whiskers: the lowest and highest round."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "transfer"})
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(figsize=(9, 1.6 + 0.28 * len(bars)), layout="constrained")
    rows = range(len(bars))
    axes.barh(
        rows,
        [bar.spread.median - 1 for bar in bars],
        left=1.0,
        color=[bar.colour for bar in bars],
        xerr=(
            [bar.spread.median - bar.spread.low for bar in bars],
            [bar.spread.high - bar.spread.median for bar in bars],
        ),
        error_kw={"ecolor": "#333333", "capsize": 2},
    )
    axes.set_yticks(rows, [bar.name for bar in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel(label)
    for row, bar in zip(rows, bars, strict=True):
        axes.annotate(
            bar.text,
            (1.0, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=8,
        )
    axes.margins(x=0.05)
    figure.suptitle(fill(head, 130), size=8, x=0.01, ha="left")
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
