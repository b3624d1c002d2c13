"""Published numbers beside a run's own, and where the settings differ (docs/methods.md 3.10, 4.10, 6.8).

Only numbers that the papers print, each under the setting it was printed for. A number is found by the test set's name, and by
the objectives of the run: ``Row.objectives`` are the settings that a run must have for the row to speak of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from raydist.report.markup import Html, el, is_number, join, number, table
from raydist.report.parts import measure_name, model_name
from raydist.report.runs import Run

LANGUAGES = ("en", "es", "de", "ar", "hi", "vi")  # of the cross-lingual paper, in the order of its tables
OTHER_LANGUAGES = ("el", "ro", "ru", "th", "tr", "zh", "it", "fr", "pt", "ja", "ko")
AVERAGE = "average"  # over the six languages
OUT_OF_DOMAIN = ("hotpotqa", "newsqa", "naturalquestions")
WARMUP = "Warm-up"  # stands for the three keys of optim that say how long it is: see warmup


class Key(NamedTuple):
    """What a number is of."""

    test_set: str
    measure: str = "f1"
    language: str = ""


@dataclass(frozen=True)
class Row:
    """One method's numbers. ``objectives`` of None: nothing that raydist trains."""

    method: str
    scores: Mapping[Key, float]
    objectives: Mapping[str, Mapping[str, Any]] | None = None
    spread: Mapping[Key, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # where they are not those of the table; None: not stated


@dataclass(frozen=True)
class Setting:
    """What a table was made with, in the terms of a config."""

    title: str
    model: str
    trained_on: str  # a data set, or "" for the training part of each test set's own
    train_questions: Mapping[str, int]
    settings: Mapping[str, Any]  # dotted keys of a config and WARMUP; those of an objective count where it is on
    questions: Mapping[Key, int]  # of the test sets; Key(test_set) or Key(test_set, language=...)
    rules: Mapping[str, str]
    runs: str  # what a number is over
    rows: tuple[Row, ...]
    languages: str = "one"  # of the training data: "one" or "several"


# --- the tables ------------------------------------------------------------------------------------------------------


def _f1(test_sets: tuple[str, ...], text: str) -> dict[Key, float]:
    """``88.5 51.0`` for two test sets; a dash for none. AddSent and AddOneSent have a measure of their own."""
    measures = {"addsent": "addsent_f1", "addonesent": "addsent_f1"}
    pairs = zip(test_sets, text.split(), strict=True)
    return {Key(name, measures.get(name, "f1")): float(value) for name, value in pairs if value != "-"}


def _f1_em(test_set: str, text: str, languages: tuple[str, ...] = LANGUAGES) -> dict[Key, float]:
    """``77.70/65.30 -`` for two languages; the average of all six is computed, since not all that are printed follow."""
    found: dict[Key, float] = {}
    for language, pair in zip(languages, text.split(), strict=True):
        if pair != "-":
            found |= {Key(test_set, name, language): float(v) for name, v in zip(("f1", "em"), pair.split("/"), strict=True)}
    if languages == LANGUAGES and len(found) == 2 * len(LANGUAGES):
        for name in ("f1", "em"):
            found[Key(test_set, name, AVERAGE)] = float(np.mean([found[Key(test_set, name, code)] for code in LANGUAGES]))
    return found


def _averages(mlqa: str, xquad: str) -> dict[Key, float]:
    return _f1_em("mlqa", mlqa, (AVERAGE,)) | _f1_em("xquad", xquad, (AVERAGE,))


_ADVERSARIAL = ("squad", "addsent", "addonesent")
_INFOMAX = Setting(
    title="QAInfomax (EMNLP-IJCNLP 2019)",
    model="bert-base-uncased",
    trained_on="squad",
    train_questions={"squad": 87_599},
    settings={
        "data.max_length": 384,
        "data.max_question_length": 64,
        "data.doc_stride": 128,
        "train.epochs": 2,
        "train.batch_size": 12,
        "optim.lr": 3e-5,
        "optim.weight_decay": 0.01,
        "optim.clip_norm": 1.0,
        "optim.schedule": "linear",
        WARMUP: "0.1 of the steps",
        "objectives.infomax.variant": "paper",
        "objectives.infomax.weight": 0.3,
        "objectives.infomax.alpha": 1.0,
        "objectives.infomax.beta": 0.5,
        "objectives.infomax.context": 5,
        "objectives.infomax.summary": "mean",
        "objectives.infomax.dropout": 0.5,  # of the released code
    },
    questions={Key("squad"): 10_570, Key("addsent"): 3_560, Key("addonesent"): 1_787},
    rules={"squad": "squad", "addsent": "squad", "addonesent": "squad"},
    runs="the best of at least three runs",
    rows=(
        Row("BiDAF", _f1(_ADVERSARIAL, "75.5 34.3 45.7")),
        Row("ReasoNet", _f1(_ADVERSARIAL, "78.2 39.4 50.3")),
        Row("Reinforced Mnemonic Reader", _f1(_ADVERSARIAL, "78.5 46.6 56.0")),
        Row("QANet", _f1(_ADVERSARIAL, "83.8 45.2 55.7")),
        Row("GQA", _f1(_ADVERSARIAL, "83.7 47.3 57.8")),
        Row("FusionNet (ensemble)", _f1(_ADVERSARIAL, "83.6 51.4 60.7")),
        Row("BERT-base", _f1(_ADVERSARIAL, "88.5 51.0 63.4"), {}),
        Row("BERT-base + QAInfomax", _f1(_ADVERSARIAL, "88.6 54.5 64.9"), {"infomax": {}}),
        Row("+ LC alone", _f1(_ADVERSARIAL, "- 53.6 64.2"), {"infomax": {"beta": 0.0}}),
        Row("+ GC alone, mean", _f1(_ADVERSARIAL, "- 52.2 63.7"), {"infomax": {"alpha": 0.0, "summary": "mean"}}),
        Row("+ GC alone, max", _f1(_ADVERSARIAL, "- 52.0 63.3"), {"infomax": {"alpha": 0.0, "summary": "max"}}),
        Row("+ GC alone, sample", _f1(_ADVERSARIAL, "- 52.2 63.0"), {"infomax": {"alpha": 0.0, "summary": "sample"}}),
    ),
)

_MRQA = ("squad", "hotpotqa", "newsqa", "naturalquestions")
_OUT = Key("out_of_domain")
_GRID = (0.1, 0.3, 0.5, 0.7, 0.9)


def _mrqa(
    method: str, text: str, spread: str, objectives: Any = None, out_of_domain: float | None = None, settings: Any = None
) -> Row:
    scores = _f1(_MRQA, text) | ({_OUT: out_of_domain} if out_of_domain else {})
    return Row(method, scores, objectives, _f1(_MRQA, spread), settings or {})


_SWEP: dict[str, Any] = {"data.max_length": 384, "train.epochs": 2, "optim.lr": 3e-5}  # baselines kept their own
_SWEP |= dict.fromkeys(("data.passage_first", "model.dropout", "optim.schedule", "optim.final_lr_share", WARMUP))  # not stated


def _grid(method: str, perturber: str, key: str, text: str) -> Iterator[Row]:
    """One row for each value of a grid on SQuAD, all else as in the full method."""
    for value, score in zip(_GRID, text.split(), strict=True):
        given = {"perturber": perturber, "align": "w1", "lambda1": 1.0, "lambda2": 1.0, key: value}
        if score != "-":
            yield Row(f"{method} {value}", {Key("squad"): float(score)}, {"pfa": given})


_PFA = Setting(
    title="Perturbation for alignment, RoBERTa-base",
    model="roberta-base",
    trained_on="",
    train_questions={"squad": 86_588, "hotpotqa": 72_928, "newsqa": 74_160, "naturalquestions": 104_071},
    settings={
        "data.max_length": 512,
        "data.passage_first": True,
        "model.dropout": 0.1,
        "train.epochs": 10,
        "train.batch_size": 8,
        "optim.lr": 1e-4,
        "optim.schedule": "cosine",
        "optim.final_lr_share": 0.2,  # 2e-5
        WARMUP: "80,000 examples",  # 10,000 steps
        "objectives.pfa.perturber": "mlp",
        "objectives.pfa.bottleneck": 500,
        "objectives.pfa.start": "not stated",
        "objectives.pfa.scope": "passage",
        "objectives.pfa.align": "w1",
        "objectives.pfa.lambda1": 1.0,
        "objectives.pfa.lambda2": 1.0,
        "objectives.pfa.gamma": 1.0,
        "objectives.pfa.alpha": 0.5,
        "objectives.pfa.penalty": "squared",
        "objectives.pfa.penalty_at": "embedding",
        "objectives.pfa.critic_sees": "raw",
        "objectives.pfa.every": 1,
    },
    questions={
        Key("squad"): 10_507,
        Key("hotpotqa"): 5_904,
        Key("newsqa"): 4_212,
        Key("naturalquestions"): 12_836,
    },
    rules=dict.fromkeys(_MRQA, "mrqa"),
    runs="a mean with its deviation; on SQuAD, variants are means over 10 runs",
    rows=(
        _mrqa("BLANC", "91.1 77.8 70.7 80.3", "0.2 0.1 0.5 0.1"),
        _mrqa("SSMBA", "90.1 77.3 69.2 79.8", "0.3 0.4 0.2 0.2"),
        _mrqa("KALA", "90.9 77.3 72.7 80.1", "0.4 0.5 0.3 0.4"),
        _mrqa("RoBERTa-base", "90.3 78.7 69.8 79.6", "0.2 0.3 0.4 0.2", {}, 60.1),
        _mrqa("SWEP", "91.0 78.6 71.7 80.2", "0.1 0.2 0.1 0.3", {"pfa": {"perturber": "gaussian"}}, 61.3, _SWEP),
        _mrqa("PFA", "92.4 79.3 73.3 82.2", "0.2 0.1 0.4 0.3", {"pfa": {"perturber": "mlp"}}, 63.5),
        Row("+ perturbation alone", {Key("squad"): 91.2}, {"pfa": {"perturber": "mlp", "lambda2": 0.0}}),
        Row("+ alignment alone", {Key("squad"): 91.7}, {"pfa": {"perturber": "mlp", "lambda1": 0.0}}),
        Row("PFA, one unit", {Key("squad"): 91.95}, {"pfa": {"perturber": "mlp", "bottleneck": 1}}),
        Row("PFA, cos", _f1(_MRQA, "92.2 78.6 73.0 82.1"), {"pfa": {"perturber": "mlp", "align": "cos"}}),
        Row("PFA, KL", _f1(_MRQA, "92.4 79.1 73.4 82.2"), {"pfa": {"perturber": "mlp", "align": "kl"}}),
        Row("PFA, JS", _f1(_MRQA, "92.3 78.8 73.5 82.2"), {"pfa": {"perturber": "mlp", "align": "js"}}),
        *_grid("PFA, alpha", "mlp", "alpha", "92.3 92.4 - 92.3 92.7"),  # 0.5 is the full method
        *_grid("noise", "noise", "delta", "91.1 91.4 91.4 91.2 91.3"),
        *_grid("dropout", "dropout", "delta", "91.0 91.1 91.3 91.2 90.8"),
    ),
)
_PFA_BERT = Setting(
    title="Perturbation for alignment, BERT-base",
    model="bert-base-uncased",
    trained_on="",
    train_questions=_PFA.train_questions,
    settings=dict(_PFA.settings) | {"optim.lr": 3e-5, "optim.final_lr_share": None},
    questions=_PFA.questions,
    rules=_PFA.rules,
    runs="not stated",
    rows=(
        Row("KALA", _f1(_MRQA, "89.2 75.3 65.8 77.5")),
        Row("BERT-base", _f1(_MRQA, "88.6 74.9 64.7 77.1"), {}),
        Row("SWEP", _f1(_MRQA, "89.4 75.1 65.4 77.7"), {"pfa": {"perturber": "gaussian"}}, settings=_SWEP),
        Row("PFA", _f1(_MRQA, "89.7 75.8 66.6 78.8"), {"pfa": {"perturber": "mlp"}}),
    ),
)

_MLQA_QUESTIONS = dict(zip(LANGUAGES, (11_590, 5_253, 4_517, 5_335, 4_918, 5_495)))
_FULL: dict[str, dict[str, Any]] = {"hard_learning": {}, "answer_contrast": {}}
_WITHOUT_HL: dict[str, dict[str, Any]] = {"answer_contrast": {}}
_WITHOUT_CONTRAST: dict[str, dict[str, Any]] = {"hard_learning": {}}
_WITH_MML: dict[str, dict[str, Any]] = {"hard_learning": {"mode": "mml"}, "answer_contrast": {}}
_THREE = ("es", "ar", "vi")


def _at_k(text: str) -> dict[Key, float]:
    """``64.24/73.06/75.69/75.76`` for each language: EM@1, 3, 5, 10 of a plain reader on MLQA."""
    return {
        Key("mlqa", f"em@{k}", language): float(value)
        for language, values in zip(LANGUAGES, text.split(), strict=True)
        for k, value in zip((1, 3, 5, 10), values.split("/"), strict=True)
    }


def _xmrc(title: str, languages: str, rows: tuple[Row, ...]) -> Setting:
    return Setting(
        title=f"Two-stage cross-lingual reader (AAAI 2022), {title}",
        model="xlm-roberta-base",
        trained_on="squad",
        train_questions={"squad": 87_599} if languages == "one" else {},
        settings={
            "data.max_length": 384,
            "data.max_question_length": 64,
            "train.epochs": 8,
            "train.batch_size": 32,
            "optim.lr": 3e-5,
            "optim.weight_decay": 0.01,
            WARMUP: "0.1 of the steps",
            "objectives.hard_learning.mode": "equation 5 as printed",  # cannot be: docs/methods.md 6.3
            "objectives.hard_learning.size": 20,
            "objectives.answer_contrast.top": 50,
            "objectives.answer_contrast.theta": 1,
            "objectives.answer_contrast.tau": 10.0,
            "objectives.answer_contrast.alpha": 0.5,
        },
        questions={Key("mlqa", language=code): count for code, count in _MLQA_QUESTIONS.items()}
        | {Key("xquad", language=code): 1_190 for code in LANGUAGES},
        rules={"mlqa": "mlqa", "xquad": "squad"},
        runs="not stated",
        rows=rows,
        languages=languages,
    )


_ZERO_SHOT = _xmrc(
    "zero-shot",
    "one",
    (
        Row(
            "mBERT",
            _f1_em("mlqa", "77.70/65.30 64.30/46.60 57.90/44.30 45.70/29.80 43.80/29.70 57.10/38.60")
            | _f1_em("xquad", "81.50/71.20 75.50/56.90 70.60/54.00 61.50/45.10 59.20/46.00 69.50/49.10"),
        ),
        Row(
            "XLM",
            _f1_em("mlqa", "74.90/62.40 68.00/49.80 62.20/47.60 54.80/36.30 48.80/27.30 61.40/41.80")
            | _f1_em("xquad", "81.30/68.80 75.60/56.90 72.60/55.50 62.60/43.20 63.10/46.00 70.40/48.70"),
        ),
        Row(
            "Info-XLM",
            _f1_em("mlqa", "79.15/64.80 67.07/48.49 58.24/46.00 55.15/38.78 59.66/43.98 64.44/43.28")
            | _f1_em("xquad", "85.15/72.80 76.15/59.30 73.88/59.00 63.51/49.78 69.66/54.90 73.21/55.25"),
        ),
        Row(
            "XLM-R base",
            _f1_em("mlqa", "77.86/64.24 66.18/48.30 60.82/46.43 55.20/35.14 59.93/41.93 64.89/42.36")
            | _f1_em("xquad", "83.66/72.48 77.00/60.87 74.40/58.40 63.00/47.80 68.70/53.70 74.50/54.00")
            | _at_k(
                "64.24/73.06/75.69/75.76 48.30/60.32/66.04/71.18 46.43/60.99/67.13/72.17 "
                "35.14/48.24/52.33/57.13 41.93/57.70/63.32/70.15 42.36/58.25/61.98/66.06"
            ),
            {},
        ),
        Row(
            "two-stage",
            _f1_em("mlqa", "79.03/65.59 67.52/49.56 62.98/48.70 57.68/39.40 61.79/44.70 66.74/45.34")
            | _f1_em("xquad", "84.51/74.59 78.25/61.67 75.89/59.79 65.18/50.04 70.79/55.45 75.74/56.46"),
            _FULL,
        ),
        Row("without hard learning", _averages("64.71/47.50", "73.61/58.25"), _WITHOUT_HL),
        Row("without contrast", _averages("64.86/47.63", "73.84/58.31"), _WITHOUT_CONTRAST),
        Row("with MML", _averages("65.06/47.80", "73.79/58.40"), _WITH_MML),
        Row("10 hard negatives", _averages("65.80/48.67", "74.96/59.50"), _FULL | {"answer_contrast": {"theta": 10}}),
        Row("20 hard negatives", _averages("66.10/49.12", "74.89/59.41"), _FULL | {"answer_contrast": {"theta": 20}}),
        Row("top-1 as hard negative", _averages("65.02/47.94", "74.55/59.24"), _FULL | {"answer_contrast": {"select": "top1"}}),
        Row("random hard negative", _averages("65.11/48.02", "74.21/58.86"), _FULL | {"answer_contrast": {"select": "random"}}),
    ),
)
_TRANSLATE_TRAIN = _xmrc(
    "translate-train",
    "several",
    (
        Row("LAKM", _f1_em("mlqa", "80.00/66.80 65.90/48.00 60.50/45.50 - - -")),
        Row("CalibreNet", _f1_em("mlqa", "79.68/66.51 68.04/50.77 61.66/47.55 56.14/37.83 59.97/43.84 66.92/46.59")),
        Row("mixMRC", _f1_em("xquad", "82.40/69.20 78.80/58.70 75.40/58.20 63.60/42.40 66.20/50.00 72.60/52.70")),
        Row("LBMRC", _f1_em("xquad", "83.40/70.10 80.00/59.60 76.50/59.80 65.00/44.50 67.40/52.00 74.60/55.50")),
        Row(
            "XLM-R base",
            _f1_em("mlqa", "77.15/64.41 68.51/50.40 62.24/47.99 56.60/38.42 61.39/43.93 66.70/44.36")
            | _f1_em("xquad", "82.59/71.30 78.55/60.20 76.42/60.69 65.15/48.42 71.35/56.43 76.10/56.68"),
            {},
        ),
        Row(
            "two-stage",
            _f1_em("mlqa", "80.11/66.84 69.04/51.20 64.58/49.75 58.54/41.03 62.77/46.54 67.92/47.19")
            | _f1_em("xquad", "84.06/73.11 80.04/61.68 77.88/62.48 66.54/50.34 73.77/58.90 77.64/57.49"),
            _FULL,
        ),
        Row("without hard learning", _f1_em("mlqa", "67.64/49.45 57.10/39.18 66.00/45.49", _THREE), _WITHOUT_HL),
        Row("without contrast", _f1_em("mlqa", "67.70/50.12 57.66/39.80 67.00/46.07", _THREE), _WITHOUT_CONTRAST),
        Row("with MML", _f1_em("mlqa", "68.47/50.21 57.46/40.00 66.89/46.01", _THREE), _WITH_MML),
    ),
)

PAPERS: tuple[tuple[Setting, ...], ...] = ((_INFOMAX,), (_PFA, _PFA_BERT), (_ZERO_SHOT, _TRANSLATE_TRAIN))


# --- what a run has --------------------------------------------------------------------------------------------------


def known_as(name: str) -> str:
    """Which of the published test sets a name means: ``real_addsent`` is addsent; "" for none."""
    plain = name.lower()
    words = set(re.split(r"[^a-z0-9]+", plain))
    if words & {"v2", "swap", "reqa", "multireqa"}:
        return ""  # close in name, not in kind
    for test_set, signs in (
        ("addonesent", ("addonesent", "hcverifysample")),
        ("addsent", ("addsent", "hcverifyall")),
        ("xquad", ("xquad",)),
        ("mlqa", ("mlqa",)),
        ("hotpotqa", ("hotpot",)),
        ("newsqa", ("newsqa",)),
        ("naturalquestions", ("naturalquestion", "natural_question", "natural-question", "nq_qed")),
    ):
        if any(sign in plain for sign in signs):
            return test_set
    if words & {"nq", "naturalq"}:
        return "naturalquestions"
    return "squad" if "squad" in words and "adversarial" not in words else ""


def language_of(name: str) -> str:
    """A language code among the words of a name; "" for none."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((word for word in words if word in LANGUAGES or word in OTHER_LANGUAGES), "")


def sources(run: Run, which: str) -> list[str]:
    """What the data set ``which`` was read from: a hub name, or files with the folder they are in."""
    source = run.setting("data", which) if which in ("train", "dev") else run.setting("data", "test", which)
    if isinstance(source, str | list):
        source = {"files": source}
    if not isinstance(source, dict):
        return []
    if source.get("hub"):
        return ["/".join(str(source[key]) for key in ("hub", "hub_config") if source.get(key))]
    files = source.get("files") or []
    return ["/".join(str(file).split("/")[-2:]) for file in ([files] if isinstance(files, str) else files)]


def own_scores(run: Run) -> dict[Key, tuple[str, float]]:
    """Every score of a set that has a published name: the run's own name for the set, and the value."""
    found: dict[Key, tuple[str, float]] = {}
    for name, scored in sorted(run.scores().items(), key=lambda item: not known_as(item[0])):  # a name before a file's name
        read_from = sources(run, name)
        test_set = known_as(name) or _only(map(known_as, read_from))
        whole = language_of(name) or _only(map(language_of, read_from))
        for measure, value in scored.items():
            match = re.fullmatch(r"((?:addsent_)?(?:f1|em)(?:@\d+)?)(?:\.(?!low$|high$|languages$)(.+))?", measure)
            if not test_set or not match or not is_number(value):
                continue
            language = match[2] or whole
            if test_set in ("xquad", "mlqa") and language:
                found.setdefault(Key(test_set, match[1], language), (name, float(value)))
            elif test_set not in ("xquad", "mlqa") and not match[2] and whole in ("", "en"):  # no translation
                found.setdefault(Key(test_set, match[1]), (name, float(value)))
    for test_set in ("xquad", "mlqa"):
        for measure in ("f1", "em"):
            scores = [found.get(Key(test_set, measure, code)) for code in LANGUAGES]
            if all(scores):
                found[Key(test_set, measure, AVERAGE)] = (test_set, float(np.mean([score[1] for score in scores if score])))
    others = [found[Key(name)] for name in OUT_OF_DOMAIN if Key(name) in found]
    if len(others) > 1:
        found[_OUT] = (" and ".join(name for name, _ in others), float(np.mean([value for _, value in others])))
    return found


def _only(found: Iterable[str]) -> str:
    """What is found, if it is one thing."""
    kinds = set(found)
    return kinds.pop() if len(kinds) == 1 else ""


def objectives_of(run: Run) -> dict[str, dict[str, Any]]:
    """The objectives besides the span loss, with their settings; without one whose settings leave the plain span loss."""
    given = run.setting("objectives")
    found = {name: section for name, section in given.items() if name != "span"} if isinstance(given, dict) else {}
    off = {"hard_learning": ("mode", "ce"), "answer_contrast": ("alpha", 0)}  # ablations as one may write them, too
    is_off = {name: found[name].get(key) == value for name, (key, value) in off.items() if isinstance(found.get(name), dict)}
    return {name: section for name, section in found.items() if isinstance(section, dict) and not is_off.get(name)}


def fits(row: Row, objectives: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a run with these objectives did what the row did, and perhaps more."""
    if row.objectives is None or not row.objectives.keys() <= objectives.keys():
        return False
    wanted = ((objectives[name].get(key), value) for name, given in row.objectives.items() for key, value in given.items())
    return all(seen == value for seen, value in wanted)


def in_use(dotted: str, objectives: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a setting of PFA has a say beside its others: SWEP has no alignment, noise no start."""
    key = dotted.removeprefix("objectives.pfa.")
    pfa = objectives.get("pfa", {})
    perturber = pfa.get("perturber", "mlp")
    if key in ("bottleneck", "start"):
        return perturber == "mlp"
    if key in ("gamma", "alpha", "penalty", "penalty_at", "critic_sees"):
        return perturber != "gaussian" and pfa.get("align", "w1") == "w1" and pfa.get("lambda2", 1.0) != 0
    return key not in ("align", "lambda1", "lambda2", "scope") or perturber != "gaussian"


def warmup(run: Run) -> str | None:
    """How long the rate rises, in one form for all ways to say it: a share of the steps, or examples, whatever the batch."""
    optim, batch_size = run.setting("optim"), run.setting("train", "batch_size")
    if not isinstance(optim, dict):
        return None
    steps, examples, share = (optim.get(f"warmup_{key}") for key in ("steps", "examples", "share"))
    if steps is not None and batch_size:
        examples = steps * batch_size
    if examples is not None:
        return f"{number(examples)} examples"
    return f"{0.1 if share is None else share:g} of the steps" if steps is None else None


def choose_setting(run: Run, paper: tuple[Setting, ...]) -> Setting:
    """Of a paper's settings that of the run's model and number of languages, else the first."""
    model = str(model_name(run) or "").split("/")[-1]
    codes = {code for code in map(language_of, sources(run, "train")) if code}
    languages = "several" if len(codes) > 1 else "one"
    return max(paper, key=lambda setting: (setting.languages == languages, setting.model == model))  # max takes the first


# --- the section -----------------------------------------------------------------------------------------------------


def published(runs: Sequence[Run], name: str | None = None) -> Html | None:
    """Our numbers beside those of each paper whose method, or plain reader, the runs trained; they differ in their seed alone.

    With a name they are a part of a comparison.
    """
    objectives, parts = objectives_of(runs[0]), []
    for paper in PAPERS:
        setting = choose_setting(runs[0], paper)
        methods = [row for row in setting.rows if row.objectives and fits(row, objectives)]
        if methods or not objectives:
            parts.append(_beside(runs, setting, methods, objectives, name))
    shown = [part for part in parts if part]
    return join(shown) if shown else None


def _beside(
    runs: Sequence[Run],
    setting: Setting,
    methods: list[Row],
    objectives: dict[str, dict[str, Any]],
    name: str | None,
) -> Html | None:
    by_run = [own_scores(run) for run in runs]
    own = {key: value for found in reversed(by_run) for key, value in found.items()}
    plain = [row for row in setting.rows if row.objectives == {}]
    trained_on = _trained_on(runs[0])
    best = "best" in setting.runs  # then our best is compared, else our mean

    def speaks_of(key: Key) -> bool:
        wanted = setting.trained_on or ("squad" if key == _OUT else key.test_set)
        return not trained_on or trained_on == wanted

    keys = [
        key for key in dict.fromkeys(key for row in (*plain, *methods) for key in row.scores) if key in own and speaks_of(key)
    ]
    if not keys:
        return None
    rows, used = [], []
    for key in keys:
        values = [found[key][1] for found in by_run if key in found]
        ours = max(values) if best else float(np.mean(values))
        base = _most_exact(plain, key)
        method = _most_exact(methods, key)
        nearest = method or base
        assert nearest is not None
        used.append(nearest)
        cells = [_cell(base, key), *([_cell(method, key)] if methods else [])]
        gap = el("b", f"{ours - nearest.scores[key]:+.2f}", class_="n")
        rows.append([_title(key, own[key][0]), *_seen(values, best), *cells, gap])
    ours_head = ["Mean", "Deviation", "Maximum"] if runs[1:] else ["This run"]
    head = ["Score", *ours_head, "Published, plain reader", *(["Published, this method"] if methods else []), "Difference"]
    differing = differences(runs, setting, keys, own, max(used, key=_exactness), objectives)
    whose = "these runs'" if runs[1:] else "this run's"
    parts = [
        el("h3", f"{name}: {setting.title}" if name else setting.title),
        table(head, rows),
        el("p", f"Published numbers are {setting.runs}." if setting.runs != "not stated" else _RUNS_NOT_STATED, class_="note"),
        el("h4", f"Where {whose} setting differs") if differing else el("p", "No setting that is compared differs."),
        table(["", "Published", "These runs" if runs[1:] else "This run"], differing) if differing else None,
    ]
    if name:
        return join(parts)
    others = [row for row in setting.rows if row.scores.keys() & set(keys)]
    listed = [[row.method, *(_printed(row.scores.get(key)) for key in keys)] for row in others]
    all_rows = table(["Method", *(_title(key) for key in keys)], listed)
    return join([*parts, el("details", el("summary", "Everything published for these scores"), all_rows)])


def _seen(values: list[float], best: bool) -> list[object]:
    """A run's value, or mean, deviation and maximum of several; what is compared is bold."""
    if not values[1:]:
        return [el("b", f"{values[0]:.2f}", class_="n")]
    shown = [(float(np.mean(values)), not best), (float(np.std(values, ddof=1)), False), (max(values), best)]
    return [el("b" if bold else "span", f"{value:.2f}", class_="n") for value, bold in shown]


_RUNS_NOT_STATED = "How many runs a published number is over is not stated."


def differences(
    runs: Sequence[Run],
    setting: Setting,
    keys: list[Key],
    own: dict[Key, tuple[str, float]],
    row: Row,
    objectives: Mapping[str, Mapping[str, Any]],
) -> list[list[object]]:
    """What, as published, and in these runs, of everything that is known of both and is not the same."""
    run, found = runs[0], list[list[object]]()

    def compare(what: object, theirs: Any, ours: Any) -> None:
        if None not in (theirs, ours) and ours != theirs:
            found.append([what, say_setting(theirs), say_setting(ours)])

    model = model_name(run)
    compare("Model", setting.model, str(model).split("/")[-1] if model else None)
    trained_on = _trained_on(run)
    if not trained_on:
        compare("Training data", setting.trained_on or "of each test set", ", ".join(sources(run, "train")) or None)
    compare("Training questions", setting.train_questions.get(setting.trained_on or trained_on), _train_questions(run))
    for dotted, value in (dict(setting.settings) | dict(row.settings)).items():
        path = dotted.split(".")
        needed = dict(row.objectives or {}).get(path[1], {}) if path[0] == "objectives" else {}
        if path[0] == "objectives" and (path[1] not in objectives or path[1] not in (row.objectives or {})):
            continue
        if dotted == WARMUP:
            compare(WARMUP, value, warmup(run))
        elif path[-1] not in needed and in_use(dotted, objectives):
            compare(el("code", dotted), value, run.setting(*path))
    if run.setting("train", "max_steps") is not None:
        found.append([el("code", "train.max_steps"), "–", say_setting(run.setting("train", "max_steps"))])
    more = [name for name in objectives if name not in (row.objectives or {})]
    if more:
        found.append(["Further objectives", "none", ", ".join(more)])
    alike: dict[tuple[str, Any, Any], list[str]] = {}  # sets that differ in the same way share a line
    for key in (key for key in _members(keys, own) if key.language != AVERAGE):
        name = own[key][0]
        place = name if language_of(name) else " ".join(filter(None, (name, key.language)))
        holder = next(run for run in runs if name in run.scores())
        theirs, ours = setting.questions.get(Key(key.test_set, language=key.language)), _questions(holder, name, key.language)
        alike.setdefault(("Questions", theirs, ours), []).append(place)
        rule = holder.scores()[name].get("rule")
        alike.setdefault(("Rule", setting.rules.get(key.test_set), str(rule) if rule else None), []).append(name)
    for (what, theirs, ours), places in sorted(alike.items(), key=lambda item: item[0][0]):
        compare(f"{what} of {', '.join(dict.fromkeys(places))}", theirs, ours)
    absent = [test_set for test_set in OUT_OF_DOMAIN if _OUT in keys and Key(test_set) not in own]
    if absent:
        found.append(["Sets of the mean out of domain", ", ".join(OUT_OF_DOMAIN), f"without {', '.join(absent)}"])
    if "best" in setting.runs or "mean" in setting.runs:
        several = f"the {'best' if 'best' in setting.runs else 'mean'} of {len(runs)} runs"
        found.append(["A number is", setting.runs, several if runs[1:] else "of one run"])
    return found


def _members(keys: Iterable[Key], own: Mapping[Key, object]) -> list[Key]:
    """One key of each set and language, those behind the mean out of domain among them."""
    sets = [key for key in keys if key != _OUT] + [Key(name) for name in OUT_OF_DOMAIN if _OUT in keys and Key(name) in own]
    return list({(key.test_set, key.language): key for key in sets}.values())


def _trained_on(run: Run) -> str:
    """The published data set that the training data come from, where their names tell."""
    return _only(map(known_as, sources(run, "train")))


def _train_questions(run: Run) -> int | None:
    rows = run.rows_of("examples of train")
    train = run.setting("data", "train")
    limit = train.get("questions") if isinstance(train, dict) else None
    known = [count for count in (rows, limit) if isinstance(count, int) and count]
    return min(known) if known else None


def _questions(run: Run, test_set: str, language: str) -> int | None:
    rows = run.evaluations.get(test_set)
    if rows is None:
        count = run.scores().get(test_set, {}).get("questions")
        return count if isinstance(count, int) and not language else None
    codes = rows["language"].to_pylist()
    return codes.count(language) if len(set(codes)) > 1 and language else len(codes)


def _exactness(row: Row) -> int:
    """How many settings of the run a row speaks of."""
    return sum(1 + len(given) for given in (row.objectives or {}).values())


def _most_exact(rows: list[Row], key: Key) -> Row | None:
    return max((row for row in rows if key in row.scores), key=_exactness, default=None)


def _cell(row: Row | None, key: Key) -> Html | None:
    if row is None:
        return None
    spread = f" ± {row.spread[key]}" if key in row.spread else ""
    return join([el("span", f"{_printed(row.scores[key])}{spread}", class_="n"), el("small", f" {row.method}")])


def _printed(value: float | None) -> str | None:
    """With as many digits as the paper gives; a computed mean with two."""
    return None if value is None else str(round(value, 2))


def _title(key: Key, name: str | None = None) -> str:
    if key == _OUT:
        return f"mean F1 of {name}" if name else "mean F1 out of domain"
    place = name if name and language_of(name) else " ".join(filter(None, (name or key.test_set, key.language)))
    return f"{place} {measure_name(key.measure).replace('em@', 'EM@')}"


def say_setting(value: Any) -> str:
    """A setting as one would write it: 87,599 but 0.00003."""
    return f"{value:g}" if isinstance(value, float) else number(value)
