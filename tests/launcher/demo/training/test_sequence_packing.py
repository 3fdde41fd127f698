from itertools import count

from launcher.demo.training.sequence_packing import pack_rows


def test_packed_rows_drop_what_does_not_fit() -> None:
    documents = (([number] * 3, [True, False, True]) for number in count(1))
    ids, loss_mask = pack_rows(documents, 2, 5)
    assert ids.tolist() == [[1, 1, 1, 2, 2], [3, 3, 3, 4, 4]]
    assert loss_mask.tolist() == [[True, False, True, True, False]] * 2
