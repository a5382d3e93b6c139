"""Settings as Hydra takes them: `a.b=c` changes a key, `+a.b=c` adds one, `++a.b=c` does either."""

import copy
import re


class OverrideError(Exception):
    """Hydra's words for a key that is not there, or is there already."""


def resolved(defaults, words):
    """`defaults` after all `words`, with every `${a.b}` replaced. Raises OverrideError."""
    config = copy.deepcopy(defaults)
    for word in words:
        apply(config, word)
    return interpolated(config, config)


def apply(config, word):
    name, separator, text = word.partition("=")
    key = name.lstrip("+")
    if not separator:
        raise OverrideError(f"Error parsing override '{word}'\nmissing EQUAL at '<EOF>'")
    *parents, last = key.split(".")
    section = config
    for parent in parents:
        if name.startswith("+"):
            section = section.setdefault(parent, {})
        elif not isinstance(section.get(parent), dict):
            raise unknown(key, parent, text)
        else:
            section = section[parent]
    if last in section and name.startswith("+") and not name.startswith("++"):
        raise OverrideError(f"Could not append to config. An item is already at '{key}'.\nEither remove + prefix.")
    if last not in section and not name.startswith("+"):
        raise unknown(key, last, text)
    section[last] = parsed(text)


def unknown(key, part, text):
    return OverrideError(
        f"Could not override '{key}'.\nTo append to your config use +{key}={text}\n"
        f"Key '{part}' is not in struct\n    full_key: {key}\n    object_type=dict"
    )


def parsed(text):
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [parsed(part) for part in text[1:-1].split(",") if part.strip()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    words = {"null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def interpolated(value, config):
    if isinstance(value, dict):
        return {key: interpolated(item, config) for key, item in value.items()}
    if isinstance(value, str):
        return re.sub(r"\$\{([\w.]+)\}", lambda found: str(looked_up(config, found[1])), value)
    return value


def looked_up(config, key):
    for part in key.split("."):
        config = config[part]
    return config
