"""Rules from their names and parameters, as command lines and settings have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from cactus_theory.rules._base import Rule
from cactus_theory.rules.parameters import Parameter
from cactus_theory.rules.registry import Entry, entry_named


def rule_from(rule: str | Rule, /, **parameters: Any) -> Rule:
    """A rule by its name and its parameters, as command lines and settings have them.

    Parameters
    ----------
    rule : str or Rule
        A name in `cactus_theory.rules.registry.RULES`, alone or with parameters:
        ``"exact:delta=0.3,divergence=chi-square"``. A rule is returned as it is.
    **parameters
        More parameters; as text, or as the rule's class takes them. A divergence as text is a key
        of `cactus_theory.rules.parameters.DIVERGENCES` or ``alpha:ORDER``. "one-level" hands what
        it does not know to its own ``rule``.

    Returns
    -------
    Rule

    Raises
    ------
    TypeError, ValueError
        If there is no such rule, a parameter is not the rule's, is missing or given twice, or has
        a wrong value.

    Examples
    --------
    >>> rule_from("cactus:delta=0.1")
    Cactus(delta=0.1)
    >>> rule_from("one-level", rule="exact", delta="0.1", divergence="alpha:2")
    OneLevelRecovery(rule=CactusExact(delta=0.1, divergence=Alpha(alpha=2.0)))
    >>> rule_from("mixture", delta=0.1)
    Traceback (most recent call last):
    ...
    ValueError: rule mixture takes weight, got delta=0.1
    """
    if isinstance(rule, Rule):
        if parameters:
            raise ValueError(f"rule {rule} has its parameters, got more: {_listed(parameters)}")
        return rule
    name, own = _parsed(rule)
    for key in own.keys() & parameters.keys():
        raise ValueError(f"{key} of rule {name} is given twice: {own[key]!r}, {parameters[key]!r}")
    given = own | parameters
    entry, made, inner = _read(name, given)
    missing = [p.name for p in entry.parameters if p.is_required and p.name not in made]
    if missing:
        raise ValueError(f"rule {name} needs {', '.join(missing)}, got {_listed(given)}")
    defaults = {p.name: p.default for p in entry.parameters if not p.is_required}
    wrapped = {key: rule_from(text, **handed) for key, (text, handed) in inner.items()}
    return entry.kind(**(defaults | made | wrapped))


def entry_from(text: str) -> Entry:
    """The entry of a rule as curves and pictures take it: by name, or with parameters.

    Where the parameters leave delta open, the rule follows it: every other parameter is as given.
    Otherwise the rule is fixed, and its curve is flat. A name alone is its entry in `RULES`.

    Parameters
    ----------
    text : str
        As for `rule_from`.

    Returns
    -------
    Entry
        With the text as its title.

    Raises
    ------
    TypeError, ValueError
        As for `rule_from`, for parameters that are given; and if some are, but not all, and no
        delta gives the others.

    Examples
    --------
    >>> entry_from("exact:divergence=chi-square").at(0.5)
    CactusExact(delta=0.5, divergence=ChiSquare())
    >>> entry_from("exact:delta=0.1").at(0.5)
    CactusExact(delta=0.1, divergence=KL())
    >>> entry_from("top-k").at(0.5), entry_from("top-k:k=3").at(0.5)
    (TopKAcceptance(k=10), TopKAcceptance(k=3))
    """
    name, given = _parsed(text)
    entry = entry_named(name)
    if ":" not in text:
        return entry
    family = _family(entry, name, given)
    family(1.0)  # or a wrong value would be told only when a curve is drawn
    return replace(entry, title=text, at_budget=family)


def entries_from(texts: Iterable[str]) -> dict[str, Entry]:
    """`entry_from` by text; the dashes of a rule that is there more than once grow longer.

    Examples
    --------
    >>> [entry.dash for entry in entries_from(["safe", "safe:delta=1", "cactus"]).values()]
    [(6, 2), (12, 4), ()]
    """
    found: dict[str, Entry] = {}
    for text in dict.fromkeys(texts):
        entry = entry_from(text)
        before = sum(other.kind is entry.kind for other in found.values())
        longer = tuple((before + 1) * length for length in entry.dash or (2, 2))
        found[text] = replace(entry, dash=longer) if before else entry
    return found


def _family(entry: Entry, name: str, given: dict[str, Any]) -> Callable[[float], Rule]:
    """From delta to the rule with the given parameters, the others by delta."""
    if entry.at_budget is None or not given:
        fixed = rule_from(name, **given)
        return lambda delta: fixed
    _, made, inner = _read(name, given)
    at, families = entry.at_budget, {}
    for key, (text, handed) in inner.items():
        own, more = _parsed(text)
        families[key] = _budgeted(own, more | handed)
    return lambda delta: replace(
        cast(Any, at(delta)), **made, **{key: family(delta) for key, family in families.items()}
    )


def _budgeted(name: str, given: dict[str, Any]) -> Callable[[float], Rule]:
    entry = entry_named(name)
    return _family(entry, name, given) if given else entry.at


def split_rules(text: str) -> list[str]:
    """Rules with commas between them; a part KEY=VALUE belongs to the rule before it.

    Examples
    --------
    >>> split_rules("safe, exact:delta=0.5,divergence=alpha:2,top-k:k=3")
    ['safe', 'exact:delta=0.5,divergence=alpha:2', 'top-k:k=3']
    """
    rules: list[str] = []
    for part in map(str.strip, text.split(",")):
        key, equals, _ = part.partition("=")
        if rules and equals and ":" not in key:
            rules[-1] += f",{part}"
        else:
            rules.append(part)
    return rules


def parameters_of(name: str) -> dict[str, Parameter]:
    """What `rule_from` takes with a rule's name; for a rule that wraps, what the default takes.

    Examples
    --------
    >>> list(parameters_of("exact")), list(parameters_of("one-level"))
    (['delta', 'divergence'], ['delta'])
    """
    found: dict[str, Parameter] = {}
    for parameter in entry_named(name).parameters:
        if parameter.domain == "rule":
            found |= parameters_of(parameter.default)
        else:
            found[parameter.name] = parameter
    return found


def takes(rule: str, parameter: str) -> bool:
    """Whether `rule_from` could be given a parameter besides those that the text has.

    Examples
    --------
    >>> takes("exact", "delta"), takes("exact:delta=1", "delta"), takes("one-level", "delta")
    (True, False, True)
    """
    name, own = _parsed(rule)
    known = {p.name: p for p in entry_named(name).parameters}
    if parameter in own:
        return False
    inner = [own.get(p.name, p.default) for p in known.values() if p.domain == "rule"]
    return parameter in known or any(takes(text, parameter) for text in inner)


def _read(
    name: str, given: Mapping[str, Any]
) -> tuple[Entry, dict[str, Any], dict[str, tuple[Any, dict[str, Any]]]]:
    """The entry, the values of its own parameters, and of a wrapped rule its name and values."""
    entry = entry_named(name)
    known = {p.name: p for p in entry.parameters}
    wraps = [p for p in entry.parameters if p.domain == "rule"]
    handed = {key: value for key, value in given.items() if key not in known}
    if handed and not wraps:
        takes = ", ".join(known) or "no parameter"
        raise ValueError(f"rule {name} takes {takes}, got {_listed(handed)}")
    own = {key: known[key].value(value) for key, value in given.items() if key in known}
    inner = {p.name: (own.pop(p.name, p.default), handed) for p in wraps}
    return entry, own, inner


def _parsed(text: Any) -> tuple[Any, dict[str, Any]]:
    """Name and parameters, of a text such as "exact:delta=0.3"."""
    if not isinstance(text, str):
        return text, {}
    name, _, rest = text.partition(":")
    own: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals or not key or key in own:
            raise ValueError(
                f"rule must be like NAME:KEY=VALUE,KEY=VALUE with each key once, got {text!r}"
            )
        own[key] = value
    return name, own


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in parameters.items()) or "none"
