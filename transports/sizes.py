"""The two sizes from which on a payload takes another way. `docs/transports.md` lists what each decides."""

from __future__ import annotations

#: bytes of a payload from which on a copy costs more than what avoids it: a write of its own, a reference to
#: shared memory, a message of its own. A copy of so many bytes releases the GIL
LARGE = 64 * 1024
#: bytes of a payload up to which a copy costs less than registering its memory with a network card
VERY_LARGE = 256 * 1024
