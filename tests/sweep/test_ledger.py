"""How trials that came to an end are remembered."""

from helpers.ledger import entry

from raydist.files.storage import Storage
from raydist.sweep.ledger import Ledger, is_finished
from raydist.sweep.plan import Trial


def test_the_ledger_keeps_the_end_of_a_trial_and_lets_an_error_be_tried_again(tmp_path):
    ledger = Ledger(Storage(str(tmp_path)))
    one, two = Trial({"a": 1}, 0), Trial({"a": 2}, 0)
    ledger.add(entry(one, 50.0, "stopped"))
    ledger.add(entry(one, None, "error"))  # what a stopped trial says while it is taken down
    assert ledger.entries()[one.id]["status"] == "stopped"
    ledger.add(entry(two, None, "error"))
    assert not is_finished(ledger.get(two.id))
    ledger.forget(two.id)
    assert ledger.get(two.id) is None
    assert is_finished(ledger.get(one.id))
