"""A connection's memory for copies on a GPU: what waits for it, what is said without it, what it keeps."""

from __future__ import annotations

from tests.cuda.test_mapped import HEAD, SLOW, TAIL

HEAD += """
import gc, weakref
from transfer.transports.shm import gpu_shares
gpu_shares.LIMIT = 8 << 20
"""


def test_free_blocks_of_other_sizes_make_room(run):
    """The sender waits until the peer has unmapped them, although it may stage."""
    program = """
def send(end):
    end.until_wanted()
    small, large = [{str(n): end.array(512, 512) for n in range(7)}, {"large": end.array(6, 512, 512)}]
    for tensors in (small, large, small, large):
        end.socket.send_tensors(tensors)
        assert end.socket.peers()[0].gpu.startswith("mapped"), end.socket.peers()[0].gpu
        end.hear()
        time.sleep(0.1)
    end.tell()

def receive(end):
    end.want()
    for _ in range(4):
        found, _ = end.socket.recv_tensors(device="cuda:0")
        del found
        end.tell()
    end.hear()
"""
    run(HEAD + program + TAIL)


def test_what_is_larger_than_all_of_it_goes_by_the_host_or_itself(run):
    program = """
def send(end):
    end.until_wanted()
    array = end.array(20 << 20, typestr="|u1")
    end.fill(array, 5)
    for copy, way in ((None, "staging"), (False, "mapped")):
        tracker = end.socket.send_tensor(array, copy=copy)
        gpu = end.socket.peers()[0].gpu
        assert gpu.startswith(way) and "hint" not in gpu, gpu
        end.hear()
    tracker.wait(PATIENCE)
    end.socket.gpu_staging = False
    try:
        end.socket.send_tensor(array)
        raise AssertionError("it was sent")
    except RegistrationError as error:
        assert "8 MiB" in str(error) and "20 MiB" in str(error), str(error)
    array.close()
    end.tell()

def receive(end):
    end.want()
    for _ in range(2):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {5}
        end.tell()
    end.hear()
"""
    run(HEAD + program + TAIL)


def test_a_sender_that_must_not_stage_waits_for_room(run):
    program = """
def send(end):
    end.until_wanted()
    end.socket.gpu_staging = False
    array = end.array(3 << 20, typestr="|u1")
    for byte in range(1, 9):
        end.fill(array, byte)
        end.socket.send_tensor(array)
    end.hear()

def receive(end):
    end.want()
    for byte in range(1, 9):
        time.sleep(0.1)
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
    end.tell()
"""
    run(HEAD + program + TAIL)


def test_a_copied_tensor_is_let_go_when_the_copy_is_done(run):
    """Also while the receiver keeps its copy."""
    program = """
def send(end):
    end.until_wanted()
    for send in (end.socket.send_tensor, lambda array: end.socket.send_tensors({"a": array})):
        array = end.array(1000, 1000)
        pointer, known = array.pointer, weakref.ref(array)
        send(array)
        del array
        end.hear()
        gc.collect()
        until(lambda: known() is None)
        end.tell()
        end.context.free(pointer)

def receive(end):
    end.want()
    for receive in (end.socket.recv_tensor, end.socket.recv_tensors):
        kept = receive(device="cuda:0")
        end.tell()
        end.hear()
"""
    run(HEAD + program + TAIL, **SLOW)


def test_small_tensors_wait_for_no_receiver(run):
    program = """
def send(end):
    end.socket.gpu_staging = False
    started = time.monotonic()
    small, empty = end.array(10), end.array(0)
    for one in (small, empty):
        end.socket.send_tensor(one)
    end.socket.send_tensors({"small": small, "empty": empty})
    assert time.monotonic() - started < 4, "it waited until the receiver asks"
    end.hear()

def receive(end):
    for _ in range(2):
        end.socket.recv_tensor()
    end.socket.recv_tensors()
    end.tell()
"""
    run(HEAD + program + TAIL)


def test_what_peers_say_of_a_dict(run):
    """Of a dict with tensors of two GPUs, one of which the receiver wants, and with one of the host."""
    program = """
def send(end):
    end.until_wanted()
    there, elsewhere = end.array(300, 300), Array(end.driver.context(1), (300, 300))
    for tensors in ({"a": there, "b": elsewhere}, {"b": elsewhere, "a": there}):
        end.socket.send_tensors(tensors)
        assert end.socket.peers()[0].gpu.startswith("staging"), end.socket.peers()[0].gpu
    end.socket.send_tensors({"a": there, "host": numpy.zeros((900, 900))})
    assert end.socket.peers()[0].gpu.startswith("mapped"), end.socket.peers()[0].gpu
    end.hear()
    end.tell()

def receive(end):
    end.want()
    said = []
    for _ in range(3):
        end.socket.recv_tensors(device="cuda:0")
        said.append(end.socket.peers()[0].gpu_received.split(":")[0])
    assert said == ["staging", "staging", "mapped"], said
    end.tell()
    end.hear()
"""
    run(HEAD + program + TAIL, NULL_CUDA_DEVICES="2")


def test_a_receiver_that_asks_for_another_gpu_first(run):
    program = """
def send(end):
    end.until_wanted()
    end.socket.gpu_staging = False
    array = Array(end.driver.context(1), (300, 300))
    end.tell()
    end.socket.send_tensor(array)
    end.hear()
    assert end.socket.peers()[0].gpu.startswith("mapped")
    end.tell()

def receive(end):
    end.want()
    end.hear()
    time.sleep(0.5)
    end.want("cuda:1")
    assert end.socket.recv_tensor(device="cuda:1").device == "cuda:1"
    end.tell()
    end.hear()
"""
    run(HEAD + program + TAIL, NULL_CUDA_DEVICES="2")
