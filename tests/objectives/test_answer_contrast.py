"""Answer-aware contrast against its equations (methods 6.5), a slow loop over spans and strings, and itself on two ranks."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import tiny
from torch import Tensor

from raydist.draws import keyed_uniform
from raydist.errors import InputError
from raydist.models.folders import model_folder
from raydist.objectives.answer_contrast import AnswerContrast, contrast_loss, span_masks, token_means
from raydist.objectives.base import Batch, ReaderOutput
from raydist.objectives.text_codes import piece_codes, span_text_codes
from raydist.reader import decode
from raydist.reader.metrics import normaliser

PIECES = ["[PAD]", "the", "The", ",", ".", "a", "##a", "b", "B", "ab", "##b", "ba", "an", "-", "c", "«"]
PIECES += [f"w{i}" for i in range(len(PIECES), tiny.VOCABULARY)]
MAX_ANSWER = 4


def words_of(pieces) -> str:
    """The text of a vocabulary with ##, a blank before every piece that does not go on."""
    return " ".join(pieces).replace(" ##", "").removeprefix("##")


def normalised(text: str) -> str:
    return normaliser("squad")(text).replace(" ", "")


def text_of(ids) -> str:
    """Normalised text without blanks, from strings."""
    return normalised(words_of(PIECES[i] for i in ids if PIECES[i] != "«"))


def every_span(batch: Batch, i: int):
    inside = [t for t in range(batch.passage_BT.shape[1]) if batch.passage_BT[i, t]]
    return [(s, e) for s in inside for e in inside if s <= e < s + MAX_ANSWER]


def top_spans(start_BT: Tensor, end_BT: Tensor, passage_BT: Tensor, k: int, max_answer_length: int):
    """The whole table of spans, sorted; padded with spans that exist nowhere."""
    found = []
    for start_T, end_T, passage_T in zip(start_BT, end_BT, passage_BT):
        inside = passage_T.nonzero()[:, 0].tolist()
        spans = [(s, e) for s in inside for e in inside if s <= e < s + max_answer_length]
        spans = sorted(spans, key=lambda span: (-float(start_T[span[0]] + end_T[span[1]]), span))[:k]
        found.append([(*span, True) for span in spans] + [(-5, 999, False)] * (k - len(spans)))
    table = torch.tensor(found)
    return table[..., 0].long(), table[..., 1].long(), torch.zeros(table.shape[:2]), table[..., 2].bool()


def make_objective(**options) -> AnswerContrast:
    return AnswerContrast(top_spans, piece_codes(PIECES), **{"max_answer_length": MAX_ANSWER, "top": 12, "tau": 0.5} | options)


def make_batch(rows: int = 5, seed: int = 0, **options) -> Batch:
    """The tiny batch with passages of few different words, so that texts repeat; a row without answer; two rows that share a
    passage and two that share an answer."""
    given = {"has_answer": [i != 1 for i in range(rows)], "passage": [0, 1, 2, 2, 4][:rows], "answer": [0, 1, 2, 3, 0][:rows]}
    batch = tiny.make_batch(rows, seed=seed, **given | options)
    return replace(batch, input_ids_BT=torch.where(batch.passage_BT, 1 + batch.input_ids_BT % 9, batch.input_ids_BT))


def random_output(batch: Batch, seed: int = 1, hidden_size: int = 4) -> ReaderOutput:
    B, T = batch.input_ids_BT.shape
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    return ReaderOutput(draw(B, T, hidden_size).requires_grad_(), draw(B, T), draw(B, T))


def slow_negatives(batch: Batch, output: ReaderOutput, i: int, objective: AnswerContrast) -> list[tuple[int, int]]:
    """A_i, cand and neg_i of docs/methods.md 6.5, for one row, with strings."""
    score = lambda span: float(output.start_BT[i, span[0]] + output.end_BT[i, span[1]])  # noqa: E731
    best = sorted(every_span(batch, i), key=lambda span: (-score(span), span))[: objective.top]
    ids, gold = batch.input_ids_BT[i].tolist(), (int(batch.start_B[i]), int(batch.end_B[i]))
    text = lambda span: text_of(ids[span[0] : span[1] + 1])  # noqa: E731
    rep = lambda span: output.hidden_BTH[i, span[0] : span[1] + 1].mean(0)  # noqa: E731
    cand = [(place, span) for place, span in enumerate(best) if span != gold and text(span) != text(gold)]
    row = batch.world.row[batch.mine[i]]
    draw = lambda place: keyed_uniform(batch.seed, batch.step, "answer_contrast", np.array([row * objective.top + place]))[0]  # noqa: E731
    keys = {
        "nearest": lambda item: -torch.cosine_similarity(rep(item[1]), rep(gold), dim=0).item(),
        "top1": lambda item: item[0],
        "random": lambda item: -draw(item[0]),
    }
    return [span for _, span in sorted(cand, key=keys[objective.select])[: objective.theta]]


def slow_contrast(batch: Batch, output: ReaderOutput, objective: AnswerContrast) -> Tensor:
    """Eq. 8 summed over rows with an answer, one similarity at a time."""
    rows = [i for i in range(len(batch.start_B)) if batch.has_answer_B[i]]
    rep = lambda i, span: output.hidden_BTH[i, span[0] : span[1] + 1].mean(0)  # noqa: E731
    gold = {i: (int(batch.start_B[i]), int(batch.end_B[i])) for i in rows}
    hard = {i: slow_negatives(batch, output, i, objective) for i in rows}
    text = lambda i, span: text_of(batch.input_ids_BT[i, span[0] : span[1] + 1].tolist())  # noqa: E731
    total = torch.zeros((), dtype=torch.float64)
    for i in rows:
        question = output.hidden_BTH[i, 0]
        if objective.question == "mean":
            question = output.hidden_BTH[i][batch.question_BT[i]].mean(0)
        c = lambda a: torch.cosine_similarity(question, a, dim=0) / objective.tau  # noqa: B023, E731
        others = [j for j in rows if batch.world.passage[j] != batch.world.passage[i]]
        others = [j for j in others if batch.world.answer[j] != batch.world.answer[i]]
        rivals = []
        if objective.negatives in ("hard", "both"):
            rivals += [rep(i, span) for span in hard[i]]
            if objective.hard_from_others:
                rivals += [rep(j, span) for j in others for span in hard[j] if text(j, span) != text(i, gold[i])]
        if objective.negatives in ("in_batch", "both"):
            rivals += [rep(j, gold[j]) for j in others]
        own = c(rep(i, gold[i]))
        total = total - own + (own.exp() + sum(c(a).exp() for a in rivals)).log()
    return total


OPTIONS = [
    {"select": select, "theta": theta, "negatives": negatives, "hard_from_others": others, "question": question}
    for select, theta, negatives, others, question in [
        ("nearest", 1, "both", False, "mean"),
        ("nearest", 3, "both", True, "mean"),
        ("nearest", 10, "hard", False, "cls"),
        ("top1", 1, "both", True, "mean"),
        ("top1", 2, "hard", True, "mean"),
        ("random", 1, "both", False, "mean"),
        ("random", 4, "hard", False, "mean"),
        ("nearest", 1, "in_batch", False, "cls"),
    ]
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_loss_equals_the_slow_loop_in_value_and_gradient(options, seed):
    batch = make_batch(seed=seed)
    output = random_output(batch, seed)
    objective = make_objective(**options)
    term = objective(batch, output, reader=None)["loss"]
    slow = slow_contrast(batch, output, objective)
    torch.testing.assert_close(term.total, slow, rtol=0, atol=1e-10)
    assert term.count == 4
    for got, wanted in zip(*(torch.autograd.grad(value, output.hidden_BTH) for value in (term.total, slow))):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


def test_the_reader_s_own_search_gives_the_same_loss():
    batch = make_batch()
    output = random_output(batch)
    output = output._replace(start_BT=output.start_BT.float(), end_BT=output.end_BT.float())
    options = {"max_answer_length": MAX_ANSWER, "top": 12, "tau": 0.5, "theta": 3}
    exact = AnswerContrast(decode.top_spans, piece_codes(PIECES), **options)(batch, output, reader=None)
    assert torch.equal(exact["loss"].total, make_objective(theta=3)(batch, output, reader=None)["loss"].total)


def test_the_loss_by_hand():
    # cosines of the question with gold 1, with its rival 1/2 (60 degrees), with another row's gold 0; tau = 1/2
    # -2 + log(e^2 + e^1 + e^0) = 0.407606; with the last one masked -2 + log(e^2 + e^1) = 0.313262
    question_BH, gold_BH = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    rival_BNH = torch.tensor([[[0.5, math.sqrt(0.75)]], [[0.5, math.sqrt(0.75)]]])
    others_NH, mask_BN = torch.tensor([[0.0, 1.0]]), torch.tensor([[True], [False]])
    rivals = [(rival_BNH, torch.ones(2, 1, dtype=torch.bool)), (others_NH, mask_BN)]
    loss_B = contrast_loss(question_BH, gold_BH, rivals, tau=0.5)
    torch.testing.assert_close(loss_B, torch.tensor([0.407606, 0.313262]))


def test_text_codes_are_equal_exactly_where_normalised_texts_are():
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 16, 14).tolist() for _ in range(4)]
    assert_codes_agree(PIECES, rows, text_of)


def assert_codes_agree(pieces: list[str], rows: list[list[int]], text_of, longest: int = 6) -> None:
    """Spans of the rows have equal codes exactly where they have equal texts; both must happen. A text of None is left out."""
    codes_4V, named = piece_codes(pieces), []
    for ids in rows:
        spans = [(s, e) for s in range(len(ids)) for e in range(s, min(len(ids), s + longest))]
        start_BA, end_BA = torch.tensor(spans).T[:, None]
        numbers = span_text_codes(codes_4V[:, torch.tensor([ids])], start_BA, end_BA)[0].tolist()
        named += [(text_of(ids[s : e + 1]), number) for (s, e), number in zip(spans, numbers)]
    named = [(text, number) for text, number in named if text is not None]
    texts: dict[str, set[int]] = {}
    for text, number in named:
        texts.setdefault(text, set()).add(number)
    assert not {text: numbers for text, numbers in texts.items() if len(numbers) > 1}
    assert len(set.union(*texts.values())) == len(texts)
    assert 10 < len(texts) < 0.95 * len(named)


PASSAGE = """The Bridge of Thetis, an old stone bridge near Anand, was built by the engineers of A. Mina (the "Bridge Man") in
1894. A bridge-keeper lived on the bridge; the Bridge fell in 1911, after a flood. "The Bridge" is a painting of it, "Bridge"
an opera about the bridge-keeper: they say that (a) keeper of the THEATRE, an Anatolian, knew him; a theme is the end's."""


def test_text_codes_of_a_real_vocabulary_are_those_of_the_decoded_text():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:minilm"))
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    ids = tokenizer(PASSAGE, add_special_tokens=False)["input_ids"]
    assert "##tis" in (pieces[i] for i in ids)  # the Thetis: not every "the" is an article
    assert_codes_agree(pieces, [ids], lambda ids: normalised(words_of(pieces[i] for i in ids)))


def test_text_codes_of_a_byte_level_vocabulary_are_those_of_the_text():
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    words = "the The bridge keeper of Mina an stone they old São Über über an. U.S.A. and of the"
    tokenizer.train_from_iterator([PASSAGE, words], vocab_size=330, show_progress=False)
    pieces = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    text = PASSAGE.replace("Anand", "São ünye")
    text += """ The U.S.A.\n(USA)  the USá, the-end of USö, theend, the A-Bomb, a usö: ünye"""
    ids = tokenizer.encode(text).ids
    cut = [i for i in ids if "\ufffd" in tokenizer.decode([i])]
    assert cut  # letters of two tokens, which keep their case: here it is the same everywhere
    whole = lambda ids: None if "\ufffd" in (text := tokenizer.decode(ids)) else normalised(text)  # noqa: E731
    assert_codes_agree(pieces, [ids], whole, longest=12)


def test_the_same_text_cut_otherwise_has_the_same_code():
    for one, other, same in [
        (["ba"], ["B", "##a"], True),
        (["ba", "c"], ["the", "ba", "-", "c", "."], True),
        (["ab"], ["a", "##b"], True),  # the first piece of a word is no article
        (["b"], ["a", "##b"], False),
        (["ba"], ["ab"], False),
    ]:
        numbers = []
        for pieces in (one, other):
            row = [PIECES.index(piece) for piece in ("b", *pieces, "ab")]
            codes_4BT = piece_codes(PIECES)[:, torch.tensor([row])]
            numbers.append(span_text_codes(codes_4BT, torch.tensor([[1]]), torch.tensor([[len(pieces)]])))
        assert bool(numbers[0] == numbers[1]) == same


@pytest.mark.parametrize("mark", ["▁", "Ġ"])
def test_marks_of_word_borders_tell_an_article_from_the_middle_of_a_word(mark):
    pieces = [piece.replace("_", mark) for piece in ("_the", "the", "_The", "_,", '_"', '"', "_b", "b", "_", "ir", "tis", "_a")]
    codes_4V = piece_codes(pieces)

    def code(text: str, first: int = 0) -> int:
        ids = torch.tensor([[pieces.index(piece.replace("_", mark)) for piece in text.split()]])
        return span_text_codes(codes_4V[:, ids], torch.tensor([[first]]), torch.tensor([[ids.shape[1] - 1]])).item()

    assert code("_the") == code("_The") == code("_,") == code("the") == code("_a _the") == 0
    assert code("_b") == code("b") == code("_the _b") == code('_" the _b "') == code("_ the _b") != 0
    assert code('_" the _b', first=1) == code("_b")  # the span begins after the mark
    assert code("_the ir _b") == code("_ the ir b") != code("ir b")
    assert code("_the tis") != code("tis")
    assert code("_b _the") == code("b") != code("b the")
    assert code("ir _the b") == code("ir the b") != code("ir b")


def test_a_span_is_the_mean_of_its_tokens():
    hidden_BTH = 1e4 + torch.randn(2, 300, 8, generator=torch.Generator().manual_seed(0))  # float32, far from 0
    start_BA, end_BA = torch.tensor([[290, 3, 0], [7, 7, 299]]), torch.tensor([[295, 3, 299], [9, 20, 299]])
    means_BAH = token_means(hidden_BTH, span_masks(start_BA, end_BA, 300))
    for b, a in itertools.product(range(2), range(3)):
        wanted_H = hidden_BTH[b, start_BA[b, a] : end_BA[b, a] + 1].double().mean(0)
        torch.testing.assert_close(means_BAH[b, a].double(), wanted_H, rtol=1e-6, atol=0)  # differences of prefix sums: 3e-6


@pytest.mark.parametrize("select", ["nearest", "top1", "random"])
def test_no_hard_negative_is_gold_or_reads_like_gold(select):
    alike = 0
    for seed in range(20):
        batch = make_batch(seed=seed)
        objective = make_objective(select=select, theta=12)
        start_BN, end_BN, _, usable_BN = objective.hard_negatives(batch, random_output(batch, seed))
        for i, ids in enumerate(batch.input_ids_BT.tolist()):
            gold = text_of(ids[batch.start_B[i] : batch.end_B[i] + 1])
            spans = list(zip(start_BN[i][usable_BN[i]].tolist(), end_BN[i][usable_BN[i]].tolist()))
            assert all(text_of(ids[s : e + 1]) != gold for s, e in spans)
            assert len(set(spans)) == len(spans)
            assert batch.has_answer_B[i] or not spans
            alike += sum(text_of(ids[s : e + 1]) == gold for s, e in every_span(batch, i) if batch.has_answer_B[i])
    assert alike > 100  # the rule had work to do


def test_rows_of_the_same_passage_or_answer_are_no_negatives_of_each_other():
    def loss(passage, answer):
        batch = make_batch(3, has_answer=[True] * 3, passage=passage, answer=answer)
        objective = make_objective(negatives="in_batch")
        # all vectors equal: c is the same everywhere, so a row with n negatives has the loss log(1 + n)
        output = random_output(batch)._replace(hidden_BTH=torch.ones(*batch.input_ids_BT.shape, 2))
        return math.exp(objective(batch, output, reader=None)["loss"].total)

    assert loss([0, 1, 2], [0, 1, 2]) == pytest.approx(3 * 3 * 3)
    assert loss([0, 1, 0], [0, 1, 2]) == pytest.approx(2 * 3 * 2)
    assert loss([0, 1, 2], [0, 1, 0]) == pytest.approx(2 * 3 * 2)
    assert loss([0, 1, 0], [0, 0, 2]) == pytest.approx(1 * 2 * 2)
    assert loss([0, 0, 0], [0, 1, 2]) == pytest.approx(1)


def test_with_tau_10_and_33_terms_the_loss_lies_between_3_30_and_3_70():
    # -c + log sum of 33 terms with all c in [-0.1, 0.1]: at least -0.1 + log(e^0.1 + 32 e^-0.1) = 3.302,
    # at most 0.1 + log(e^-0.1 + 32 e^0.1) = 3.691
    for scale, seed in itertools.product((1e-3, 1.0, 1e3), range(3)):
        batch = tiny.make_batch(32, seed=seed)
        output = random_output(batch, seed)
        output = output._replace(hidden_BTH=(scale * output.hidden_BTH).detach().requires_grad_())
        objective = make_objective(tau=10.0)
        assert objective.hard_negatives(batch, output)[3].all()  # so gold, 31 other rows' gold and one rival: 33 terms
        assert 3.30 <= objective(batch, output, reader=None)["loss"].mean <= 3.70


def test_a_row_without_candidates_has_in_batch_negatives_only():
    batch = make_batch(has_answer=[True] * 5)
    ids_BT = batch.input_ids_BT.clone()
    ids_BT[0, batch.passage_BT[0]] = PIECES.index(",")  # nothing but punctuation: every span reads like gold
    batch = replace(batch, input_ids_BT=ids_BT)
    output = random_output(batch)
    usable_BN = make_objective(theta=2).hard_negatives(batch, output)[3]
    assert usable_BN.any(1).tolist() == [False, True, True, True, True]
    for objective in (make_objective(), make_objective(negatives="hard"), make_objective(hard_from_others=True)):
        total = objective(batch, output, reader=None)["loss"].total
        torch.testing.assert_close(total, slow_contrast(batch, output, objective))
        assert torch.autograd.grad(total, output.hidden_BTH)[0].isfinite().all()


def test_how_near_the_rivals_are_is_a_mean_over_the_rows_that_have_one():
    batch = make_batch(3, has_answer=[True, True, False], passage=[0, 1, 2], answer=[0, 1, 2])
    ids_BT = batch.input_ids_BT.clone()
    hidden_BTH, score_BT = torch.ones(*ids_BT.shape, 2), torch.zeros(ids_BT.shape)
    for row in range(2):
        gold = int(batch.start_B[row])
        other = next(t for t in batch.passage_BT[row].nonzero()[:, 0].tolist() if t != gold)
        ids_BT[row, gold], ids_BT[row, other] = PIECES.index("ab"), PIECES.index("ba")
        hidden_BTH[row, gold], hidden_BTH[row, other] = torch.tensor([2.0, 0.0]), torch.tensor([3.0, 4.0])
        best = other if row == 0 else gold  # the one best span: row 0's is another word, row 1's is gold, so no rival
        score_BT[row, best] = 9.0
    batch = replace(batch, input_ids_BT=ids_BT, end_B=batch.start_B)
    output, objective = ReaderOutput(hidden_BTH, score_BT, score_BT), make_objective(top=1)
    assert objective.hard_negatives(batch, output)[3][:, 0].tolist() == [True, False, False]
    # the cosine of (2, 0) and (3, 4) is 6 / (2 * 5), in row 0 alone
    assert objective(batch, output)["nearest"].mean.item() == pytest.approx(0.6)


@pytest.mark.parametrize("theta", [1, 3])
def test_how_near_the_rivals_are_equals_a_loop(theta):
    batch = make_batch()
    ids_BT = batch.input_ids_BT.clone()
    ids_BT[0, batch.passage_BT[0]] = PIECES.index(",")  # every span reads like gold: no rival
    batch, objective = replace(batch, input_ids_BT=ids_BT), make_objective(theta=theta)
    output, near = random_output(batch), []
    for i in range(5):
        spans = slow_negatives(batch, output, i, objective) if batch.has_answer_B[i] else []
        for start, end in spans[:1]:
            one, gold = (output.hidden_BTH[i, s : e + 1].mean(0) for s, e in ((start, end), (batch.start_B[i], batch.end_B[i])))
            near.append(torch.cosine_similarity(one, gold, dim=0).item())
    assert len(near) == 3  # of five rows one has no answer, one no rival
    term = objective(batch, output)["nearest"]
    assert term.mean.item() == pytest.approx(sum(near) / 3)
    assert not term.total.requires_grad


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_gradients_agree_with_finite_differences(options):
    batch = make_batch(3, passage=[0, 1, 2], answer=[0, 1, 2])
    output = random_output(batch, hidden_size=2)
    objective = make_objective(**options)
    loss = lambda hidden_BTH: objective(batch, output._replace(hidden_BTH=hidden_BTH), reader=None)["loss"].total  # noqa: E731
    assert torch.autograd.gradcheck(loss, (output.hidden_BTH,))


def test_the_choice_of_negatives_has_no_gradient():
    batch = make_batch()
    output = random_output(batch)
    output.start_BT.requires_grad_(), output.end_BT.requires_grad_()
    total = make_objective()(batch, output, reader=None)["loss"].total
    assert torch.autograd.grad(total, [output.start_BT, output.end_BT], allow_unused=True) == (None, None)


def test_windows_without_answer_and_padding_change_nothing():
    batch = make_batch()
    output = random_output(batch)
    objective = make_objective(hard_from_others=True)
    kept = objective(batch, output, reader=None)
    with torch.no_grad():
        output.hidden_BTH[1] = 1e3
        output.hidden_BTH[~batch.attention_BT] = -1e3
    for name, term in objective(batch, output, reader=None).items():
        assert torch.equal(term.total, kept[name].total)
    total = kept["loss"].total
    gradient_BTH = torch.autograd.grad(total, output.hidden_BTH)[0]
    assert (gradient_BTH[1] == 0).all()


def test_no_answer_in_the_whole_step_gives_zero_and_a_gradient():
    batch = make_batch(has_answer=[False] * 5)
    output = random_output(batch)
    term = make_objective(hard_from_others=True)(batch, output, reader=None)["loss"]
    assert (term.total.item(), term.count, term.mean.item()) == (0, 0, 0)
    assert (torch.autograd.grad(term.total, output.hidden_BTH)[0] == 0).all()


def test_random_negatives_depend_on_the_row_and_the_step_not_on_the_batch():
    batch = make_batch()
    output = random_output(batch)
    objective = make_objective(select="random")
    chosen = torch.stack(objective.hard_negatives(batch, output)[:2])
    rows = [4, 2]
    alone = ReaderOutput(*(values[rows] for values in output))
    assert torch.equal(torch.stack(objective.hard_negatives(tiny.share(batch, rows, trim=False), alone)[:2]), chosen[:, rows])
    later = [torch.stack(objective.hard_negatives(replace(batch, step=step), output)[:2]) for step in range(200)]
    first = torch.stack(later)[:, :, 0, 0]
    candidates = slow_negatives(batch, output, 0, make_objective(select="random", theta=12))
    counts = [(first == torch.tensor(span)).all(1).sum().item() for span in candidates]
    # each of n candidates about 200 / n times: 200 / 9 = 22 with a standard deviation of 4.4
    assert sum(counts) == 200
    assert all(abs(count - 200 / len(counts)) < 20 for count in counts)


def test_half_precision_around_it_changes_nothing():
    batch = make_batch()
    output = ReaderOutput(*(values.detach().float() for values in random_output(batch)))
    objective = make_objective(theta=2)
    with torch.autocast("cpu", torch.bfloat16):
        inside = objective(batch, output, reader=None)["loss"].total
    assert torch.equal(inside, objective(batch, output, reader=None)["loss"].total)


def test_weights_are_equation_9_in_both_reductions_and_schedules():
    joint = make_objective(alpha=0.3, span_reduction="sum")
    assert (joint.weights(0)["loss"], joint.base_weight(0)) == (0.3, 0.7)
    halved = make_objective(alpha=0.3, span_reduction="mean")
    assert (halved.weights(0)["loss"], halved.base_weight(0)) == (0.15, 0.7)
    sequential = make_objective(alpha=0.3, span_reduction="sum", first_step=10)
    assert [(sequential.weights(step)["loss"], sequential.base_weight(step)) for step in (9, 10)] == [(0.0, 1.0), (0.3, 0.7)]


def test_every_part_has_a_weight_and_nothing_is_kept_in_the_checkpoint():
    for options in OPTIONS:
        objective = make_objective(**options)
        batch = make_batch()
        assert objective(batch, random_output(batch), reader=None).keys() == objective.weights(0).keys()
        assert not objective.state_dict()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tau": 0.0}, "tau: should be greater than 0, got 0.0"),
        ({"alpha": 1.5}, "alpha: should be less than 1, got 1.5"),
        ({"top": 0}, "top: should be greater than or equal to 1"),
        ({"theta": 13}, "theta 13 is more than the top 12 spans"),
        ({"select": "hardest"}, "select: should be 'nearest', 'top1' or 'random', got 'hardest'"),
        ({"negatives": "none"}, "negatives: should be"),
        ({"negatives": "in_batch", "hard_from_others": True}, "hard_from_others needs"),
        ({"question": "max"}, "question: should be 'mean' or 'cls'"),
        ({"span_reduction": "max"}, "span_reduction"),
    ],
)
def test_bad_settings_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        make_objective(**wrong)


def parts_and_gradients(rows: list[int]) -> list[Tensor]:
    """These rows' part of every term and of the gradient, for every set of options."""
    found = []
    for options in OPTIONS:
        reader = tiny.seeded(tiny.TinyReader)
        batch = tiny.share(make_batch(), rows)
        terms = make_objective(**options)(batch, reader(batch), reader)
        gradients = torch.autograd.grad(terms["loss"].mean, list(reader.parameters()), allow_unused=True)
        found += [torch.stack([term.mean.detach() for term in terms.values()])]
        found += [gradient for gradient in gradients if gradient is not None]
    return found


def on_one_of_two(rank: int) -> dict:
    rows = [[0, 2, 3], [4, 1]][rank]
    batch = tiny.share(make_batch(), rows)
    own = make_objective(gather=False)(batch, random_output(batch), reader=None)["loss"].total
    return {"parts": parts_and_gradients(rows), "own": own.detach()}


def test_two_ranks_equal_one_and_without_gather_each_stays_with_its_own_rows(tmp_path):
    ranks = tiny.on_ranks(on_one_of_two, tmp_path)
    alone = parts_and_gradients([0, 1, 2, 3, 4])
    assert sum(gradient.abs().max() > 1e-3 for gradient in alone) > len(OPTIONS)
    for first, second, one in zip(ranks[0]["parts"], ranks[1]["parts"], alone, strict=True):
        torch.testing.assert_close(first + second, one, rtol=0, atol=1e-6)
    for rank, rows in zip(ranks, ([0, 2, 3], [4, 1])):
        whole = make_batch()
        batch = tiny.share(whole, rows)
        fields = ("row", "has_answer", "passage", "answer", "tokens", "passage_tokens")
        world = replace(whole.world, **{name: getattr(whole.world, name)[rows] for name in fields})
        only = replace(batch, groups=(world,), mine=torch.arange(len(rows)))
        torch.testing.assert_close(rank["own"], slow_contrast(only, random_output(batch), make_objective()))
