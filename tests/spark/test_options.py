from __future__ import annotations

import pytest

from transfer.spark.options import WriteOptions, parse_options
from transfer.transports.errors import AddressError, OptionError

HERE = "tcp://127.0.0.1:5555"
RUN = "run://127.0.0.1:5570/one"


def parse_eager(options):
    return parse_options({"delivery": "eager"} | options)


def test_defaults():
    assert parse_options({"endpoint": RUN}) == WriteOptions(endpoint=(RUN,), run="one", delivery="committed")
    assert parse_eager({"endpoint": HERE}) == WriteOptions(endpoint=(HERE,), delivery="eager")


def test_all_of_them_in_any_case():
    options = parse_options(
        {
            "Endpoints": f"{HERE}, ipc:///tmp/x",
            "columns": "a, b",
            "run_id": "epoch 3",
            "DELIVERY": "Eager",
            "ack_timeout": "1.5",
            "connect_timeout": "2",
            "abort_timeout": "3",
            "frame_rows": "100",
            "checksum": "True",
            "compression": "lz4",
            "Ragged": "b",
            "NULLS": "Mask",
            "If_Complete": "Refuse",
        }
    )
    assert options == WriteOptions(
        endpoint=(HERE, "ipc:///tmp/x"),
        columns=("a", "b"),
        run="epoch 3",
        delivery="eager",
        ack_timeout=1.5,
        connect_timeout=2.0,
        abort_timeout=3.0,
        frame_rows=100,
        checksum=True,
        compression="lz4",
        ragged=("b",),
        nulls="mask",
    )


def test_what_save_is_given_is_the_endpoint():
    assert parse_options({"path": RUN}).endpoint == (RUN,)
    with pytest.raises(OptionError, match="twice"):
        parse_options({"path": RUN, "endpoint": "run://10.0.0.1:1/one"})


@pytest.mark.parametrize(
    ("endpoint", "run", "name"),
    [
        (RUN, "", "one"),
        (RUN, "one", "one"),
        ("run://127.0.0.1", "two", "two"),
        ("run://127.0.0.1:5570/", "", ""),
        ("run://127.0.0.1/%C3%A4%20%2F", "", "ä /"),
    ],
)
def test_the_name_of_a_run_is_the_endpoints_or_the_option(endpoint, run, name):
    for delivery in ("committed", "partition"):
        assert parse_options({"endpoint": endpoint, "run": run, "delivery": delivery}).run == name


def test_columns_as_json():
    assert parse_options({"endpoint": RUN, "columns": '["a,b", "c"]'}).columns == ("a,b", "c")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, OptionError, "needs the option 'endpoint'"),
        ({"endpoint": " , "}, OptionError, "needs the option 'endpoint'"),
        ({"endpoint": "127.0.0.1:5555"}, AddressError, "cannot be reached"),
        ({"endpoint": "inproc://x"}, AddressError, "cannot be reached"),
        ({"endpoint": "tcp://127.0.0.1:0"}, AddressError, "one to bind"),
        ({"endpoint": "tcp://*:5555"}, AddressError, "one to bind"),
        ({"endpoint": f"{HERE},{HERE}"}, OptionError, "same receiver twice"),
        ({"endpoint": HERE, "colums": "a"}, OptionError, "Did you mean 'columns'"),
        ({"endpoint": HERE, "xyzzy": "a"}, OptionError, "Known: abort_timeout, ack_timeout"),
        ({"endpoint": HERE, "columns": "a,a"}, OptionError, "names 'a' twice"),
        ({"endpoint": HERE, "columns": "[1]"}, OptionError, "list of names"),
        ({"endpoint": HERE, "columns": "[a"}, OptionError, "no JSON list"),
        ({"endpoint": HERE, "delivery": "committed"}, OptionError, "needs a spool"),
        ({"endpoint": HERE, "delivery": "partition"}, OptionError, "needs a spool"),
        ({"endpoint": RUN}, OptionError, "without a spool"),
        ({"endpoint": f"{RUN},{RUN}2", "delivery": "committed"}, OptionError, "one endpoint, not 2"),
        ({"endpoint": RUN, "run": "two", "delivery": "committed"}, OptionError, "names run 'one'"),
        ({"endpoint": "run://", "delivery": "committed"}, AddressError, "no run's address"),
        ({"endpoint": "run://here:0/x", "delivery": "committed"}, AddressError, "no port"),
        ({"endpoint": "run://here/x/y", "delivery": "committed"}, AddressError, "no run's address"),
        ({"endpoint": "run://here/" + "x" * 256, "delivery": "committed"}, AddressError, "no run's address"),
        ({"endpoint": HERE, "delivery": "twice"}, OptionError, "delivery"),
        ({"endpoint": HERE, "nulls": "keep"}, OptionError, "nulls is one of"),
        ({"endpoint": HERE, "ragged": "a,a"}, OptionError, "names 'a' twice"),
        ({"endpoint": HERE, "ack_timeout": "soon"}, OptionError, "'ack_timeout' is a number"),
        ({"endpoint": HERE, "ack_timeout": "0"}, OptionError, "above 0"),
        ({"endpoint": HERE, "connect_timeout": "inf"}, OptionError, "above 0"),
        ({"endpoint": HERE, "frame_rows": "-1"}, OptionError, "'frame_rows' is a whole number"),
        ({"endpoint": HERE, "checksum": "maybe"}, OptionError, "'checksum' is true or false"),
        ({"endpoint": HERE, "compression": "zip"}, OptionError, "'lz4' or 'none'"),
        ({"endpoint": HERE, "run": "x" * 256}, OptionError, "255"),
    ],
)
def test_what_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        parse_eager(options)


def test_a_trainer_is_not_what_the_default_delivers_to():
    with pytest.raises(OptionError, match="delivery=eager"):
        parse_options({"endpoint": HERE})
