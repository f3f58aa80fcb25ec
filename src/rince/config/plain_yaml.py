"""YAML as recipes, taxonomies and class lists use it: plain values, of a size that a person could have written.

PyYAML takes the last of two equal keys without a word, ends in a RecursionError where brackets nest deeply, and follows
aliases to structures that take minutes to look through. Here each of these is one clear error.
"""

from __future__ import annotations

from typing import Any

import yaml

DEEPEST = 64  # far above any real file
LONGEST = 4000  # characters of an integer: Python refuses to write those of thousands of digits
LARGEST = 10**6  # values, with aliases written out


class NotPlainYamlError(ValueError):
    """Says what is wrong with a text, and in which line."""


def load_yaml(text: str) -> Any:
    """The values of a text.

    Raises:
        NotPlainYamlError: if it is not YAML, or more than plain values.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise NotPlainYamlError(f"{getattr(error, 'problem', None) or ' '.join(str(error).split())}{where}") from None
    except (ValueError, OverflowError) as error:  # a date of month 13, a number of thousands of digits
        raise NotPlainYamlError(str(error).partition(";")[0]) from None


class _Loader(yaml.SafeLoader):
    """Counts while it composes, before anything is built."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node of the text, and how many values stand below it."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"it nests deeper than {DEEPEST} levels", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST and node.tag.endswith(":int"):
            raise _refused(f"an integer of more than {LONGEST} characters", event)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _refused(f"the alias *{event.anchor} holds itself", event)
            return node
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated_keys(node)
            below = [each for pair in node.value for each in pair]
        else:
            below = node.value if isinstance(node, yaml.SequenceNode) else []
        self._sizes[id(node)] = 1 + sum(self._sizes[id(each)] for each in below)
        if self._sizes[id(node)] > LARGEST:
            raise _refused(f"it holds more than {LARGEST:,} values, with all aliases written out", event)
        return node


def _refuse_repeated_keys(node: yaml.MappingNode) -> None:
    keys: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in keys:
            raise _refused(f"{key.value!r} stands there twice; keep one", key)
        keys.add((key.tag, key.value))


def _refused(problem: str, at: Any) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def yaml_text(values: dict[str, Any]) -> str:
    """Plain values as a file for people: keys in their order, letters of any alphabet as they are."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
