from __future__ import annotations

from hypothesis import settings

# Time on a busy machine says nothing about the code.
settings.register_profile("spool", deadline=None)
settings.load_profile("spool")
