"""The schemas in docs/schemas, as published and as tests want them.

Published, they let unknown keys and values pass, as their readers must (docs/json.md). `strict`
lets nothing pass that is not listed, so that a key without a description is found.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schemas"
COMMON = "common.json"
EVERY = object()  # stands for a value that has every field of a schema


def load() -> dict[str, dict]:
    """File name -> schema."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}


def resolve(schema: object, file: str, schemas: dict[str, dict]) -> object:
    """`schema` without `$ref`: what is named stands there, under what stands beside it. Properties
    are those of both."""
    if isinstance(schema, list):
        return [resolve(inner, file, schemas) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" not in schema:
        return {key: resolve(inner, file, schemas) for key, inner in schema.items()}
    where, _, pointer = schema["$ref"].partition("#")
    found = schemas[where or file]
    for step in pointer.strip("/").split("/"):
        found = found[step]
    named = resolve(found, where or file, schemas)
    beside = {key: resolve(inner, file, schemas) for key, inner in schema.items() if key != "$ref"}
    if "properties" in beside:
        beside["properties"] = {**named["properties"], **beside["properties"]}
        beside["required"] = named["required"] + beside["required"]
    return {**named, **beside}


def strict(schema: dict) -> dict:
    """A resolved schema that takes no key that it does not list, and no string that is not one of
    its examples."""
    out = dict(schema)
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(out.get(key), dict):
            out[key] = strict(out[key])
    if "oneOf" in out:
        out["oneOf"] = [strict(inner) for inner in out["oneOf"]]
    if "properties" in out:
        out["properties"] = {key: strict(inner) for key, inner in out["properties"].items()}
        out["additionalProperties"] = False
    if "examples" in out:
        out["enum"] = out["examples"]
    return out


def fields(
    schema: dict, value: object, fits: Callable[[dict, object], bool], at: str = ""
) -> Iterator[tuple[str, dict]]:
    """The fields of a resolved schema that `value` has, each with its own schema: "models[].model".
    Of several forms (`oneOf`) those that `fits` says `value` has; EVERY has all fields."""
    for form in schema.get("oneOf", []):
        if value is EVERY or fits(form, value):
            yield from fields(form, value, fits, f"{at}<{form['title']}>")
    for key, inner in schema.get("properties", {}).items():
        if value is EVERY or key in value:
            yield f"{at}.{key}", inner
            yield from fields(inner, value if value is EVERY else value[key], fits, f"{at}.{key}")
    many = {"items": "[]", "additionalProperties": ".*"}
    for keyword, mark in many.items():
        inner = schema.get(keyword)
        if not isinstance(inner, dict):
            continue
        listed = value.values() if isinstance(value, dict) else value
        for each in [EVERY] if value is EVERY else listed:
            yield f"{at}{mark}", inner
            yield from fields(inner, each, fits, f"{at}{mark}")
