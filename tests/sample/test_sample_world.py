"""The sample world: what every file promises, checked on a small world as written."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from raydist.errors import InputError
from raydist.files.storage import StorageError
from raydist.sample import write
from raydist.sample.languages.en import ENGLISH
from raydist.sample.languages.workshop import WORKSHOP_ENGLISH
from raydist.sample.reader_sets import write_distractor
from raydist.sample.world import ENCYCLOPEDIA, NAMES_PER_PASSAGE, RANGES, WORKSHOP, World
from raydist.sample.write import OTHER_LANGUAGES, write_sample

LANGUAGES = ("en", "es", "de", "ar", "hi", "vi")
ALL_LANGUAGES = (ENGLISH, *OTHER_LANGUAGES, WORKSHOP_ENGLISH)
TEMPLATES = (*ENGLISH.statements.values(), *ENGLISH.distractors.values(), ENGLISH.notes, ENGLISH.months)
ORDINARY = {word for group in TEMPLATES for template in group for word in re.findall(r"[A-Z][a-z]+", template)}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("worlds") / "small"
    write_sample(out, "small", seed=0)
    return out


@pytest.fixture
def few_passages(monkeypatch):
    """Reader sets of a few passages, where only the behaviour around them is looked at."""
    for name in ("TRAIN_PASSAGES", "DEV_PASSAGES", "SECOND_DOMAIN_TRAIN", "SECOND_DOMAIN_DEV"):
        monkeypatch.setattr(write, name, 4)
    for name in ("OTHER_TRAIN_PASSAGES", "OTHER_DEV_PASSAGES"):
        monkeypatch.setattr(write, name, 2)


def checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def questions(path: Path) -> list[tuple[str, dict]]:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    return [
        (paragraph["context"], row) for article in articles for paragraph in article["paragraphs"] for row in paragraph["qas"]
    ]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def qrels(path: Path) -> list[tuple[str, str, str]]:
    header, *rows = [tuple(line.split("\t")) for line in path.read_text().splitlines()]
    assert header == ("query-id", "corpus-id", "score")
    return rows


def sentences(world: Path) -> dict[str, str]:
    return {
        f"{document['_id']}#{n}": document["text"][start:end]
        for document in lines(world / "corpus.jsonl")
        for n, (start, end) in enumerate(document["sentences"])
    }


def names_in(text: str) -> set[str]:
    """Invented names: capitalised words that no template has and that are no month."""
    return set(re.findall(r"\b[A-Z][a-z]{4,}\b", text)) - ORDINARY


def test_same_seed_same_bytes_in_another_process(small, tmp_path):
    script = (
        "import sys; from pathlib import Path; from raydist.sample.write import write_sample; write_sample(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "again")], check=True, env={"PYTHONHASHSEED": "77"})
    assert checksums(tmp_path / "again") == checksums(small)


def test_another_seed_changes_every_file_of_data(small, tmp_path):
    write_sample(tmp_path / "other", "small", seed=1)
    other = checksums(tmp_path / "other")
    assert [name for name, digest in checksums(small).items() if other[name] == digest] == ["README.md"]


def test_a_small_world_has_the_promised_size(small):
    counts = {str(path.relative_to(small)): len(questions(path)) for path in small.glob("*/*.json")}
    assert counts == {
        "en/train.json": 6000,
        "en/dev.json": 600,
        "en/dev_adversarial.json": 1200,
        "other_domain/train.json": 600,
        "other_domain/dev.json": 400,
        **{f"{code}/train.json": 1500 for code in LANGUAGES[1:]},
        **{f"{code}/dev.json": 300 for code in LANGUAGES[1:]},
    }
    about = json.loads((small / "world.json").read_text())
    assert {f"{name}.json": count for name, count in about["counts"].items() if "/" in name} == counts
    assert (about["size"], about["seed"]) == ("small", 0)


def test_every_answer_is_at_its_offset_and_mostly_nowhere_else(small):
    for path in small.glob("*/*.json"):
        once = 0
        rows = questions(path)
        for context, row in rows:
            (answer,) = row["answers"]
            start = answer["answer_start"]
            assert context[start : start + len(answer["text"])] == answer["text"] != "", (path, row["id"])
            assert not re.search(r"[{}]", context + row["question"])
            once += context.count(answer["text"]) == 1
        assert once > 0.75 * len(rows), path


def test_ids_are_unique_over_all_training_and_dev_files(small):
    ids = [
        row["id"]
        for path in small.glob("*/*.json")
        if path.parent.name != "other_domain" and "adversarial" not in path.name
        for _, row in questions(path)
    ]
    assert len(ids) == len(set(ids))
    for path in small.glob("*/*.json"):
        rows = questions(path)
        assert len({row["id"] for _, row in rows}) == len(rows)
    assert not any("-" in number for number in ids)  # AddSent scoring cuts ids at the first hyphen


def test_all_languages_tell_the_same_facts(small):
    english = {row["id"]: row["answers"][0]["text"] for _, row in questions(small / "en/dev.json")}
    for code in LANGUAGES[1:]:
        shared = 0
        for _, row in questions(small / f"{code}/dev.json"):
            number, _, suffix = row["id"].rpartition("_")
            assert suffix == code
            year = english[number]
            if re.fullmatch(r"1\d{3}", year):
                assert row["answers"][0]["text"] == year
                shared += 1
        assert shared > 40


def test_scripts_are_those_of_the_language(small):
    for code, letters in {"ar": r"[\u0600-\u06ff]", "hi": r"[\u0900-\u097f]"}.items():
        for context, row in questions(small / f"{code}/dev.json"):
            assert not re.search("[A-Za-z]", context + row["question"])
            assert len(re.findall(letters, context)) > 0.6 * len(context.replace(" ", ""))


def test_train_and_dev_share_no_entity(small):
    train = {name for context, _ in questions(small / "en/train.json") for name in names_in(context)}
    dev = {name for context, _ in questions(small / "en/dev.json") for name in names_in(context)}
    given = {name.title() for name in World(ENCYCLOPEDIA, 0).given_names}  # people share given names, never full ones
    assert len(train) > 3000
    assert len(dev) > 300
    # Surnames of two people may agree (705,600 of them): 3,000 x 300 / 705,600 is about 1 pair by chance.
    assert len((train & dev) - given) <= 5
    titles = [
        {article["title"] for article in json.loads((small / name).read_text(encoding="utf-8"))["data"]}
        for name in ("en/train.json", "en/dev.json")
    ]
    assert not titles[0] & titles[1]


def test_some_dev_questions_are_asked_in_ways_never_trained_on(small):
    def shapes(name):
        return Counter(re.sub(r"[A-Z][a-z]{4,}( [A-Z][a-z]{4,})?", "*", row["question"]) for _, row in questions(small / name))

    train, dev = shapes("en/train.json"), shapes("en/dev.json")
    unseen = sum(count for shape, count in dev.items() if shape not in train)
    assert 0.15 < unseen / sum(dev.values()) < 0.45


def test_passages_are_short_and_full_of_look_alikes(small):
    contexts = {context for context, _ in questions(small / "en/train.json")}
    words = [len(context.split()) for context in contexts]
    assert 70 <= sum(words) / len(words) <= 110
    assert max(words) < 125
    numbers = [len(set(re.findall(r"\d[\d,]*", context))) for context in contexts]
    assert sum(count >= 2 for count in numbers) > 0.75 * len(numbers)


def test_adversarial_copies_only_add_a_sentence_without_the_answer(small):
    originals = {row["id"]: (context, row) for context, row in questions(small / "en/dev.json")}
    rows = questions(small / "en/dev_adversarial.json")
    copies = {row["id"]: (context, row) for context, row in rows if row["id"].endswith("-adv")}
    assert {row["id"]: (context, row) for context, row in rows if not row["id"].endswith("-adv")} == originals
    assert set(copies) == {f"{number}-adv" for number in originals}
    at_start = 0
    for number, (context, row) in originals.items():
        longer, copy = copies[f"{number}-adv"]
        assert copy["question"] == row["question"]
        assert longer.count(context) == 1
        distractor = longer.replace(context, "").strip()
        assert distractor.endswith(".")
        assert row["answers"][0]["text"].lower() not in distractor.lower()
        assert re.findall(r"[A-Z][a-z]+", row["question"])[-1] not in distractor  # the name asked for; of people, the surname
        at_start += longer.startswith(distractor)
    assert 0.15 < at_start / len(originals) < 0.35


def test_a_distractor_never_holds_the_answer_even_where_values_are_few():
    world = World(ENCYCLOPEDIA, 3)
    for number in range(150):
        passage, rng = world.passage(number), world.rng(number, "test")
        for fact in passage.facts:
            sentence = write_distractor(world, ENGLISH, fact, number, rng)
            assert ENGLISH.answer(fact).lower() not in sentence.lower()
            assert ENGLISH.name(fact.entity.split()[-1]) not in sentence


def test_sentence_boundaries_cut_the_text_exactly(small):
    for document in lines(small / "corpus.jsonl"):
        cut = [document["text"][start:end] for start, end in document["sentences"]]
        assert " ".join(cut) == document["text"]
        assert all(sentence.endswith(".") and not sentence[0].islower() for sentence in cut)


def test_sentences_are_hardly_ever_repeated(small):
    texts = list(sentences(small).values())
    assert len(set(texts)) > 0.995 * len(texts)


def test_every_judged_id_exists_and_splits_agree(small):
    known, queries = sentences(small), {row["_id"]: row for row in lines(small / "queries.jsonl")}
    assert len(queries) == 1200
    judged = Counter()
    for split in ("train", "dev"):
        for query, sentence, score in qrels(small / f"qrels/{split}.tsv"):
            assert queries[query]["split"] == split
            assert sentence in known
            assert score == "1"
            judged[query] += 1
    assert set(judged) == set(queries)
    assert all(judged[query] == 1 for query, row in queries.items() if row["split"] == "train")


def fact_of(query: str):
    number, index = query[1:].split("q")
    return World(ENCYCLOPEDIA, 0).passage(1320 + int(number)).facts[int(index)]  # 1,200 train and 120 dev passages come first


def test_one_answer_of_several_is_marked_for_training_and_all_are_for_dev(small):
    gold = {query: sentence for query, sentence, _ in qrels(small / "qrels/train.tsv")}
    dev = {(query, sentence) for query, sentence, _ in qrels(small / "qrels/dev.tsv")}
    restated = [(row["query-id"], row["corpus-id"]) for row in lines(small / "restated.jsonl")]
    assert len(set(restated)) == len(restated) > 2000
    for query, sentence in restated:
        assert (gold[query] != sentence) if query in gold else (query, sentence) in dev
    known = sentences(small)
    for query, sentence in [*gold.items(), *restated]:
        assert ENGLISH.answer(fact_of(query)) in known[sentence], query
        assert ENGLISH.name(fact_of(query).entity.split()[-1]) in known[sentence], query
    elsewhere = [sentence.split("#")[0] != query.split("q")[0] for query, sentence in restated]
    assert all(elsewhere)
    times = Counter(query for query, _ in restated)
    assert 0.05 < sum(not times[query] for query in gold) / len(gold) < 0.2  # some facts are told once


def test_truth_is_whole_no_other_sentence_states_what_is_asked(small):
    """Of entity, relation and value, which the sentences are made of: nothing else in the corpus has the words of an answer."""
    answers = {(row["query-id"], row["corpus-id"]) for row in lines(small / "restated.jsonl")}
    answers |= {row[:2] for split in ("train", "dev") for row in qrels(small / f"qrels/{split}.tsv")}
    by_name: dict[str, list[tuple[str, str]]] = {}
    for id, text in sentences(small).items():
        for word in set(re.findall(r"[A-Z][a-z]+", text)):
            by_name.setdefault(word, []).append((id, text))
    for query in {query for query, _ in answers}:
        fact = fact_of(query)
        name = ENGLISH.name(fact.entity.split()[-1])
        wordings = [re.escape(one).replace(r"\{V\}", re.escape(ENGLISH.answer(fact))).replace(r"\{A\}", f"(\\w+ )?{name}")
                    for one in ENGLISH.wordings[fact.relation]]  # fmt: skip
        said = {id for id, text in by_name[name] if any(re.fullmatch(one, text) for one in wordings)}
        assert said == {sentence for asked, sentence in answers if asked == query}, query


def test_wordings_recur_across_documents_as_gold_and_as_other_answers_alike(small):
    known = sentences(small)
    gold, others = Counter(), Counter()
    for query, sentence, _ in qrels(small / "qrels/train.tsv"):
        gold[wording_of(query, known[sentence])] += 1
    for row in lines(small / "restated.jsonl"):
        others[wording_of(row["query-id"], known[row["corpus-id"]])] += 1
    pool = {one for wordings in ENGLISH.wordings.values() for one in wordings}
    assert len(gold) > 0.9 * len(pool)
    assert len(others) > 0.99 * len(pool)


def wording_of(query: str, text: str) -> str:
    fact = fact_of(query)
    said = text.replace(ENGLISH.name(fact.entity), "{A}").replace(ENGLISH.name(fact.entity.split()[-1]), "{A}")
    said = said.replace(ENGLISH.answer(fact), "{V}")
    assert said in ENGLISH.wordings[fact.relation], said
    return said


@pytest.mark.parametrize("size", [100, 513, "1025", 5000])
def test_a_number_is_the_number_of_sentences(few_passages, tmp_path, size):
    counts = write_sample(tmp_path / "world", size)
    known, queries = sentences(tmp_path / "world"), lines(tmp_path / "world/queries.jsonl")
    assert len(known) == counts["corpus sentences"] == int(size)
    assert abs(len(queries) - int(size) / 5) <= 4
    assert {sentence for split in ("train", "dev") for _, sentence, _ in qrels(tmp_path / f"world/qrels/{split}.tsv")} <= set(
        known
    )
    assert {row["corpus-id"] for row in lines(tmp_path / "world/restated.jsonl")} <= set(known)


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    script = """
import resource, sys
from pathlib import Path
from raydist.sample.corpus import write_corpus
from raydist.sample.world import ENCYCLOPEDIA, World
for size in (1_000, 20_000, 60_000):
    write_corpus(Path(sys.argv[1]) / str(size), World(ENCYCLOPEDIA, 0), 0, size, lambda written: None)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    peaks = [int(line) for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]
    corpus_kb = (tmp_path / "60000/corpus.jsonl").stat().st_size / 1024
    assert peaks[2] - peaks[1] < 1024  # kilobytes, for a corpus that is larger by more than 4 megabytes
    assert peaks[2] - peaks[0] < corpus_kb / 2


@pytest.mark.parametrize("size", ["tiny", "", "-5", "0", "99", "1e6", 3.5, True, "²"])
def test_a_bad_size_is_refused_before_anything_is_written(tmp_path, size):
    with pytest.raises(InputError, match="small, medium, large or a number"):
        write_sample(tmp_path / "world", size)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="no earlier sample"):
        write_sample(tmp_path, 100)
    (tmp_path / "world.json").write_text("[1, 2")
    with pytest.raises(InputError, match="no earlier sample"):
        write_sample(tmp_path, 100)
    with pytest.raises(InputError, match="is a file"):
        write_sample(tmp_path / "notes.txt", 100)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_earlier_sample_and_an_empty_folder_are_replaced(few_passages, tmp_path):
    out = tmp_path / "world"
    out.mkdir()
    write_sample(out, 100, seed=0)
    first = checksums(out)
    (out / "left_over.txt").write_text("of an earlier version")
    write_sample(out, 100, seed=1)
    assert set(checksums(out)) == set(first)
    assert checksums(out) != first
    assert [path.name for path in tmp_path.iterdir()] == ["world"]


def test_an_interrupted_run_leaves_nothing_that_looks_whole(few_passages, tmp_path):
    def stop(done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sample(tmp_path / "world", 100, progress=stop)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_and_leaves_the_earlier_sample(few_passages, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_sample(tmp_path / "world", 100, seed=0)
    before = checksums(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    for name in ("world", "new"):
        with pytest.raises(StorageError, match=rf"cannot write .*/{name}: no space is left .*run the same command again"):
            write_sample(tmp_path / name, 100, seed=1)
    assert checksums(tmp_path) == before


def test_progress_only_grows_and_ends_at_the_total(few_passages, tmp_path):
    seen = []
    write_sample(tmp_path / "world", 2000, progress=lambda done, total: seen.append((done, total)))
    done = [one for one, _ in seen]
    assert done == sorted(set(done))
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]


def test_the_command_counts_passages(few_passages, tmp_path):
    from typer.testing import CliRunner

    from raydist.cli import app

    done = CliRunner().invoke(app, ["sample", str(tmp_path / "world"), "--size", "100"])
    # five sets of 4, two of 2 in five other languages, and 100 sentences in documents of 20
    assert done.stdout.startswith("sample world: 45 passages in ")


def test_names_are_unique_within_their_space():
    world = World(ENCYCLOPEDIA, 5)
    for kind in world.scatter:
        assert len({world.name(kind, number) for number in range(20_000)}) == 20_000


def test_a_passage_uses_its_own_names_and_distinct_values():
    for domain in (ENCYCLOPEDIA, WORKSHOP):
        world = World(domain, 0)
        for number in range(300):
            passage = world.passage(number)
            own = {world.name(kind, number * NAMES_PER_PASSAGE + n) for kind in world.scatter for n in range(NAMES_PER_PASSAGE)}
            assert {fact.entity for fact in passage.facts} <= own
            assert len({fact.relation for fact in passage.facts}) == len(passage.facts) == 6
            values = [(domain.relations[fact.relation][1], fact.value) for fact in passage.facts]
            assert len(set(values)) == len(values)
            assert {value for _, value in values if isinstance(value, str)} <= own


def test_every_language_has_words_for_every_relation_and_value():
    for language in ALL_LANGUAGES:
        relations = language.domain.relations
        assert set(language.statements) == set(language.questions) == set(relations), language.code
        for relation, (_, kind) in relations.items():
            assert len(set(language.statements[relation])) >= (4 if language.code == "en" else 3)
            assert len(set(language.questions[relation])) >= 4
            for statement in language.statements[relation]:
                assert statement.count("{V}") == 1 <= statement.count("{A}")
            assert all("{A}" in question and "{V}" not in question for question in language.questions[relation])
            if kind in RANGES:
                first, end, step = RANGES[kind]
                texts = [language.value(kind, value) for value in range(first, end, step)]
                assert len(set(texts)) == len(texts)
            if kind in language.phrases:
                assert len(language.phrases[kind]) == RANGES[kind][1]
    assert set(ENGLISH.wordings) == set(ENGLISH.distractors) == set(ENCYCLOPEDIA.relations)
    for templates in (ENGLISH.wordings, ENGLISH.distractors):
        assert all(one.count("{V}") == 1 == one.count("{A}") for group in templates.values() for one in group)
