"""Chat templates: Jinja, in the environment that transformers gives them, rendered with the spans of what the assistant says.

The sandbox is immutable; blocks are trimmed; there are loop controls, `raise_exception`, `tojson` that escapes nothing, and
`{% generation %}` blocks, whose text is what a loss is on. `strftime_now` tells the day that was given, never that of the clock:
a template that calls it where none was given is refused. So is one that chooses at random.

This file is loaded where a template is used first, since it needs jinja2.

Threads: a `ChatTemplate` belongs to one call at a time, as it notes spans while it renders.
"""

import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from zephon_async.errors import BadRecord, RecipeError

Span: TypeAlias = tuple[int, int]
"""Characters start:stop of a text."""


class ChatTemplate:
    """A compiled template. `tagged`: whether it has generation blocks. `names`: the variables that it asks for."""

    def __init__(self, text: str, date: str | None) -> None:
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._generated = environment.generated
        if date is not None:
            environment.globals["strftime_now"] = datetime.datetime.fromisoformat(date).strftime
        try:
            self.names = meta.find_undeclared_variables(environment.parse(text))
            self._template = environment.from_string(text)
        except TemplateSyntaxError as error:
            raise RecipeError(f"tokenize_chat: the chat template is wrong in line {error.lineno}: {error}") from error
        self.tagged = environment.tagged
        if "strftime_now" in self.names and date is None:
            raise RecipeError("tokenize_chat: the chat template asks for today's date; give date='2025-01-31', part of the recipe")

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> tuple[str, list[Span]]:
        """The text of a conversation, and the spans of its generation blocks. `BadRecord` where the template cannot render it."""
        pieces: list[str] = []
        spans: list[Span] = []
        length, generated = 0, self._generated
        generated.clear()
        try:
            for piece in self._template.generate(variables, messages=messages):
                if generated:
                    if generated != [piece]:
                        raise TemplateError("a generation block does not stand in the text by itself, so its place is not known")
                    generated.clear()
                    spans.append((length, length + len(piece)))
                pieces.append(piece)
                length += len(piece)
        except Exception as error:  # what a template does with values that it was not written for may raise anything
            raise BadRecord(f"tokenize_chat: the chat template fails: {type(error).__name__}: {error}") from error
        if generated:
            raise BadRecord("tokenize_chat: the chat template leaves out what stands in a generation block")
        return "".join(pieces), spans


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self, **settings: Any) -> None:
        self.generated: list[str] = []  # the texts of generation blocks that have not been given out yet
        self.tagged = False
        super().__init__(**settings)
        del self.filters["random"], self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        self.globals |= {"raise_exception": _raise, "namespace": _Namespace, "dict": _Dict()}


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 has it)
    environment: _Environment

    def parse(self, parser: Parser) -> nodes.Node:
        self.environment.tagged = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_noted"), [], [], body).set_lineno(line)

    def _noted(self, caller: Callable[[], str]) -> str:
        text = caller()
        self.environment.generated.append(text)
        return text


class _Dict:
    """`dict` without the methods through which a template could change what it is given."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, names: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(names, value)


class _Namespace(Namespace):
    """Without names through which a template could reach Python."""

    def __init__(*given: Any, **named: Any) -> None:
        self, *rest = given
        values = dict(*rest, **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may hold no name that begins with an underscore, such as {name!r}")


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
