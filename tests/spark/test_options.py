from __future__ import annotations

import pytest

from transfer.spark.options import WriteOptions, parse_options
from transports.errors import AddressError, NotSupported, OptionError

HERE = "tcp://127.0.0.1:5555"


def test_defaults():
    assert parse_options({"endpoint": HERE}) == WriteOptions(endpoint=(HERE,))


def test_all_of_them_in_any_case():
    options = parse_options(
        {
            "Endpoints": f"{HERE}, ipc:///tmp/x",
            "columns": "a, b",
            "run_id": "epoch 3",
            "DELIVERY": "Eager",
            "ack_timeout": "1.5",
            "connect_timeout": "2",
            "frame_rows": "100",
            "checksum": "True",
            "compression": "lz4",
        }
    )
    assert options == WriteOptions(
        (HERE, "ipc:///tmp/x"), ("a", "b"), "epoch 3", "eager", 1.5, 2.0, 100, True, "lz4"
    )


def test_what_save_is_given_is_the_endpoint():
    assert parse_options({"path": HERE}).endpoint == (HERE,)
    with pytest.raises(OptionError, match="twice"):
        parse_options({"path": HERE, "endpoint": "tcp://10.0.0.1:1"})


def test_columns_as_json():
    assert parse_options({"endpoint": HERE, "columns": '["a,b", "c"]'}).columns == ("a,b", "c")


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
        ({"endpoint": HERE, "xyzzy": "a"}, OptionError, "Known: ack_timeout"),
        ({"endpoint": HERE, "columns": "a,a"}, OptionError, "names 'a' twice"),
        ({"endpoint": HERE, "columns": "[1]"}, OptionError, "list of names"),
        ({"endpoint": HERE, "columns": "[a"}, OptionError, "no JSON list"),
        ({"endpoint": HERE, "delivery": "committed"}, NotSupported, "spool"),
        ({"endpoint": HERE, "delivery": "twice"}, OptionError, "delivery"),
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
        parse_options(options)
