"""Published numbers of readers beside a run's own, and where the settings differ (docs/methods.md 3.10, 4.10, 6.8).

Only numbers printed in the papers, each under its printed setting. A number is found by the test set's name and the run's
objectives: ``PublishedRow.objectives`` are the settings that a run must have for the row to apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raydist.report.markup import Html, el, is_number, join, number, table
from raydist.report.parts import measure_name, model_name
from raydist.report.published.tables import AVERAGE, LANGUAGES, ORIGINAL, WARMUP, Key, PublishedRow, Table, papers
from raydist.report.runs import ReportedRun

OTHER_LANGUAGES = ("el", "ro", "ru", "th", "tr", "zh", "it", "fr", "pt", "ja", "ko")
WHOLE = 0.95  # a set with a smaller share of the published one's questions is a small one
OUT_OF_DOMAIN = ("hotpotqa", "newsqa", "naturalquestions")
OUT = Key("out_of_domain")  # the mean over these


# --- a run's data ----------------------------------------------------------------------------------------------------


def known_as(name: str) -> str:
    """The published test set that a name refers to: ``real_addsent`` is addsent; "" for none."""
    plain = name.lower()
    words = set(re.split(r"[^a-z0-9]+", plain))
    if words & {"v2", "swap", "reqa", "multireqa"}:
        return ""  # similar names, different sets
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


def sources(run: ReportedRun, which: str) -> list[str]:
    """The sources of the data set ``which``: a hub name, or files with their folder."""
    source = run.setting("data", which) if which in ("train", "dev") else run.setting("data", "test", which)
    if isinstance(source, str | list):
        source = {"files": source}
    if not isinstance(source, dict):
        return []
    if source.get("hub"):
        return ["/".join(str(source[key]) for key in ("hub", "hub_config") if source.get(key))]
    files = source.get("files") or []
    return ["/".join(str(file).split("/")[-2:]) for file in ([files] if isinstance(files, str) else files)]


def own_scores(run: ReportedRun) -> dict[Key, tuple[str, float]]:
    """The score of every set with a published name: the run's own name for the set, and the value."""
    found: dict[Key, tuple[str, float]] = {}
    for name, scored in sorted(run.scores().items(), key=lambda item: not known_as(item[0])):  # a name before a file's name
        read_from = sources(run, name)
        test_set = known_as(name) or _only(map(known_as, read_from))
        whole = language_of(name) or _only(map(language_of, read_from))
        for measure, value in scored.items():
            match = re.fullmatch(r"((?:addsent_)?(?:f1|em)(?:@\d+)?)(?:\.(?!low$|high$|languages$)(.+))?", measure)
            if measure == "original_f1" and test_set in ("addsent", "addonesent") and is_number(value):
                found.setdefault(Key(ORIGINAL, measure), (name, float(value)))
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
        found[OUT] = (" and ".join(name for name, _ in others), float(np.mean([value for _, value in others])))
    return found


def _only(found: Iterable[str]) -> str:
    """The only distinct element, if there is just one."""
    kinds = set(found)
    return kinds.pop() if len(kinds) == 1 else ""


def objectives_of(run: ReportedRun) -> dict[str, dict[str, Any]]:
    """The objectives besides the span loss, with their settings; without one whose settings amount to it."""
    given = run.setting("objectives")
    found = {name: section for name, section in given.items() if name != "span"} if isinstance(given, dict) else {}
    off = {"hard_learning": ("mode", "ce"), "answer_contrast": ("alpha", 0)}  # another way to write ablations
    is_off = {name: found[name].get(key) == value for name, (key, value) in off.items() if isinstance(found.get(name), dict)}
    return {name: section for name, section in found.items() if isinstance(section, dict) and not is_off.get(name)}


def fits(row: PublishedRow, objectives: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a run with these objectives includes all settings of the row."""
    if row.objectives is None or not row.objectives.keys() <= objectives.keys():
        return False
    wanted = ((objectives[name].get(key), value) for name, given in row.objectives.items() for key, value in given.items())
    return all(seen == value for seen, value in wanted)


def in_use(dotted: str, objectives: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a setting of PFA has any effect given the others: SWEP has no alignment, noise no start."""
    key = dotted.removeprefix("objectives.pfa.")
    pfa = objectives.get("pfa", {})
    perturber = pfa.get("perturber", "mlp")
    if key in ("bottleneck", "start"):
        return perturber == "mlp"
    if key in ("gamma", "alpha", "penalty", "penalty_at", "critic_sees"):
        return perturber != "gaussian" and pfa.get("align", "w1") == "w1" and pfa.get("lambda2", 1.0) != 0
    return key not in ("align", "lambda1", "lambda2", "scope") or perturber != "gaussian"


def warmup(run: ReportedRun) -> str | None:
    """The length of warm-up in one form for all settings: a share of the steps or, for any batch size, examples."""
    optim, batch_size = run.setting("optim"), run.setting("train", "batch_size")
    if not isinstance(optim, dict):
        return None
    steps, examples, share = (optim.get(f"warmup_{key}") for key in ("steps", "examples", "share"))
    if steps is not None and batch_size:
        examples = steps * batch_size
    if examples is not None:
        return f"{number(examples)} examples"
    return f"{0.1 if share is None else share:g} of the steps" if steps is None else None


def choose_setting(run: ReportedRun, paper: tuple[Table, ...]) -> Table:
    """The paper's table for the run's model and number of languages, else the first."""
    model = str(model_name(run) or "").split("/")[-1]
    codes = {code for code in map(language_of, sources(run, "train")) if code}
    languages = "several" if len(codes) > 1 else "one"
    return max(paper, key=lambda setting: (setting.languages == languages, setting.model == model))  # max takes the first


# --- the section -----------------------------------------------------------------------------------------------------


def published(runs: Sequence[ReportedRun], name: str | None = None) -> Html | None:
    """Our numbers beside those of each paper whose method, or plain reader, the runs trained; runs differ only in their seed.

    With a name they are part of a comparison.
    """
    objectives, parts = objectives_of(runs[0]), []
    for paper in papers():
        setting = choose_setting(runs[0], paper)
        methods = [row for row in setting.rows if row.objectives and fits(row, objectives)]
        if methods or not objectives:
            parts.append(_beside(runs, setting, methods, objectives, name))
    shown = [part for part in parts if part]
    return join(shown) if shown else None


def _beside(
    runs: Sequence[ReportedRun],
    setting: Table,
    methods: list[PublishedRow],
    objectives: dict[str, dict[str, Any]],
    name: str | None,
) -> Html | None:
    by_run = [own_scores(run) for run in runs]
    own = {key: value for found in reversed(by_run) for key, value in found.items()}
    plain = [row for row in setting.rows if row.objectives == {}]
    trained_on = _trained_on(runs[0])
    best = "best" in setting.runs  # compare our best, else our mean

    def speaks_of(key: Key) -> bool:
        wanted = setting.trained_on or ("squad" if key == OUT else key.test_set)
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
        beware(_small_sets(runs, setting, keys, own)),
        table(head, rows),
        el("p", f"Published numbers are {setting.runs}." if setting.runs != "not stated" else _RUNS_NOT_STATED, class_="note"),
        el("h4", f"Where {whose} setting differs") if differing else el("p", "No setting that is compared differs."),
        table(["", "Published", "These runs" if runs[1:] else "This run"], differing) if differing else None,
    ]
    if name:
        return join(parts)
    others = [row for row in setting.rows if row.scores.keys() & set(keys)]
    if len(keys) > len(others):  # the longer side goes into rows
        listed = [[_title(key), *(_printed(row.scores.get(key)) for row in others)] for key in keys]
        all_rows = table(["Score", *(row.method for row in others)], listed)
    else:
        listed = [[row.method, *(_printed(row.scores.get(key)) for key in keys)] for row in others]
        all_rows = table(["Method", *(_title(key) for key in keys)], listed)
    return join([*parts, el("details", el("summary", "Everything published for these scores"), all_rows)])


def beware(sets: Mapping[str, tuple[int, int]]) -> Html | None:
    """A prominent warning if sets, by name, have fewer questions (or sentences) than those behind the published numbers."""
    if not sets:
        return None
    listed = "; ".join(f"{name}: {ours:,} here, {theirs:,} there" for name, (ours, theirs) in sets.items())
    said = "These scores are not of the test sets that the published ones are of, but of fewer questions or sentences: "
    return el("div", el("p", el("b", "Not comparable. "), said, f"{listed}."), class_="notice loud")


def is_small(ours: Any, theirs: Any) -> bool:
    """Whether a test set lacks more than a few of the published questions."""
    return is_number(ours) and is_number(theirs) and ours < WHOLE * theirs


def _small_sets(
    runs: Sequence[ReportedRun], setting: Table, keys: list[Key], own: Mapping[Key, tuple[str, float]]
) -> dict[str, tuple[int, int]]:
    small = {}
    for key in (key for key in _members(keys, own) if key.language != AVERAGE):
        name = own[key][0]
        holder = next(run for run in runs if name in run.scores())
        theirs = setting.questions.get(Key(key.test_set, language=key.language))
        ours = _questions_of(holder, name, key)
        if ours is not None and theirs is not None and is_small(ours, theirs):
            small[" ".join(filter(None, (name, key.language)))] = ours, theirs
    return small


def _seen(values: list[float], best: bool) -> list[object]:
    """A run's value, or mean, deviation and maximum of several; the compared value is bold."""
    if not values[1:]:
        return [el("b", f"{values[0]:.2f}", class_="n")]
    shown = [(float(np.mean(values)), not best), (float(np.std(values, ddof=1)), False), (max(values), best)]
    return [el("b" if bold else "span", f"{value:.2f}", class_="n") for value, bold in shown]


_RUNS_NOT_STATED = "How many runs a published number is over is not stated."


def differences(
    runs: Sequence[ReportedRun],
    setting: Table,
    keys: list[Key],
    own: dict[Key, tuple[str, float]],
    row: PublishedRow,
    objectives: Mapping[str, Mapping[str, Any]],
) -> list[list[object]]:
    """Settings that differ: name, published value, value of these runs."""
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
        theirs = setting.questions.get(Key(key.test_set, language=key.language))
        what = "Original questions" if key.test_set == ORIGINAL else "Questions"
        alike.setdefault((what, theirs, _questions_of(holder, name, key)), []).append(place)
        rule = holder.scores()[name].get("rule")
        alike.setdefault(("Rule", setting.rules.get(key.test_set), str(rule) if rule else None), []).append(name)
    for (what, theirs, ours), places in sorted(alike.items(), key=lambda item: item[0][0]):
        compare(f"{what} of {', '.join(dict.fromkeys(places))}", theirs, ours)
    absent = [test_set for test_set in OUT_OF_DOMAIN if OUT in keys and Key(test_set) not in own]
    if absent:
        found.append(["Sets of the mean out of domain", ", ".join(OUT_OF_DOMAIN), f"without {', '.join(absent)}"])
    if "best" in setting.runs or "mean" in setting.runs:
        several = f"the {'best' if 'best' in setting.runs else 'mean'} of {len(runs)} runs"
        found.append(["A number is", setting.runs, several if runs[1:] else "of one run"])
    return found


def _members(keys: Iterable[Key], own: Mapping[Key, object]) -> list[Key]:
    """One key of each set and language, including those behind the out-of-domain mean."""
    sets = [key for key in keys if key != OUT] + [Key(name) for name in OUT_OF_DOMAIN if OUT in keys and Key(name) in own]
    return list({(key.test_set, key.language): key for key in sets}.values())


def _trained_on(run: ReportedRun) -> str:
    """The published data set that the training data come from, judged by names."""
    return _only(map(known_as, sources(run, "train")))


def _train_questions(run: ReportedRun) -> int | None:
    rows = run.rows_of("examples of train")
    train = run.setting("data", "train")
    limit = train.get("questions") if isinstance(train, dict) else None
    known = [count for count in (rows, limit) if isinstance(count, int) and count]
    return min(known) if known else None


def _questions_of(run: ReportedRun, name: str, key: Key) -> Any:
    """The number of questions behind a run's score."""
    return run.scores()[name].get("originals") if key.test_set == ORIGINAL else _questions(run, name, key.language)


def _questions(run: ReportedRun, test_set: str, language: str) -> int | None:
    rows = run.evaluations.get(test_set)
    if rows is None:
        count = run.scores().get(test_set, {}).get("questions")
        return count if isinstance(count, int) and not language else None
    codes = rows["language"].to_pylist()
    return codes.count(language) if len(set(codes)) > 1 and language else len(codes)


def _exactness(row: PublishedRow) -> int:
    """The number of the run's settings that a row names."""
    return sum(1 + len(given) for given in (row.objectives or {}).values())


def _most_exact(rows: list[PublishedRow], key: Key) -> PublishedRow | None:
    return max((row for row in rows if key in row.scores), key=_exactness, default=None)


def _cell(row: PublishedRow | None, key: Key) -> Html | None:
    if row is None:
        return None
    spread = f" ± {row.spread[key]}" if key in row.spread else ""
    return join([el("span", f"{_printed(row.scores[key])}{spread}", class_="n"), el("small", f" {row.method}")])


def _printed(value: float | None) -> str | None:
    """A value with as many digits as in the paper; a computed mean with two."""
    return None if value is None else str(round(value, 2))


def _title(key: Key, name: str | None = None) -> str:
    if key == OUT:
        return f"mean F1 of {name}" if name else "mean F1 out of domain"
    place = name if name and language_of(name) else " ".join(filter(None, (name or key.test_set, key.language)))
    return f"{place} {measure_name(key.measure).replace('em@', 'EM@')}"


def say_setting(value: Any) -> str:
    """A setting as readable text: 87,599 but 0.00003."""
    return f"{value:g}" if isinstance(value, float) else number(value)
