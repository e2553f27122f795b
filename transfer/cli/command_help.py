"""The classes of commands: their help, which is the same with every version of Typer."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

#: what the metavars of options stand for
_FORMS = {
    "SIZE": "SIZE: bytes, such as 1500000, 64MiB or 1.5G.",
    "TIME": "TIME: seconds, such as 90, or with a unit: 200ms, 15m, 12h or 7d.",
}
_EXIT_CODES = (
    "Exit codes: 0 success, 1 an error, 2 wrong usage or an address in use, 3 a time-out, 130 Ctrl-C."
)


class _WithForms:
    """Ends the help with the forms of the options' values, and the exit codes."""

    def format_epilog(self, context: Any, formatter: Any) -> None:
        words = {word for one in self.get_params(context) for word in (one.metavar or "").split("|")}  # type: ignore[attr-defined]
        for text in (*(text for word, text in _FORMS.items() if word in words), _EXIT_CODES):
            formatter.write_paragraph()
            formatter.write_text(text)


class HelpCommand(_WithForms, typer.core.TyperCommand):
    """A command. Its arguments are shown as their metavars say: some versions of Typer change them."""

    def collect_usage_pieces(self, context: Any) -> list[str]:
        return ["[OPTIONS]", *(one.metavar or "" for one in self.params if one.param_type_name == "argument")]

    def format_options(self, context: Any, formatter: Any) -> None:
        params = [(one, one.get_help_record(context)) for one in self.get_params(context)]
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [
                (one.metavar if kind == "argument" else row[0], row[1])
                for one, row in params
                if row is not None and one.param_type_name == kind
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class HelpGroup(_WithForms, typer.core.TyperGroup):
    """A command with subcommands."""


class App(typer.Typer):
    """Makes commands, with plain help: it needs no rich, and takes half the time."""

    def __init__(self, help: str, *, cls: type[HelpGroup] = HelpGroup, **more: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"]}
        super().__init__(help=help, cls=cls, rich_markup_mode=None, context_settings=settings, **more)

    def command(
        self, name: str | None = None, *, cls: type[typer.core.TyperCommand] | None = HelpCommand, **more: Any
    ) -> Any:
        return super().command(name, cls=cls, **more)
