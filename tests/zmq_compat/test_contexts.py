"""What a context shows of itself, what is left of it behind `term`, and the decorators that make one."""

import errno
import importlib

import pytest


@pytest.fixture
def decorators(zmq):
    return importlib.import_module(f"{zmq.__name__}.decorators")


def test_dir_has_the_options(zmq, ctx):
    shown = dir(ctx)
    assert {"IO_THREADS", "MAX_SOCKETS", "SOCKET_LIMIT", "socket", "term"} <= set(shown)
    assert {name for name in shown if name.isupper()} <= {*zmq.ContextOption.__members__}
    for name in shown:
        getattr(ctx, name, None)  # as mocks do
    with pytest.raises(AttributeError):
        ctx.THREAD_AFFINITY_CPU_ADD  # noqa: B018 - it can only be set


def test_classes_have_type_parameters(zmq, ctx):
    """Programs write them in annotations, which may be evaluated."""

    def connected(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        return zmq.Socket[bytes](context, zmq.PUSH)

    with connected(ctx) as push:
        assert type(push) is zmq.Socket and push.type == zmq.PUSH
    shadow: zmq.Context[zmq.Socket[bytes]] = zmq.Context[zmq.Socket[bytes]](ctx)
    assert type(shadow) is zmq.Context


@pytest.mark.parametrize("make", ["shadow", "address", "argument"])
def test_a_shadow_of_a_context_that_is_terminated(zmq, make):
    context = zmq.Context()
    ways = {
        "shadow": zmq.Context.shadow,
        "address": lambda of: zmq.Context.shadow(of.underlying),
        "argument": zmq.Context,
    }
    shadow = ways[make](context)
    shadow.socket(zmq.PUSH).close()
    context.term()
    for one, wanted in ((context, errno.ENOTSUP), (shadow, errno.EFAULT)):
        with pytest.raises(zmq.ZMQError) as caught:
            one.socket(zmq.PUSH)
        assert caught.value.errno == wanted


def test_a_context_that_its_shadow_terminated(zmq, ours):
    if not ours:
        pytest.skip("pyzmq warns at the end of a context that it cannot close any more")
    context = zmq.Context()
    shadow = zmq.Context.shadow(context)
    shadow.term()
    for one, wanted in ((shadow, errno.ENOTSUP), (context, errno.EFAULT)):
        with pytest.raises(zmq.ZMQError) as caught:
            one.socket(zmq.PUSH)
        assert caught.value.errno == wanted


# -- decorators --------------------------------------------------------------------------------------


def test_by_the_keyword_name(zmq, decorators):
    @decorators.context(name="ctx")
    @decorators.socket(zmq.SUB, name="sub", context_name="ctx")
    def work(ctx, sub):
        assert isinstance(ctx, zmq.Context) and sub.context is ctx
        assert sub.type == zmq.SUB
        return ctx, sub

    made, socket = work()
    assert made.closed and socket.closed


def test_arguments_of_what_is_made_by_keyword(zmq, decorators):
    @decorators.context(name="ctx", io_threads=5)
    @decorators.socket(name="push", socket_type=zmq.PUSH, copy_threshold=7, context_name="ctx")
    def work(ctx, push):
        assert ctx.IO_THREADS == 5
        assert (push.type, push.copy_threshold) == (zmq.PUSH, 7)
        return push

    assert work().closed


def test_behind_the_other_arguments(zmq, decorators):
    @decorators.context()
    @decorators.socket(zmq.PUB)
    @decorators.socket("sub", zmq.SUB)
    def work(first, ctx, pub, sub=None, more=None):
        return first, pub.context is ctx, pub.type == zmq.PUB, sub.type == zmq.SUB, more

    assert work(1, more=2) == (1, True, True, True, 2)


@pytest.mark.parametrize("by", [("ctx",), ()])
def test_two_values_for_one_name(zmq, decorators, by):
    @decorators.context(*by, **({} if by else {"name": "ctx"}))
    def work(ctx):
        raise AssertionError

    with pytest.raises(TypeError, match="'ctx'"):
        work(ctx=1)


@pytest.mark.parametrize("given", [(), ("name",)])
def test_a_socket_without_a_type(zmq, decorators, given):
    @decorators.context()
    @decorators.socket(*given)
    def work(ctx, *rest):
        raise AssertionError

    with pytest.raises(TypeError):
        work()
