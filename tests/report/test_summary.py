from helpers.made_run import example, write_run

from raydist.report.summary import say_summary

START = "retrieval.sample"


def told(tmp_path, capsys, metrics) -> list[str]:
    say_summary([write_run(tmp_path / "mined", {}, metrics=metrics)])
    return capsys.readouterr().out.splitlines()


def compared(difference: float, p: float) -> dict[str, float]:
    means = {"bm25": 0.5, "gold": 0.8, "gold_silver_weighted": 0.8 + difference}
    own = f"{START}.gold_silver_weighted.MRR@100.minus_gold"
    return {f"{START}.{method}.MRR@100": mean for method, mean in means.items()} | {own: difference, f"{own}.p": p}


def test_methods_stand_in_their_order_with_what_they_add_to_gold_pairs(tmp_path, capsys):
    lines = told(tmp_path, capsys, compared(0.05, 0.0004) | {f"{START}.gold.P@1": 0.725})
    assert [line.split("  ")[0] for line in lines[2:5]] == ["BM25", "Gold pairs", "Gold and silver pairs, weighted"]
    assert lines[3].split()[-2:] == ["80.0", "72.5"]
    assert lines[4].split()[-4:] == ["85.0", "+5.0", "<", "0.001"]
    assert lines[5] == "Mined pairs: 5.0 points more than gold pairs alone, beyond chance over these questions."


def test_a_loss_is_called_one_and_chance_is_not_called_a_gain(tmp_path, capsys):
    assert "5.0 points less than" in told(tmp_path / "a", capsys, compared(-0.05, 0.0004))[-1]
    assert "no difference" in told(tmp_path / "b", capsys, compared(0.05, 0.01))[-1]


def test_silver_pairs_are_told_with_the_truth_where_it_is_known(tmp_path, capsys):
    known = {"mining.silver": 200, "mining.right": 170, "mining.answers": 250}
    assert "200 silver pairs: 170 answer their question (85%), 68% of all answers there are" in told(
        tmp_path / "a", capsys, compared(0.05, 0.0004) | known
    )
    lines = told(tmp_path / "b", capsys, compared(0.05, 0.0004) | {"mining.silver": 200})
    assert not any("silver pairs:" in line for line in lines)


def test_a_readers_sets_are_told_with_both_scores(tmp_path, capsys):
    metrics = {"dev.f1": 90.04, "dev.em": 85.0, "adversarial.addsent_f1": 60.0, "adversarial.addsent_em": 55.5}
    metrics |= {"adversarial.original_f1": 91.0, "adversarial.original_em": 86.0, "train.steps": 200}
    say_summary([write_run(tmp_path / "read", {"dev": [example()]}, metrics=metrics)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [
        ["dev", "90.0", "85.0"],
        ["adversarial,", "originals", "91.0", "86.0"],
        ["adversarial,", "worst", "copy", "60.0", "55.5"],
    ]
