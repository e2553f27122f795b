"""Which of our blocks a connection's peer sees, and the callbacks when it has released them."""

from __future__ import annotations

from typing import Any, NamedTuple

from transfer.transports.core.copies import copy_of
from transfer.transports.countdown import Countdown
from transfer.transports.errors import Broken
from transfer.transports.shm import control_channel
from transfer.transports.shm.blocks import Block, Blocks, Loan
from transfer.transports.shm.control_channel import ControlChannel
from transfer.transports.shm.mappings import MOST_BLOCKS

#: of a share's number in a reference
SHARE_BITS = 24


class Share(NamedTuple):
    """A payload that the peer sees in place. data: keeps the array alive."""

    blocks: Blocks
    loan: Loan
    parts: Countdown
    data: Any


class ExportedBlocks:
    """The shares of one connection. Used under its owner's lock, except for `end` and the callbacks of
    blocks."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        #: blocks whose descriptor the peer has, the least recently used first
        self._announced: dict[int, Block] = {}
        self._shares: dict[int, Share] = {}
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._shares)

    def numbers(self) -> list[int]:
        return list(self._shares)

    def add(self, blocks: Blocks, loan: Loan, parts: Countdown, data: Any) -> int | None:
        """The number of a new share, or None: the block cannot be announced to the peer now."""
        if not self._announce(loan.block):
            return None
        number = self._number
        while not number or number in self._shares:
            number = (number + 1) % (1 << SHARE_BITS)
        self._number = (number + 1) % (1 << SHARE_BITS)
        parts.left += 1
        self._announced[loan.block.number] = self._announced.pop(loan.block.number)
        self._shares[number] = Share(blocks, loan, parts, data)
        return number

    def end(self, number: int, error: BaseException | None) -> None:
        """The peer does not see it any more: its owner is informed. It may have ended before."""
        share = self._remove(number)
        if share is not None:
            share.parts.ended(error)

    def take_back(self, number: int) -> Any:
        """The peer never saw it: returns a copy, made before its owner is informed that he may change it.
        None if the share has ended before."""
        share = self._remove(number)
        if share is None:
            return None
        copy = copy_of(share.data)
        share.parts.ended(Broken("the message was never sent"))
        return copy

    def end_all(self, error: BaseException | None) -> None:
        for number in self.numbers():
            self.end(number, error)
        for block in list(self._announced.values()):
            block.watchers.pop(self, None)
        self._announced.clear()

    def cancel(self, number: int) -> None:
        """Removes the share without any callback."""
        self._remove(number)

    def _remove(self, number: int) -> Share | None:
        share = self._shares.pop(number, None)
        if share is not None:
            share.blocks.give_back(share.loan)
        return share

    def _announce(self, block: Block) -> bool:
        if block.number in self._announced:
            return True
        if len(self._announced) >= MOST_BLOCKS and not self._forget_idle():
            return False
        if not self._control.announce(
            control_channel.BLOCK, block.number, block.size, 0, descriptors=[block.fd]
        ):
            return False
        self._announced[block.number] = block
        block.watchers[self] = self._forget
        return True

    def _forget_idle(self) -> bool:
        """Makes room for another block."""
        busy = {share.loan.block.number for share in list(self._shares.values())}
        for number, block in list(self._announced.items()):
            if number not in busy:
                block.watchers.pop(self, None)
                self._forget(number)
                return True
        return False

    def _forget(self, number: int) -> None:
        """The block is given up. Called in any statement of any thread: see control_channel.py."""
        if self._announced.pop(number, None) is not None:
            self._control.send(control_channel.FORGET, number)
