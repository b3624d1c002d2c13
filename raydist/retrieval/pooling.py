"""Pooling and text prefixes of a sentence encoder, from its folder or the config (E5 and its like were trained with "query: "
and "passage: ")."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

from raydist.errors import InputError
from raydist.files.given import parse_json
from raydist.models.folders import TOWERS, tower_folder
from raydist.models.packed import Pooling

KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers; others would change the vectors


def read_pooling(folder: Path) -> Pooling:
    """The pooling in modules.json and the pooling module's config.json; ``cls`` for a folder without them."""
    folder = Path(folder)
    modules = _read(folder / "modules.json", list) or []
    if not all(isinstance(module, dict) and isinstance(module.get("path", ""), str) for module in modules):
        raise InputError(
            f"{folder}: modules.json is no list of modules {{type, path}}; mend it or give the pooling in the config"
        )
    kinds = {str(module.get("type")).rpartition(".")[2]: module for module in modules}
    unknown = [kind for kind in kinds if kind not in KNOWN_MODULES]
    if unknown:
        raise InputError(
            f"{folder}: modules.json has {', '.join(unknown)}; an encoder may have {', '.join(KNOWN_MODULES)} only"
        )
    path = folder / kinds.get("Pooling", {}).get("path", "1_Pooling") / "config.json"
    settings = _read(path)
    if settings is None:
        return "cls"
    modes = _modes(settings)
    if len(modes) != 1 or modes[0] not in get_args(Pooling):
        raise InputError(f"{path} asks for {' and '.join(modes)} pooling; there are {' and '.join(get_args(Pooling))}")
    return cast(Pooling, modes[0])


def resolve_pooling(setting: str, folder: Path) -> Pooling:
    """The pooling to use: the setting itself, or with ``auto`` the folder's."""
    if setting == "auto":
        return read_pooling(folder)
    if setting not in get_args(Pooling):
        raise InputError(f"unknown pooling {setting!r}; take one of auto, {', '.join(get_args(Pooling))}")
    return cast(Pooling, setting)


PROMPTS = {"question": ("query", "question"), "answer": ("document", "passage", "answer")}  # names that other tools use


def resolve_prefixes(question: str | None, answer: str | None, folder: Path) -> dict[str, str]:
    """Prefixes of questions and answers: as given, for None from the folder's `prompts`, else empty."""
    given = {"question": question, "answer": answer}
    return {of: _prompt(tower_folder(folder, tower), of) if given[of] is None else given[of] or ""
            for of, tower in zip(PROMPTS, TOWERS)}  # fmt: skip


def _prompt(folder: Path, of: str) -> str:
    prompts = (_read(folder / "config_sentence_transformers.json") or {}).get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise InputError(f"{folder}: the prompts in config_sentence_transformers.json are no texts by name; mend them")
    return next((prompts[name] for name in PROMPTS[of] if prompts.get(name)), "")


def longest_text(folder: Path) -> int | None:
    """The tokens that a folder's authors chose for a text; sentence-transformers keeps them in a file of its own."""
    stated = (_read(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    if stated is not None and (not isinstance(stated, int) or stated < 1):
        raise InputError(f"{folder}: max_seq_length in sentence_bert_config.json is {stated!r}; wanted an integer above 0")
    return stated


def _read(path: Path, kind: type = dict) -> Any:
    if not path.is_file():
        return None
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); mend it or give the pooling in the config") from None
    if not isinstance(found, kind):
        wanted = "an object" if kind is dict else "a list"
        raise InputError(f"{path} is not {wanted} of JSON; mend it or give the pooling in the config")
    return found


def _modes(settings: dict[str, Any]) -> list[str]:
    """Newer files name the mode or modes, older ones have one switch for each."""
    if "pooling_mode" in settings:
        named = settings["pooling_mode"]
        return [named] if isinstance(named, str) else list(named)
    switched = [key for key, is_on in settings.items() if key.startswith("pooling_mode_") and is_on is True]
    return [key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for key in switched] or ["mean"]
