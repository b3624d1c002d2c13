"""Examples about one short passage."""

from raydist.records import Example, GoldAnswer

CONTEXT = "It flows. It is long. It ends."


def asked(id, *starts, context=CONTEXT):
    answers = [GoldAnswer(context[start : start + 4], start) for start in starts]
    return Example(id, "Where?", context, answers, passage_id="p-" + context[:5], title="Oder", file="f", line=1)
