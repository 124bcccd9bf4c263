"""What every command has: the common options, the settings they lead to, and a printer."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from frazil.cli.printing import Printer
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.settings import Settings


class Output(StrEnum):
    text = "text"
    json = "json"


_OutputOption = Annotated[Output, typer.Option("--output", "-o", help="output format")]
_ConfigOption = Annotated[
    Path | None, typer.Option(help="settings file [default: frazil.yaml in this folder or a parent]")
]
_SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="set one setting; overrides all other sources")
]
_VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="log more and show stack traces")]

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "output": (_OutputOption, Output.text),
    "config": (_ConfigOption, None),
    "set_": (_SetOption, None),
    "verbose": (_VerboseOption, False),
}


@dataclass(frozen=True)
class Run:
    """One run of a command: what its common options said."""

    output: str = Output.text
    config: Path | None = None
    set_: tuple[str, ...] = ()
    verbose: bool = False

    @property
    def printer(self) -> Printer:
        return Printer(json_output=self.output == Output.json)

    def settings(self, *sections: str) -> Settings:
        """Loads the settings, and says aloud what is worth knowing about the sections that this command uses."""
        from frazil.observe.logs import configure_logs
        from frazil.settings import environment, load_settings
        from frazil.settings.permissions import make_private
        from frazil.settings.sources import parse_set

        settings = load_settings(flags=parse_set(list(self.set_)), config=self.config)
        if settings.model.home == environment.default_home():  # a folder of the user's choice may have other contents
            make_private(settings.model.home)
        logging = settings.model.logging
        configure_logs("debug" if self.verbose else logging.level, logging.format)
        for notice in settings.notices:
            if notice.section in sections:
                print(f"note: {notice.text}", file=sys.stderr)
        return settings


#: The sections that a command uses which opens a catalog.
CATALOG_SECTIONS = ("catalog", "catalogs", "s3", "home")

CatalogOption = Annotated[
    str | None, typer.Option("--catalog", help="name of the catalog [default: the one in the settings]")
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="namespace.table")]


def new_app(about: str, example: str | None = None) -> typer.Typer:
    """A command, or with an example of its own a group of them."""
    return typer.Typer(
        help=about,
        epilog=f"Example: {example}" if example else None,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def command(
    app: typer.Typer, name: str | None = None, *, example: str, **kwargs: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function whose first parameter is a `Run`; the common options are added to its own."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        app.command(
            name, epilog=f"Example: {example}", context_settings={"help_option_names": ["-h", "--help"]}, **kwargs
        )(_with_common_options(function))
        return function

    return register


def default_command(app: typer.Typer, *, example: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers what a group of commands does when it is called without one of them. The group's help describes it."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        run = _with_common_options(function)

        def unless_another(ctx: typer.Context, **values: Any) -> Any:
            if ctx.invoked_subcommand is None:
                return run(**values)
            if any(values[p.name] != p.default for p in inspect.signature(run).parameters.values()):
                name = ctx.invoked_subcommand
                raise UsageError(f"an option before '{name}' is not passed to it", hint=f"… {name} --option")
            return None

        own = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [own, *inspect.signature(run).parameters.values()]
        unless_another.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        unless_another.__annotations__ = {p.name: p.annotation for p in parameters}
        app.callback(
            invoke_without_command=True, no_args_is_help=False, help=inspect.getdoc(function),
            epilog=f"Example: {example}",
        )(unless_another)  # fmt: skip
        return function

    return register


def _with_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with the options of every command in place of its `Run`."""
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    common = {k: v for k, v in _OPTIONS.items() if k not in hints}

    @functools.wraps(function)
    def wrapper(**values: Any) -> Any:
        taken = {name: values.pop(name) for name in common}
        taken["set_"] = tuple(taken.get("set_") or ())
        return function(Run(**taken), **values)

    parameters = [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters += [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, annotation=a, default=d) for n, (a, d) in common.items()
    ]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__  # Typer would look through it
    return wrapper
