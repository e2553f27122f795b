"""Followed by name over TLS: a pod's certificate names the service, of which its number says nothing."""

from __future__ import annotations

import pytest

from tests.discovery.waits import PATIENCE, Pods, until
from tests.sockets.conftest import KeepingContext
from transfer import PULL, PUSH
from transfer.certificates import Authority
from transfer.transports.security.settings import Security

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("name", ["pods.test", "others.test"])
def test_a_certificate_has_to_name_the_service(tmp_path, names, name):
    authority = Authority(tmp_path)
    issued = authority.issue(hosts=("pods.test",))
    security = Security(certificate=issued.certificate, key=issued.key, authority=authority.path)
    with KeepingContext(security=security) as context:
        try:
            pods = Pods(context, PULL)
            pods.start(2)
            names.put(name, ["127.0.0.2"])
            push = context.socket(PUSH, sndtimeo=10_000)
            push.connect(f"dns://{name}:{pods.port}")
            if name == "pods.test":
                push.wait_for_peers(1, PATIENCE)
                push.send(b"x")
                assert pods[2].recv() == b"x"
            else:
                until(lambda: push._links.state.endpoints[0].error is not None)
                assert "certificate" in str(push._links.state.endpoints[0].error) and not push.peers()
        finally:
            context.destroy(0)
