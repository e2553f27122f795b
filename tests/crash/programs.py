"""All recorded programs by name."""

from __future__ import annotations

from tests.crash import audit_programs, broker_programs, direct_programs, log_programs, spool_programs

ALL = {
    **log_programs.PROGRAMS,
    **spool_programs.PROGRAMS,
    **broker_programs.PROGRAMS,
    **direct_programs.PROGRAMS,
    **audit_programs.PROGRAMS,
}
