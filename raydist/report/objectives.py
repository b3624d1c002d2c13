"""Sections about a reader's training objectives. They show the logged values, whatever the config says."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from raydist.report.markup import Html, el, is_number, join, table
from raydist.report.parts import figures
from raydist.report.plots import Curve, cloud_plot, line_plot, path_plot, running_mean
from raydist.report.runs import ReportedRun

# Terms drawn by these sections and left out of the general curves.
DRAWN_HERE = ("infomax.", "pfa.", "hard_learning.", "answer_contrast")


def infomax(run: ReportedRun) -> Html | None:
    """The two bounds, and the accuracy of the discriminators."""
    parts = [part for part in ("local", "global") if len(run.series(f"loss.infomax.{part}")[0])]
    if not parts:
        return None
    names = {"local": "LC", "global": "GC"}
    is_reference = run.setting("objectives", "infomax", "variant") == "reference"
    undecided = math.log(2) if is_reference else 2 * math.log(2)  # g = 1/2 everywhere (docs/methods.md 3.8)
    bounds = [_curve(run, f"loss.infomax.{part}", f"-{names[part]}") for part in parts]
    rates = [_curve(run, f"loss.infomax.{part}_accuracy", names[part]) for part in parts]
    rows = []
    for part in parts:
        loss, rate = (run.series(f"loss.infomax.{key}")[1] for key in (part, f"{part}_accuracy"))
        rows.append([names[part], *(_tenth(values, last=last) for values in (loss, rate) for last in (False, True))])
    head = ["", "Loss, first tenth", "Loss, last tenth", "Accuracy, first tenth", "Accuracy, last tenth"]
    note = (
        "LC sets one word of the answer against the words around it, GC a summary of the answer against all other words. A "
        f"lower loss is a tighter bound on mutual information. Discriminators at chance have a loss of {undecided:.3f} "
        "and an accuracy of 0.5, where pairs of one example count half. Both are seen through the dropout of training."
    )
    drawn = [
        line_plot("QAInfomax: losses", _with_level(bounds, "undecided", undecided), smooth=True, note="unweighted"),
        line_plot("QAInfomax: accuracy of the discriminators", _with_level(rates, "chance", 0.5), smooth=True),
    ]
    return join([el("p", note, class_="note"), figures(drawn), table(head, rows)])


def pfa(run: ReportedRun) -> Html | None:
    """The task's loss against the alignment, and one passage before and after the perturbation."""
    trace = run.traces.get("pfa")
    if not trace and not any(key.startswith("loss.pfa.") for key in run.step_keys()):
        return None
    task = next((key for key in ("loss.span", "loss.hard_learning") if len(run.series(key)[0])), "loss.span")
    hard = task == "loss.hard_learning"
    # logged as start plus end loss, the others by the configured reduction: half of it for the mean
    scale = 0.5 if hard and run.setting("objectives", "span", "reduction") != "sum" else 1.0
    label, steps, values = _curve(run, task, "clean (hard learning)" if hard else "clean")
    clean, changed = (label, steps, scale * values), _curve(run, "loss.pfa.perturbed_span", "perturbed")
    shown = ("alignment", "kl")  # the latter with the gaussian perturber
    alignment = next((key for key in (f"loss.pfa.{part}" for part in shown) if len(run.series(key)[0])), "loss.pfa.alignment")
    critic = [_curve(run, f"loss.pfa.{part}", part) for part in ("critic", "penalty")]
    drawn = [
        line_plot("PFA: loss of the task", [curve for curve in (clean, changed) if len(curve[1])], smooth=True),
        line_plot("PFA: balance of the losses", _parts_of_the_loss(run), smooth=True, note="each as it counts in the loss"),
        line_plot("PFA: alignment", [_curve(run, alignment, "alignment")], smooth=True, note=_how_aligned(run)),
        path_plot(
            "PFA: task against alignment",
            _path(run, alignment, task) * [1.0, scale],
            labels=("alignment", "loss of the task (hard learning)" if hard else "loss of the task"),
            note="running means; ring: first step, dot: last",
        ),
        line_plot(
            "PFA: critic", [curve for curve in critic if len(curve[1])], smooth=True, note="its own loss and its penalty"
        ),
    ]
    every = run.setting("objectives", "pfa", "every")
    unseen = None
    if not len(changed[1]) and is_number(every) and every > 1:
        unseen = (
            f"The second pass takes place in one step of {every}, and no logged step was one of them; with "
            f"train.log_every=1 its terms are logged."
        )
    said = [el("p", text, class_="note") for text in (unseen, _balance(run)) if text]
    return join([*said, figures(drawn), _clouds(trace) if trace else None])


def _parts_of_the_loss(run: ReportedRun) -> list[Curve]:
    """The task, the perturbed reading and the alignment, times their weights."""
    named = {"span": "task", "hard_learning": "task", "pfa.perturbed_span": "perturbed", "pfa.alignment": "alignment"}
    curves = [_curve(run, f"weighted.{key}", label) for key, label in named.items()]
    return [curve for curve in curves if curve[2].any()]  # of weight 0: logged, no part of the loss


def _balance(run: ReportedRun) -> str | None:
    """The share of the alignment in what the reader minimises; the paper's Figure 6 shows both losses in balance."""
    parts = {label: _tenth(np.abs(values), last=True) for label, _, values in _parts_of_the_loss(run)}
    whole, aligned = sum(value for value in parts.values() if value), parts.get("alignment")
    if aligned is None or not whole:
        return None
    said = f"In the last tenth of the logged steps the alignment is {100 * aligned / whole:.2g} % of what the reader minimises"
    if aligned < whole / 100:
        said += (
            ": almost nothing, so that the perturbed reading does the work; raise objectives.pfa.lambda2, lower gamma, or let "
            "the critic see raw representations (critic_sees)"
        )
    return f"{said}."


def _clouds(trace: dict[str, Any]) -> Html | None:
    """Embeddings and representations of one passage, clean and perturbed, on two axes each."""
    try:
        ringed = np.array(trace["answer"], dtype=bool)
        drawn, moves = [], []
        for name in ("embeddings", "representations"):
            cloud = trace[name]
            shares = [f"{100 * share:.0f} %" for share in cloud["explained"]]
            clouds = [(kind, np.array(cloud[kind], dtype=float).reshape(len(ringed), 2)) for kind in ("clean", "perturbed")]
            labels = (f"first axis, {shares[0]} of the variance", f"second axis, {shares[1]}")
            drawn.append(cloud_plot(f"PFA: {name} of one passage", clouds, labels=labels, ringed=ringed))
            moves.append(f"{name} {cloud['moved']:.2f}")
        step, tokens = int(trace["step"]), int(trace["tokens"])
    except (KeyError, IndexError, TypeError, ValueError):
        return el("p", "trace/pfa.json is not as raydist writes it: the picture of a passage is left out.", class_="note")
    of_all = f"{len(ringed):,} of its {tokens:,} tokens" if tokens > len(ringed) else f"its {tokens:,} tokens"
    note = (
        f"A training passage, {of_all}, after {step:,} steps, without dropout: what the perturber makes of the word "
        "embeddings, and what the encoder makes of both. Axes are the first two principal ones of both clouds together; a line "
        "joins the two places of one token; answer tokens are ringed. In all units, a token moves by so many times the spread "
        f"of the clean tokens: {', '.join(moves)}."
    )
    return join([el("h3", "One passage, clean and perturbed"), el("p", note, class_="note"), figures(drawn)])


def n_best_gain(run: ReportedRun) -> Html | None:
    """Hard learning and answer contrast: the share of questions with a right answer among the k best, before and after."""
    plots = [
        line_plot(title, [curve for curve in curves if len(curve[1])], smooth=True, note=note)
        for title, curves, note in (
            ("Hard learning: gold ranked first in its set", [_curve(run, "loss.hard_learning.gold_first", "share")], None),
            ("Hard learning: entropy of the weights", [_curve(run, "loss.hard_learning.entropy", "entropy")], "in nats"),
            ("Hard learning: anchor of the prior", [_curve(run, "loss.hard_learning.anchor", "anchor")], None),
            ("Answer contrast: loss", [_curve(run, "loss.answer_contrast", "loss")], "unweighted"),
            ("Answer contrast: closeness of the rivals", [_curve(run, "loss.answer_contrast.nearest", "cosine")], "to gold"),
        )
    ]
    before_after = _before_and_after(run) if run.base else None
    if run.setting("objectives", "hard_learning", "sets"):
        said = "The n-best sets were given as a file: there is no base reader of this run to compare EM@k with."
        before_after = el("p", said, class_="note")
    return join([before_after, figures(plots)]) if before_after or any(plots) else None


def _before_and_after(run: ReportedRun) -> Html | None:
    assert run.base is not None
    before, after = _at_k(run.base), _at_k(run)
    shared = {place: sorted(after[place].keys() & before[place].keys()) for place in after if place in before}
    shared = {place: ks for place, ks in shared.items() if ks}
    if not shared:
        return None
    all_ks = sorted({k for ks in shared.values() for k in ks})
    names = {"before": f"before: {run.base.name}", "after": f"after: {run.name}"}
    drawn, rows = [], []
    for (test_set, language), ks in shared.items():
        place = " ".join(filter(None, (test_set, language)))
        curves: list[Curve] = [
            (label, np.array(ks, dtype=float), np.array([values[test_set, language][k] for k in ks], dtype=float))
            for label, values in (("before", before), ("after", after))
        ]
        drawn.append(line_plot(f"EM@k on {place}", curves, x_label="k", x_ticks=ks))
        cells: list[object] = []
        for k in all_ks:
            old, new = before[test_set, language].get(k), after[test_set, language].get(k)
            if old is None or new is None:
                cells.append(None)
            else:
                change = el("div", el("b", f"{new - old:+.2f}"), el("small", f" from {old:.2f}"), class_="difference n")
                cells.append(join([el("span", f"{new:.2f}", class_="n"), change]))
        rows.append([place, *cells])
    note = (
        f"EM@k: how often one of the k best spans is exactly right ({names['before']}, {names['after']}). The base reader made "
        "the n-best sets that this run was trained with."
    )
    folds = run.setting("objectives", "hard_learning", "nbest_folds")
    if is_number(folds) and folds > 1:
        note += f" It is the first of {folds} such readers, each of which was trained without one question in {folds}."
    return join([el("p", note, class_="note"), table(["EM", *(f"k = {k}" for k in all_ks)], rows), figures(drawn)])


def _at_k(run: ReportedRun) -> dict[tuple[str, str], dict[int, float]]:
    """em@k by (test set, language), with an empty language for the whole set."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for test_set, scored in run.scores().items():
        for measure, value in scored.items():
            match = re.fullmatch(r"em@(\d+)(?:\.(.+))?", measure)
            if match and is_number(value) and match[2] not in ("low", "high"):
                found.setdefault((test_set, match[2] or ""), {})[int(match[1])] = float(value)
    return found


def _curve(run: ReportedRun, key: str, label: str) -> Curve:
    return (label, *run.series(key))


def _with_level(curves: list[Curve], label: str, level: float) -> list[Curve]:
    """The curves and a straight line from their first step to their last."""
    steps = np.concatenate([steps for _, steps, _ in curves])
    if not len(steps):
        return curves
    return [*curves, (label, np.array([steps.min(), steps.max()]), np.array([level, level]))]


def _path(run: ReportedRun, x_key: str, y_key: str) -> np.ndarray:
    """Running means of two quantities at the steps where both were logged, [N, 2]."""
    (x_steps, x), (y_steps, y) = run.series(x_key), run.series(y_key)
    steps, x_places, y_places = np.intersect1d(x_steps, y_steps, return_indices=True)
    return np.stack([running_mean(values, max(1, len(steps) // 15)) for values in (x[x_places], y[y_places])], axis=1)


def _how_aligned(run: ReportedRun) -> str | None:
    settings = run.setting("objectives", "pfa")
    if not isinstance(settings, dict):
        return None
    if settings.get("perturber") == "gaussian":
        return "KL divergence from the prior"
    named = {
        "w1": "W1, as the critic sees it",
        "cos": "1 - cosine",
        "fro": "mean square",
        "kl": "KL",
        "js": "JS",
        "gaussian_kl": "KL of Gaussians",
        "gaussian_js": "JS of Gaussians",
        "classifier_kl": "KL, as the classifier sees it",
        "classifier_js": "JS, as the classifier sees it",
    }
    return named.get(str(settings.get("align")), settings.get("align"))


def _tenth(values: np.ndarray, *, last: bool) -> float | None:
    """The mean of the first or the last tenth of what was logged."""
    values = values[np.isfinite(values)]
    size = max(1, len(values) // 10)
    return float(np.mean(values[-size:] if last else values[:size])) if len(values) else None
