"""A YAML document that remembers which line every field was written on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from monet.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Says where a date or a number is out of range, or a tag is on text that is none (``!!bool maybe``): PyYAML's own
    errors of these have no place."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = f"{node.value!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The content of one YAML text, and its tree of nodes for the places of errors in it."""

    name: str
    value: Any
    root: yaml.Node

    @classmethod
    def parse(cls, text: str, name: str) -> YamlDocument:
        """Read ``text``; ``name`` is what errors call it.

        Raises :class:`ConfigError` with the line for malformed or empty text and for a key that is
        given twice in one mapping, which YAML readers otherwise settle silently.
        """
        try:
            loader = _Loader(text)
            root = loader.get_single_node()
            if root is None:
                raise ConfigError(f"{name}: the file is empty")
            _reject_duplicate_keys(root, name)
            return cls(name, loader.construct_document(root), root)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = name if mark is None else f"{name}:{mark.line + 1}"
            raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{name}: not valid YAML: {error}") from error
        except RecursionError as error:
            raise ConfigError(f"{name}: nested too deeply") from error

    def line(self, location: Sequence[str | int]) -> int:
        """The line, from 1, of the field at ``location``, or of what is nearest around it.

        A key's line is the line of the key itself, so that an unknown field is found too.
        """
        node = self.root
        line: int = node.start_mark.line
        for part in location:
            if isinstance(node, yaml.MappingNode):
                pairs = {key.value: (key, value) for key, value in node.value}
                if str(part) not in pairs:
                    break
                key, node = pairs[str(part)]
                line = key.start_mark.line
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        return line + 1


def _reject_duplicate_keys(root: yaml.Node, name: str) -> None:
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if id(node) in seen:  # an anchor that is used again, perhaps inside itself
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            first_lines: dict[str, int] = {}
            for key, value in node.value:
                pending.append(value)
                if not isinstance(key, yaml.ScalarNode):
                    continue
                line = key.start_mark.line + 1
                if key.value in first_lines:
                    raise ConfigError(
                        f"{name}:{line}: {key.value}: given twice, first on line {first_lines[key.value]}"
                    )
                first_lines[key.value] = line
