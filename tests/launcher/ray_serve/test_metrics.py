from prometheus_client.parser import text_string_to_metric_families

from launcher.ray_serve.metrics import merge_metrics

PAGES = {
    "one": '# HELP a A.\n# TYPE a gauge\na 1\n# HELP b_total B.\n# TYPE b_total counter\nb_total{x="y {z"} 2\n',
    "two": '# HELP a Other.\n# TYPE a gauge\na 3\n# HELP c C.\n# TYPE c gauge\nc{} 4 1700000000\n'}


def test_samples_of_all_replicas_are_on_one_page_with_their_labels() -> None:
    families = {family.name: family for family in text_string_to_metric_families(merge_metrics(PAGES))}
    assert {name: [(item.labels, item.value) for item in family.samples] for name, family in families.items()} == {
        "a": [({"replica": "one"}, 1.0), ({"replica": "two"}, 3.0)],
        "b": [({"replica": "one", "x": "y {z"}, 2.0)],
        "c": [({"replica": "two"}, 4.0)]}
    assert families["a"].documentation == "A."


def test_family_is_described_once_and_stays_together() -> None:
    page = merge_metrics({"one": PAGES["one"], "two": PAGES["one"]})
    assert page.splitlines()[:4] == ["# HELP a A.", "# TYPE a gauge", 'a{replica="one"} 1', 'a{replica="two"} 1']
    assert page.count("# TYPE") == 2


def test_no_pages_give_an_empty_one() -> None:
    assert merge_metrics({}) == ""
