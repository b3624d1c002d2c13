"""Published data sets, each in its official layout: what is read of a small file of invented content."""

import csv
import json
import shutil

import pytest
from helpers.question_files import read, recognise_format, squad, write

from raydist.corpus.examples import plan_splits, read_rows
from raydist.errors import InputError
from raydist.records import GoldAnswer

# --- Natural Questions -------------------------------------------------------------------------------------------------

TEXT = "<H1> Lund </H1> <P> Ada was born in <B> Lund </B> in 1815 . </P> <P> She moved to Oslo . </P>"
PAGE = TEXT.split(" ")
LONG, OTHER, NOTHING = (
    {"start_token": 3, "end_token": 15},
    {"start_token": 15, "end_token": 21},
    {"start_token": -1, "end_token": -1},
)


def annotation(long, *shorts, yes_no="NONE"):
    spans = [{"start_token": start, "end_token": end} for start, end in shorts]
    return {"annotation_id": 1, "long_answer": long | {"candidate_index": 0}, "short_answers": spans, "yes_no_answer": yes_no}


QUESTIONS = [  # number, question, annotations
    (7, "where was ada born", [annotation(LONG, (8, 11)), annotation(OTHER, (18, 19)), annotation(LONG, (8, 11), (12, 13))]),
    (8, "is ada from lund", [annotation(LONG, yes_no="YES")]),
    (9, "who knows", [annotation(NOTHING)]),
    (10, "what of it", [annotation(LONG)]),
]


def simplified(number, question, annotations):
    candidates = [LONG | {"top_level": True}, OTHER | {"top_level": True}]
    url = "https://en.wikipedia.org//w/index.php?title=Ada_of_Lund&amp;oldid=1"
    row = {"document_text": " ".join(PAGE), "long_answer_candidates": candidates, "question_text": question}
    return row | {"annotations": annotations, "document_url": url, "example_id": number}


def original(number, question, annotations):
    row = simplified(number, question, annotations)
    del row["document_text"]
    tokens = [{"token": token, "html_token": token[0] == "<", "start_byte": 0, "end_byte": 0} for token in PAGE]
    return row | {"document_tokens": tokens, "document_html": "", "document_title": "Ada of Lund", "question_tokens": []}


def of_the_hub(number, question, annotations):
    shorts = [
        {
            "start_token": [s["start_token"] for s in a["short_answers"]],
            "end_token": [s["end_token"] for s in a["short_answers"]],
        }
        for a in annotations
    ]
    marks = {
        "id": ["1"] * len(annotations),
        "long_answer": [a["long_answer"] for a in annotations],
        "short_answers": shorts,
        "yes_no_answer": [{"NONE": -1, "NO": 0, "YES": 1}[a["yes_no_answer"]] for a in annotations],
    }
    tokens = {"token": PAGE, "is_html": [token[0] == "<" for token in PAGE]}
    document = {"title": "Ada of Lund", "url": "", "html": "", "tokens": tokens}
    row = {"id": str(number), "document": document, "question": {"text": question, "tokens": []}, "annotations": marks}
    return row | {"long_answer_candidates": {"start_token": [3, 15], "end_token": [15, 21]}}


@pytest.mark.parametrize("layout", [simplified, original, of_the_hub])
def test_natural_questions_give_the_same_questions_in_each_of_their_layouts(tmp_path, layout):
    path = write(tmp_path / "nq.jsonl", [layout(*question) for question in QUESTIONS])
    assert recognise_format(path) == "natural_questions"
    [example], rejected, counts = read(path, labelled=True)
    assert example.context == "Ada was born in Lund in 1815 ."
    assert (example.id, example.question, example.title) == ("7", "where was ada born", "Ada of Lund")
    assert example.answers == [GoldAnswer("Lund", 16), GoldAnswer("1815", 24)]
    assert (rejected, counts.questions, counts.left_out, counts.not_extractive) == ([], 4, 2, 1)
    scored = read_rows([layout(*question) for question in QUESTIONS], file="nq", scored=True)[0]
    assert [(one.id, one.golds) for one in scored] == [("7", ["Lund", "1815"]), ("8", ["yes"])]


def test_a_page_whose_annotations_are_broken_is_rejected_by_name(tmp_path):
    broken = simplified(*QUESTIONS[0]) | {"annotations": [{"long_answer": None}]}
    _, [row], _ = read(write(tmp_path / "nq.jsonl", [simplified(*QUESTIONS[0]), broken]))
    assert (row.line, row.reason) == (2, "wrong type")
    assert "Natural Questions" in row.detail


# --- TyDi QA -----------------------------------------------------------------------------------------------------------

RUSSIAN = "Ада родилась в Лунде. Умерла в Осло."


def tydi(minimal, candidate, yes_no="NONE"):
    return {
        "annotation_id": 5,
        "passage_answer": {"candidate_index": candidate},
        "minimal_answer": dict(zip(("plaintext_start_byte", "plaintext_end_byte"), minimal)),
        "yes_no_answer": yes_no,
    }


def tydi_row(*annotations, **more):
    first = len(RUSSIAN[:21].encode())
    spans = [(0, first), (first + 1, len(RUSSIAN.encode()))]
    candidates = [{"plaintext_start_byte": start, "plaintext_end_byte": end} for start, end in spans]
    row = {"document_plaintext": RUSSIAN, "document_title": "Ада", "document_url": "", "passage_answer_candidates": candidates}
    return (
        row
        | {"question_text": "Где умерла Ада?", "language": "russian", "annotations": list(annotations), "example_id": -3}
        | more
    )


def test_tydi_qa_counts_bytes_and_names_its_languages(tmp_path):
    start = len(RUSSIAN[: RUSSIAN.index("Осло")].encode())
    oslo = tydi((start, start + 8), 1)
    rows = [tydi_row(oslo, tydi((-1, -1), -1)), tydi_row(tydi((-1, -1), -1), example_id=4)]
    rows.append(tydi_row(tydi((-1, -1), 0, "NO"), example_id=5))
    path = write(tmp_path / "tydiqa-v1.0-dev.jsonl.gz", rows, packed=True)
    assert recognise_format(path) == "tydiqa"
    [example], rejected, counts = read(path)
    assert (example.context, example.language, example.id) == ("Умерла в Осло.", "ru", "-3")
    assert example.answers == [GoldAnswer("Осло", 9)]
    assert (rejected, counts.left_out, counts.not_extractive) == ([], 1, 1)
    hub = {
        "passage_answer_candidates": {
            name: [one[name] for one in rows[0]["passage_answer_candidates"]]
            for name in ("plaintext_start_byte", "plaintext_end_byte")
        },
        "annotations": {
            "passage_answer_candidate_index": [1, -1],
            "minimal_answers_start_byte": [start, -1],
            "minimal_answers_end_byte": [start + 8, -1],
            "yes_no_answer": ["NONE", "NONE"],
        },
    }
    assert read_rows([rows[0] | hub], file="hub")[0][0].answers == example.answers


def test_the_gold_passages_of_tydi_qa_have_the_language_of_their_ids(tmp_path):
    answers = [{"text": "Лунде", "answer_start": 15}]
    qas = [
        {"id": id, "question": "Где?", "answers": answers} for id in ("russian--612034-2", "russian-612035-2", "russian-doll-1")
    ]
    path = write(tmp_path / "tydiqa-goldp-v1.1-train.json", squad(*qas, context=RUSSIAN))
    assert [example.language for example in read(path)[0]] == ["ru", "ru", "en"]


# --- TriviaQA ----------------------------------------------------------------------------------------------------------


def trivia(tmp_path, domain="Wikipedia"):
    answer = {"Value": "Lund", "Aliases": ["Lunda", "City of Lund"], "NormalizedAliases": ["lunda"], "Type": "WikipediaEntity"}
    pages = [{"DocSource": "TagMe", "Filename": f"{name}.txt", "Title": name} for name in ("Ada", "Long", "Gone")]
    found = [{"Filename": "12/12_3.txt", "Rank": 0, "Title": "A page", "Url": "http://a"}]
    question = {
        "Question": "Where was Ada born?",
        "QuestionId": "tc_1",
        "Answer": answer,
        "EntityPages": pages,
        "SearchResults": found,
    }
    for place, text in (
        ("wikipedia/Ada.txt", "Lunden is no answer.\nShe came from the city of LUND, near Lunda."),
        ("wikipedia/Long.txt", "word\n" * 800 + "Lund"),
        ("web/12/12_3.txt", "The town Lund."),
    ):
        file = tmp_path / "triviaqa" / "evidence" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "triviaqa" / "qa").mkdir()
    document = {"Data": [question], "Domain": domain, "Split": "train", "VerifiedEval": False, "Version": 1.0}
    return write(tmp_path / "triviaqa" / "qa" / "wikipedia-train.json", document)


def test_trivia_qa_asks_each_question_of_each_of_its_documents(tmp_path):
    path = trivia(tmp_path)
    assert recognise_format(path) == "triviaqa"
    examples, rejected, counts = read(path, labelled=True)
    assert [(one.id, one.answers[0]) for one in examples] == [
        ("tc_1--Ada.txt", GoldAnswer("city of LUND", 39)),
        ("tc_1--12/12_3.txt", GoldAnswer("Lund", 9)),
    ]
    assert examples[0].golds == ["Lund", "Lunda", "City of Lund"]
    assert [(row.id, row.reason) for row in rejected] == [("tc_1--Gone.txt", "document of evidence is missing")]
    assert counts.left_out == 1, "without the answer among its first 800 words"
    scored = read(path, scored=True)[0]
    assert [(one.id, bool(one.answers), len(one.context.split())) for one in scored][1] == ("tc_1--Long.txt", False, 800)


def test_trivia_qa_without_its_evidence_is_refused_before_it_is_read(tmp_path):
    moved = tmp_path / "elsewhere" / "qa.json"
    moved.parent.mkdir()
    shutil.copy(trivia(tmp_path), moved)
    with pytest.raises(InputError, match=r"qa\.json is TriviaQA, .*no folder `evidence` beside it.*unpack the whole archive"):
        plan_splits([str(moved)])


def test_trivia_qa_of_the_hub_has_its_evidence_inside():
    pages = {"filename": ["Ada.txt"], "title": ["Ada"], "doc_source": ["TagMe"], "wiki_context": ["Born in Lund."]}
    row = {"question": "Where?", "question_id": "tc_1", "question_source": "", "entity_pages": pages}
    row |= {
        "search_results": {"filename": [], "title": [], "search_context": []},
        "answer": {"value": "Lund", "aliases": ["Lunda"]},
    }
    [example], _, _ = read_rows([row], file="hub:trivia_qa")
    assert (example.id, example.answers, example.golds) == ("tc_1--Ada.txt", [GoldAnswer("Lund", 8)], ["Lund", "Lunda"])


# --- NewsQA ------------------------------------------------------------------------------------------------------------

STORY = "(Press) -- Ada was born in Lund in 1815. She moved to Oslo."
BORN, YEAR = {"s": 27, "e": 32}, {"s": 35, "e": 39}


def newsqa():
    nothing, bad = {"noAnswer": True}, {"badQuestion": True}
    questions = [
        {"q": "Where was Ada born?", "consensus": BORN, "answers": [{"sourcerAnswers": [BORN]}, {"sourcerAnswers": [YEAR]}]},
        {"q": "When?", "validatedAnswers": [BORN | {"count": 1}, YEAR | {"count": 2}], "answers": []},
        {"q": "Why?", "consensus": nothing, "isAnswerAbsent": 1.0},
        {"q": "Huh", "consensus": bad, "isQuestionBad": 1.0},
    ]
    dev = [{"q": "Who moved?", "answers": [{"sourcerAnswers": [{"s": 11, "e": 14}]}]}]
    stories = [("./a.story", "train", questions), ("./b.story", "dev", dev)]
    data = [{"storyId": id, "text": STORY, "type": type, "questions": own} for id, type, own in stories]
    return {"data": data, "version": "1"}


def test_newsqa_as_json_has_a_consensus_and_splits(tmp_path):
    path = write(tmp_path / "combined-newsqa-data-v1.json", newsqa())
    assert recognise_format(path) == "newsqa"
    examples, rejected, counts = read(path, split="train")
    assert [(one.question, [answer.text for answer in one.answers], one.is_impossible) for one in examples] == [
        ("Where was Ada born?", ["Lund"], False),
        ("When?", ["1815"], False),
        ("Why?", [], True),
    ]
    assert (rejected, counts.left_out) == ([], 1)
    assert [one.question for one in read(path, split="dev")[0]] == ["Who moved?"]
    assert len(read(path)[0]) == 4
    with pytest.raises(InputError, match="has no split 'test'; its stories are of dev, train"):
        read(path, split="test")


@pytest.mark.parametrize("layout", ["characters", "tokens"])
def test_newsqa_as_csv(tmp_path, layout):
    rows = [
        {"question": "Where was Ada born?", "answer_char_ranges": "27:32|35:39,1:2|27:32", "validated_answers": ""},
        {"question": "When?", "answer_char_ranges": "27:32|None", "validated_answers": '{"none": 1, "35:39": 2}'},
        {"question": "Why?", "answer_char_ranges": "None|None|1:2", "validated_answers": ""},
        {"question": "Huh", "answer_char_ranges": "None", "validated_answers": '{"badQuestion": 2}'},
    ]
    rows = [{"story_id": "./a", "is_answer_absent": "0.0", "is_question_bad": "0.0", "story_text": STORY} | row for row in rows]
    if layout == "tokens":
        ranges = ("6:7,8:9", "8:9")
        kept = zip(rows, ranges)
        rows = [
            {"story_id": "./a", "question": row["question"], "answer_token_ranges": r, "story_text": STORY} for row, r in kept
        ]
    path = tmp_path / "newsqa.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    examples, rejected, counts = read(str(path))
    assert rejected == []
    ends = "." if layout == "tokens" else ""  # its tokens are what stands between blanks
    found = [([answer.text for answer in one.answers], one.is_impossible) for one in examples]
    assert found == [(["Lund"], False), ([f"1815{ends}"], False), ([], True)][: len(found)]
    assert counts.left_out == (layout == "characters")


# --- Chinese -----------------------------------------------------------------------------------------------------------

CHINESE = "艾达生于隆德。隆德在瑞典。"


def test_offsets_of_minus_one_are_searched(tmp_path):
    qas = [{"id": "1", "question": "在哪里?", "answers": [{"text": "隆德", "answer_start": -1}]}]
    qas.append({"id": "2", "question": "谁?", "answers": [{"text": "张三", "answer_start": -1}]})
    [example], rejected, counts = read(write(tmp_path / "dureader_robust.json", squad(*qas, context=CHINESE)))
    assert (example.answers, counts.several_occurrences) == ([GoldAnswer("隆德", 4)], 1)
    assert [row.reason for row in rejected if row.what == "answer"] == ["answer does not occur in the passage"]


def test_cmrc_in_its_own_layout(tmp_path):
    qas = [{"query_id": "TRAIN_1_QUERY_0", "query_text": "她生于哪里?", "answers": ["隆德", "隆德"]}]
    document = [{"context_id": "TRAIN_1", "context_text": CHINESE, "title": "艾达", "qas": qas}]
    path = write(tmp_path / "cmrc2018_train.json", json.dumps(document, ensure_ascii=False))
    assert recognise_format(path) == "cmrc"
    [example], rejected, _ = read(path)
    assert (example.id, example.answers, example.language) == ("TRAIN_1_QUERY_0", [GoldAnswer("隆德", 4)], "zh")
    assert not rejected


def test_dureader_has_its_answers_in_the_paragraph_that_was_matched(tmp_path):
    document = {"title": "t", "paragraphs": [CHINESE], "is_selected": True, "most_related_para": 0}
    document["segmented_paragraphs"] = [["艾达", "生于", "隆德", "。"]]
    row = {"question_id": 5, "question": "在哪里?", "question_type": "ENTITY", "documents": [document], "answers": ["在隆德"]}
    rows = [
        row | {"answer_docs": [0], "answer_spans": [[2, 2]]},
        row | {"question_id": 6, "answer_docs": [], "answer_spans": []},
    ]
    path = write(tmp_path / "search.train.json", rows)
    assert recognise_format(path) == "dureader"
    [example], rejected, counts = read(path)
    assert (example.id, example.answers, example.golds) == ("5", [GoldAnswer("隆德", 4)], ["隆德", "在隆德"])
    assert (example.language, rejected, counts.left_out) == ("zh", [], 1)
